r"""Two distributions that `torch.distributions` does not have: the logistic, continuous and in levels.

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


class DiscretisedLogistic(td.Distribution):
    """A logistic variable rounded to the nearest of `levels` equidistant values from 0 to 1, the ends included."""

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.unit_interval

    def __init__(self, loc: Tensor, scale: Tensor, levels: int = 256, validate_args: bool | None = None) -> None:
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)
        self.levels = levels
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The sum of the probabilities of lying above each border between levels, in units of a level."""
        top = self.levels - 1
        total = torch.zeros_like(self.loc)
        for level in range(top):
            total += torch.sigmoid((self.loc - (level + 0.5) / top) / self.scale)
        return total / top

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        continuous = Logistic(self.loc, self.scale, validate_args=False).sample(torch.Size(sample_shape))
        return (continuous * (self.levels - 1)).round().clamp(0, self.levels - 1) / (self.levels - 1)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        above, below = self.borders(value)
        return self.of_level(value, logsigmoid(above), logsigmoid(-below))

    def borders(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """The upper and lower border of a value's level, from the location in units of the scale."""
        half = 0.5 / (self.levels - 1)
        return (value + half - self.loc) / self.scale, (value - half - self.loc) / self.scale

    def of_level(self, value: Tensor, log_below: Tensor, log_above: Tensor) -> Tensor:
        """log p(value), from log sigma(upper border) and log sigma(-lower border) or the expectations of both."""
        half = 0.5 / (self.levels - 1)
        inner = torch.log(-torch.expm1(-2 * half / self.scale)) + log_below + log_above
        return torch.where(value < half, log_below, torch.where(value > 1 - half, log_above, inner))
