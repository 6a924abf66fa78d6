r"""The evaluation: one figure for one model, whoever asks for it.

Training's validation and test, `silentgrad evaluate`, the paper's tables and the examples all call
:func:`evaluate_model`. Its batches have a size of their own; what is random in it is a function of the split and of the
batch's place alone, drawn from generators of its own, so that the figure depends neither on the batch size of training,
nor on its seed, nor on the number of processes, and the global random state is left as it was.

Dequantization noise is integrated out where the decoder is Gaussian given z: the encoder sees the centre of each bin,
and :math:`E (y - u)^2 = (c - u)^2 + 1 / (12 L^2)` for a bin of centre c. It is a bound of the same kind as the one with
drawn noise: :math:`E_U \log p(y|z) - k \log L \le \log P(x|z)` for every z.

Beside a closed form that is not exact stands the ELBO by samples. Pairs of draws are added until the standard error of
the gap between the two is small beside the gap. The differences within pairs tell that error, with no part in it of how
much examples differ.
Beside the bound stand figures that are functions of examples x and of p(x|z) for a latent drawn from q(z|x), one number
each. A metric of one's own is a function and its name in :data:`METRICS`; it then stands in a run's files and in print.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.evaluation import ACTIVE, BatchEvaluation, evaluate, evaluating, exactness, sampled_elbos
from silentgrad.exactness import Exactness
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Levels, Observations, Rows, SplitName, mixed
from silentgrad.lab.store.records import Evaluated
from silentgrad.latents.independent import base_of
from silentgrad.side_info import SideInfo

BATCH = 250
PLACES: dict[SplitName, int] = {"train": 0, "valid": 1, "test": 2}
DECODED = 100_000  # examples, at the most, for the ELBO by samples; few more for the last pair of draws
SMALL = 0.1  # standard error of a gap, beside the gap
Metric = Callable[[Tensor, td.Distribution], Tensor]


def squared_error(x: Tensor, likelihood: td.Distribution) -> Tensor:
    """Return the squared error of the decoder's mean, summed over outputs."""
    return (likelihood.mean - x).flatten(1).square().sum(1)


METRICS: dict[str, Metric] = {"mse": squared_error}


@dataclass(frozen=True, kw_only=True)
class SplitEvaluation(Evaluated):
    """Figures of a model on some examples."""

    elbo: float  # in nats of x as the model sees it, or the importance-weighted bound
    samples: int  # of that bound; 1 for the ELBO
    examples: int


class Share(NamedTuple):
    """The part of an evaluation that one of several processes does: every n-th batch."""

    rank: int
    processes: int
    total: Callable[[Tensor], Tensor]  # the sum of a tensor over all of them


ALONE = Share(0, 1, lambda sums: sums)


