r"""The figure that a run has to beat: that of a model without latents.

It gives every entry of x a distribution of its own, fitted to the training examples, and the same for every example:

============  ================================================================================================
observations  distribution of an entry
============  ================================================================================================
levels        Gaussian with mean and variance of the dequantized training examples, the noise integrated out;
              of whole ones the smoothed frequencies of the levels
binarized     Bernoulli with probability (k + 1) / (n + 2), of k white pixels among n
reals         Gaussian with mean and variance of the column
counts        negative binomial with mean and variance of the column, Poisson where the variance does not exceed
              the mean; for a row of size s the mean is s times the column's rate, (sum of x + 1) / (sum of s + 1)
============  ================================================================================================

The ones that are added keep what training never showed from being impossible. A kind of observations of one's own has a
baseline once a function is registered for it, as those below are.
"""

import math
from collections.abc import Callable
from functools import lru_cache, singledispatch
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.baselines import baselines
from silentgrad.lab.data import Binarized, Counts, Levels, Observations, Reals, Rows
from silentgrad.lab.runs.evaluation import figure_of
from silentgrad.lab.store.records import Baseline

ENTRIES = 2**22  # that are looked at together
GAUSSIAN, HISTOGRAM = "an independent Gaussian", "an independent histogram"
OfEntries = Callable[[Rows], Tensor]  # a number for each entry of a batch


class Constant(NamedTuple):
    """A distribution of the entries that is the same for every example."""

    model: str  # what it is, in words
    log_prob: OfEntries  # of each entry of a batch as a model sees it, its noise integrated out


@lru_cache(maxsize=2)  # runs of one data set follow each other
def baseline(observations: Observations, variance: float | None = None) -> Baseline | None:
    """Return the model without latents on the test examples; None for observations that have none.

    `variance` is the fixed one of the model that has to beat it; every entry has its own if that is absent.
    """
    if isinstance(observations, Levels) and variance is None:
        name, law = ("histogram", HISTOGRAM) if observations.whole else ("gaussian", GAUSSIAN)
        return Baseline(simple_models(observations)[name], f"every {_entry(observations)} {law}")
    constant = fitted(observations) if variance is None else of_variance(observations, variance)
    if constant is None:
        return None
    rows = observations.rows("test")
    nats = float(_total(rows, constant.log_prob).sum()) / len(rows)
    return Baseline(figure_of(observations, nats, rows), constant.model)


# By the tensors themselves: a run on whole levels has the same as one on dequantized ones.
_baselines = lru_cache(maxsize=1)(baselines)


def simple_models(observations: Observations) -> dict[str, float]:
    """Return the figures of models without latents on the test examples, by name; of levels, `sg.baselines`."""
    if not isinstance(observations, Levels):
        own = baseline(observations)
        return {} if own is None else {"independent": own.figure}
    assert isinstance(observations.train, Tensor)
    assert isinstance(observations.test, Tensor)
    return _baselines(observations.train, observations.test, observations.levels)


def of_variance(observations: Observations, variance: float) -> Constant:
    """Return the mean of the training examples, with a variance that is fixed."""
    rows, noise = observations.rows("train"), observations.noise_deviation**2
    seen = observations.centre if noise > 0 else observations.as_seen
    mean = _total(rows, seen) / _number(rows)

    def log_prob(batch: Rows) -> Tensor:
        squares = (seen(batch).double() - mean).square() + noise
        return -(math.log(2 * math.pi * variance) + squares / variance) / 2

    return Constant(f"the mean of every {_entry(observations)}, variance {variance:g}", log_prob)


@singledispatch
def fitted(observations: Observations) -> Constant | None:
    """Fit the model without latents to the training examples; None for a kind of observations that has none."""
    return None


@fitted.register
def _of_bits(observations: Binarized) -> Constant:
    rows = observations.rows("train")
    white = (_total(rows, observations.share) + 1) / (_number(rows) + 2)

    def log_prob(batch: Rows) -> Tensor:
        share = observations.share(batch)
        return share * white.log() + (1 - share) * (-white).log1p()

    return Constant(f"every {_entry(observations)} an independent coin", log_prob)


@fitted.register
def _of_reals(observations: Reals) -> Constant:
    # as a model sees them, the columns have mean 0 and variance 1
    return of_variance(observations, 1.0)._replace(model=f"every column {GAUSSIAN}")


@fitted.register
def _of_counts(observations: Counts) -> Constant:
    rows = observations.rows("train")
    rate = (_total(rows, lambda batch: batch.stored) + 1) / (_total(rows, _sizes) + 1)

    def surplus(batch: Rows) -> Tensor:
        mean = _sizes(batch) * rate
        return (batch.stored.double() - mean).square() - mean

    # E[(x - m)^2] = m + m^2 / r, summed over rows of mean m = s rate
    dispersion = _total(rows, surplus) / _total(rows, lambda batch: (_sizes(batch) * rate).square())
    spread = dispersion > 0

    def log_prob(batch: Rows) -> Tensor:
        x, mean = batch.stored.double(), _sizes(batch) * rate
        total = dispersion.where(spread, 1).reciprocal()
        binomial = td.NegativeBinomial(total, logits=mean.log() - total.log()).log_prob(x)
        return binomial.where(spread, td.Poisson(mean).log_prob(x))

    model = "every column an independent negative binomial"
    if observations.offset is not None:
        model += " times the size factor of the row"
    return Constant(model, log_prob)


def _sizes(batch: Rows) -> Tensor:
    sizes = torch.ones(batch.stored.shape, dtype=torch.float64)
    if batch.side_info.offset is None:
        return sizes
    return sizes * batch.side_info.offset.double().exp().reshape(-1, *[1] * (sizes.dim() - 1))


def _entry(observations: Observations) -> str:
    return "pixel" if observations.pictured else "entry"


def _number(rows: Rows) -> Tensor:
    """Return in how many rows each entry was observed; 1 for one that never was."""
    return _total(rows, lambda batch: torch.ones(batch.stored.shape)).clamp(min=1)


def _total(rows: Rows, of_entries: OfEntries) -> Tensor:
    """Return the sum over rows of a number for each entry, where it was observed."""
    total = torch.zeros(1, dtype=torch.float64)
    step = max(1, ENTRIES // rows.between(0, 1).stored.numel())
    for start in range(0, len(rows), step):
        batch = rows.between(start, start + step)
        numbers = of_entries(batch).double()
        if batch.side_info.mask is not None:
            numbers = numbers.where(batch.side_info.mask, 0)
        total = total + numbers.sum(0)
    return total
