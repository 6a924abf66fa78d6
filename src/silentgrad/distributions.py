r"""Distributions that `torch.distributions` does not have.

They are the logistic, continuous, in levels and in ordered categories; categories that may not have been observed; and
counts with more zeros.

A level is an interval of a logistic variable; with the standard logistic function :math:`\sigma` at its ends a > b,

.. math:: \log(\sigma(a) - \sigma(b)) = \log(1 - e^{-(a - b)}) + \log \sigma(a) + \log \sigma(-b),

in which nothing cancels, and of which only the last two terms depend on the location.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints
from torch.nn.functional import logsigmoid


class Logistic(td.Distribution):
    """The logistic distribution, of variance (pi scale)^2 / 3."""

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return (math.pi * self.scale).square() / 3

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        eps = torch.finfo(self.loc.dtype).eps
        uniform = torch.rand(
            self._extended_shape(torch.Size(sample_shape)), dtype=self.loc.dtype, device=self.loc.device
        )
        return self.loc + self.scale * torch.logit(uniform, eps=eps)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        t = (value - self.loc) / self.scale
        return logsigmoid(t) + logsigmoid(-t) - self.scale.log()


class DiscretizedLogistic(td.Distribution):
    """A logistic variable rounded to the nearest of the whole levels 0, 1, ..., levels - 1."""

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(self, loc: Tensor, scale: Tensor, levels: int = 256, validate_args: bool | None = None) -> None:
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)
        self.levels = levels
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self.levels - 1)

    @property
    def mean(self) -> Tensor:
        """The sum of the probabilities of lying above each border between levels."""
        total = torch.zeros_like(self.loc)
        for level in range(self.levels - 1):
            total += torch.sigmoid((self.loc - level - 0.5) / self.scale)
        return total

    @property
    def variance(self) -> Tensor:
        """The second moment, E[x^2] = sum over levels k of (2k + 1) P(x > k), less the squared mean."""
        total = torch.zeros_like(self.loc)
        for level in range(self.levels - 1):
            total += (2 * level + 1) * torch.sigmoid((self.loc - level - 0.5) / self.scale)
        return total - self.mean.square()

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "DiscretizedLogistic":
        shape = torch.Size(batch_shape)
        return DiscretizedLogistic(self.loc.expand(shape), self.scale.expand(shape), self.levels, validate_args=False)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        continuous = Logistic(self.loc, self.scale, validate_args=False).sample(torch.Size(sample_shape))
        return continuous.round().clamp(0, self.levels - 1)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        above, below = (value + 0.5 - self.loc) / self.scale, (value - 0.5 - self.loc) / self.scale
        return log_level(value, self.levels, 1 / self.scale, logsigmoid(above), logsigmoid(-below))


def log_level(value: Tensor, levels: int, per_level: Tensor, log_below: Tensor, log_above: Tensor) -> Tensor:
    """Return log p(value) of a rounded logistic variable, or its expectation.

    Args:
        value: Whole levels.
        levels: Number of levels.
        per_level: The width of a level in units of the scale.
        log_below: log sigma(upper border) of the value's level, or its expectation.
        log_above: log sigma(-lower border), likewise.
    """
    top, bottom = value == levels - 1, value == 0
    width = torch.log(-torch.expm1(-per_level)).where(~(top | bottom), 0)  # of the outer levels, none
    return width + log_below.where(~top, 0) + log_above.where(~bottom, 0)


class Ordinal(td.Distribution):
    """A logistic variable of scale 1, told by the category from 0 on between whose thresholds it lies.

    Args:
        loc: Location of the logistic variable.
        thresholds: Borders between neighboring categories, rising along a last dimension.
        validate_args: As in `torch.distributions`.
    """

    arg_constraints: ClassVar = {"loc": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(self, loc: Tensor, thresholds: Tensor, validate_args: bool | None = None) -> None:
        self.loc, self.thresholds = loc, thresholds
        super().__init__(loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The sum of the probabilities of lying above each threshold."""
        return self._above().sum(-1)

    @property
    def variance(self) -> Tensor:
        """From E[x^2], the sum of (2 k + 1) times the probability of lying above threshold k."""
        above = self._above()
        odd = 2 * torch.arange(above.shape[-1]).to(above) + 1
        return (odd * above).sum(-1) - above.sum(-1).square()

    def _above(self) -> Tensor:
        """Return the probability of lying above each threshold."""
        return torch.sigmoid(self.loc.unsqueeze(-1) - self.thresholds)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        variable = Logistic(self.loc, torch.ones_like(self.loc), validate_args=False).sample(torch.Size(sample_shape))
        return (variable.unsqueeze(-1) > self.thresholds).sum(-1).to(self.loc.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        above, below = self.borders(value)
        return self.of_category(value, logsigmoid(above), logsigmoid(-below))

    def borders(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return a value's upper and lower threshold, from the location; any numbers where there is none."""
        above, below = self._thresholds_of(value)
        return above - self.loc, below - self.loc

    def of_category(self, value: Tensor, log_below: Tensor, log_above: Tensor) -> Tensor:
        """Return log p(value), from log sigma(upper border) and log sigma(-lower border) or their expectations."""
        above, below = self._thresholds_of(value)
        highest = self.thresholds.shape[-1]
        within = (value > 0) & (value < highest)
        gap = torch.where(within, above - below, 1)
        inner = torch.log(-torch.expm1(-gap)) + log_below + log_above
        return torch.where(value == 0, log_below, torch.where(value == highest, log_above, inner))

    def _thresholds_of(self, value: Tensor) -> tuple[Tensor, Tensor]:
        highest = self.thresholds.shape[-1]
        thresholds = self.thresholds.expand(*value.shape, highest)
        category = value.long().unsqueeze(-1)
        above = thresholds.gather(-1, category.clamp(max=highest - 1)).squeeze(-1)
        below = thresholds.gather(-1, (category - 1).clamp(min=0)).squeeze(-1)
        return above, below


class OneHotCategorical(td.OneHotCategorical):
    """One of several categories; a row of zeros, whose category was not observed, counts for nothing."""

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return (value * self.logits).sum(-1)


class ZeroInflated(td.Distribution):
    """Counts that, with some probability, are zero whatever they would have been.

    Args:
        counts: Distribution of the counts otherwise.
        logits: Logit of the probability of being zero for that reason.
        validate_args: As in `torch.distributions`.
    """

    arg_constraints: ClassVar = {"logits": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(self, counts: td.Distribution, logits: Tensor, validate_args: bool | None = None) -> None:
        self.counts, self.logits = counts, logits.expand(counts.batch_shape)
        super().__init__(counts.batch_shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return torch.sigmoid(-self.logits) * self.counts.mean

    @property
    def variance(self) -> Tensor:
        kept = torch.sigmoid(-self.logits)
        return kept * (self.counts.variance + (1 - kept) * self.counts.mean.square())

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = self.counts.sample(torch.Size(sample_shape))
        kept = torch.rand_like(drawn) < torch.sigmoid(-self.logits)
        return torch.where(kept, drawn, 0)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return zero_inflated(value, self.counts.log_prob(value), self.logits)


def zero_inflated(value: Tensor, log_prob: Tensor, logits: Tensor) -> Tensor:
    """Return the logarithm of the mixture from that of the counts' probability, or a bound from its expectation."""
    counted = logsigmoid(-logits) + log_prob
    # logaddexp has no second derivative far out, not even where `where` takes the other branch.
    inflated = logsigmoid(logits)
    return torch.where(value == 0, inflated - logsigmoid(inflated - counted), counted)