@torch.no_grad()
def evaluate_model(
    model: GuidedVAE,
    observations: Observations,
    split: SplitName = "test",
    samples: int = 1,
    share: Share = ALONE,
    draws: int | None = None,
    rows: Rows | None = None,
) -> SplitEvaluation:
    """Return the figures of a model on a split.

    Args:
        model: The model, on any device.
        observations: What it is judged on.
        split: Which part of them.
        samples: Samples of the importance-weighted bound, which is higher than the ELBO; 1 is the ELBO.
        share: What this process does of it; all processes get the figures of one, bit-identical.
        draws: Draws of z per example, at the most, for the ELBO by samples beside a closed form that is not exact; as
            many as decode 100,000 examples if absent. Of one draw the error is not known.
        rows: The rows of the split that are taken; all if absent.
    """
    rows = rows or observations.rows(split)
    like = next(model.parameters(), torch.empty(0))
    with evaluating(model), own_draws(like.device) as seed, torch.autocast(like.device.type, enabled=False):
        x, side_info = seen(observations, rows.between(0, 1), like)  # one example tells about all
        probe = evaluate(model, x, side_info=side_info)
        noise = observations.noise_deviation if isinstance(base_of(probe.likelihood), td.Normal) else 0.0
        kind = exactness(model, model.encode(x, side_info), samples)
        whole = isinstance(observations, Levels) and observations.whole  # whose mean is a sum over all levels, if any
        metrics = {name: metric for name, metric in METRICS.items() if not (whole and metric is squared_error)}
        batches = _Batches(observations, rows, PLACES[split], like, noise, seed, share)

        def figures(x: Tensor, side_info: SideInfo) -> Tensor:
            found = evaluate(model, x, samples, noise, side_info)
            bounds = torch.stack([found.elbo, found.sampled, found.kld])
            return torch.cat([bounds, _sums(metrics, x, found, noise, side_info), found.kld_per_latent])

        elbo, sampled, kld, *rest = batches.mean(figures, 3 + len(metrics) + len(probe.kld_per_latent), 1)
        error, bounded = None, samples == 1 and kind not in (Exactness.EXACT, "sampled")
        if bounded and draws != 1:
            sampled, error = _by_pairs(model, batches, elbo, draws or DECODED // len(rows))
    told = partial(figure_of, observations, rows=rows)
    return SplitEvaluation(
        unit=observations.unit,
        figure=told(elbo),
        elbo=elbo,
        metrics=dict(zip(metrics, rest, strict=False)),
        kld=kld,
        active=sum(nats > ACTIVE for nats in rest[len(metrics) :]),
        exactness=kind,
        samples=samples,
        sampled=told(sampled) if samples > 1 or bounded else None,
        sampled_error=None if error is None else told(sampled - error) - told(sampled),
        examples=len(rows),
    )


class _Batches(NamedTuple):
    """All examples of an evaluation, in batches of which this process has its share."""

    observations: Observations
    rows: Rows
    split: int  # its number
    like: Tensor  # on the device and in the precision of the model
    noise: float  # standard deviation of the noise that is integrated out
    seed: Callable[[int], object]  # seeds the device's draws
    share: Share

    def mean(self, measure: Callable[[Tensor, SideInfo], Tensor], width: int, draw: int) -> list[float]:
        """Return the mean over examples of numbers that are measured as sums over batches; `draw` numbers the draws."""
        sums = torch.zeros(math.ceil(len(self.rows) / BATCH), width, dtype=torch.float64)
        for place in range(self.share.rank, len(sums), self.share.processes):
            batch = self.rows.between(BATCH * place, BATCH * (place + 1))
            x, side_info = seen(self.observations, batch, self.like, mixed(self.split, place, 0), self.noise)
            self.seed(mixed(self.split, place, draw))
            sums[place] = measure(x, side_info)
        means: list[float] = (self.share.total(sums).sum(0) / len(self.rows)).tolist()
        return means


def _by_pairs(model: GuidedVAE, batches: _Batches, bound: float, draws: int) -> tuple[float, float]:
    """Return the ELBO by pairs of draws, and its standard error, small beside the gap to the bound if it can be."""
    together = max(1, BATCH // len(batches.rows))  # pairs, so that few examples fill a batch

    def repeated(part: Tensor) -> Tensor:
        return part.repeat(together, *[1] * (part.dim() - 1))

    def pair(x: Tensor, side_info: SideInfo) -> Tensor:
        first, second = sampled_elbos(model, repeated(x), 2, batches.noise, side_info.map(repeated))
        return torch.stack([(first + second).sum(), (first - second).square().sum()]) / (2 * together)

    elbo, error = math.nan, math.inf
    pairs: list[list[float]] = []
    while not pairs or (2 * together * len(pairs) < draws and error > SMALL * abs(bound - elbo)):
        pairs.append(batches.mean(pair, 2, 2 + len(pairs)))
        elbo, variance = map(statistics.fmean, zip(*pairs, strict=True))
        error = math.sqrt(variance / (2 * together * len(pairs) * len(batches.rows)))
    return elbo, error


def figure_of(observations: Observations, elbo: float, rows: Rows) -> float:
    """Return a bound in the unit of the observations, over the entries of some rows that were observed."""
    if rows.side_info.mask is None:
        return observations.figure(elbo)
    return observations.figure(elbo, rows.side_info.mask.double().mean(0))


def _sums(metrics: dict[str, Metric], x: Tensor, found: BatchEvaluation, noise: float, side_info: SideInfo) -> Tensor:
    """Return the sum of each metric over a batch; with noise around x, the mean over one deviation to either side.

    An entry that was not observed is taken to be what the model expects.
    """
    if side_info.mask is not None:
        x = x.where(side_info.mask, found.likelihood.mean)
    p = found.likelihood
    sums = [(metric(x - noise, p) + metric(x + noise, p)).sum() / 2 for metric in metrics.values()]
    return torch.stack(sums) if sums else x.new_empty(0)


def seen(
    observations: Observations, rows: Rows, like: Tensor, seed: int = 0, noise: float = 0.0
) -> tuple[Tensor, SideInfo]:
    """Return rows as a model sees them, and their side information, on the device and in the precision of `like`.

    Their noise is what the seed gives; there is none in them if that of a standard deviation is to be integrated out.
    """
    rows = rows.to(like.device)
    if noise > 0:
        x = observations.centre(rows).to(like)
    else:
        x = observations.as_seen(rows, torch.Generator(rows.device).manual_seed(seed)).to(like)
    return x, rows.side_info.to(x)


@contextlib.contextmanager
def own_draws(device: torch.device) -> Iterator[Callable[[int], object]]:
    """Yield what seeds a device's draws; afterwards the random state is what it was."""
    cpu = device.type == "cpu"
    with torch.random.fork_rng([] if cpu else [device], device_type="cuda" if cpu else device.type):
        yield torch.default_generator.manual_seed if cpu else torch.get_device_module(device).manual_seed
