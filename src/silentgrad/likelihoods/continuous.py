r"""Likelihoods of real numbers, u their location: Normal, Laplace, Student's t and logistic; and of positive ones.

The Gamma distribution of mean :math:`e^u` and shape :math:`\alpha` has

.. math:: \log p(x|u) = \alpha \log \alpha - \log \Gamma(\alpha) + (\alpha - 1) \log x - \alpha u - \alpha x e^{-u},

so its expectation needs :math:`\log E[e^{-u}]`, the generating function at the other side of zero.
"""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad import distributions
from silentgrad.errors import DomainError
from silentgrad.exactness import Exactness
from silentgrad.latents.independent import shape_of
from silentgrad.latents.moments import required
from silentgrad.likelihoods.base import Needs, with_tensors
from silentgrad.mathematics.quadrature import expected_abs, expected_log1p_square, expected_softplus

START_SCALE = 1 / 3


class LocationScale(nn.Module):
    """u is the location; the scale is learned, one per output. A family of your own has to add only `forward`.

    Args:
        event_shape: Shape of one example, or () for one scale that all outputs share.
    """

    unit_variance = 1.0  # at scale 1

    def __init__(self, event_shape: int | Sequence[int]) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full(shape_of(event_shape), math.log(START_SCALE)))

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp()

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u at which x has this mean, and its derivative."""
        return mean, torch.ones_like(mean)

    def start(self, variance: float) -> None:
        """Start the scale so that x varies by this much around u."""
        nn.init.constant_(self.log_scale, math.log(variance / self.unit_variance) / 2)

    def standardized(self, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of (x - u) / scale."""
        return (x - mean) / self.scale, variance / self.scale.square()


def expected_normal(log_scale: Tensor, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return E[log N(x; u, scale^2)] from the mean and variance of u."""
    residual = mean - x  # in this order, the backward pass need not change a sign
    squares = torch.addcmul(variance, residual, residual)
    log_peak = -log_scale - math.log(2 * math.pi) / 2
    half_precision = (-2 * log_scale).exp() / 2
    return torch.addcmul(log_peak, squares, half_precision, value=-1)


class Normal(LocationScale):
    """N(u, scale^2)."""

    needs = Needs.MOMENTS
    exactness = Exactness.EXACT

    def forward(self, u: Tensor) -> td.Normal:
        return td.Normal(u, self.scale, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return expected_normal(self.log_scale, x, mean, variance)

    def with_scale(self, scale: Tensor) -> Self:
        """Return the same likelihood of entries that were measured with known standard deviations."""
        return with_tensors(self, log_scale=torch.hypot(self.scale, scale).log())


class Laplace(LocationScale):
    """Laplace(u, scale)."""

    exactness = Exactness.EXACT
    unit_variance = 2.0

    def forward(self, u: Tensor) -> td.Laplace:
        return td.Laplace(u, self.scale, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return -expected_abs(*self.standardized(x, mean, variance)) - self.log_scale - math.log(2)


class StudentT(LocationScale):
    """Student's t around u.

    Args:
        event_shape: Shape of one example.
        df: Degrees of freedom, fixed.
    """

    exactness = Exactness.EXACT

    def __init__(self, event_shape: int | Sequence[int], df: float = 4.0) -> None:
        super().__init__(event_shape)
        if not df > 0:
            raise DomainError(f"df has to be positive, got {df}")
        self.df = df
        if df > 2:  # there is no variance for fewer degrees of freedom
            self.unit_variance = df / (df - 2)

    def forward(self, u: Tensor) -> td.StudentT:
        return td.StudentT(self.df, u, self.scale, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        df = self.df
        t, v = self.standardized(x, mean, variance)
        log_norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
        return log_norm - self.log_scale - (df + 1) / 2 * expected_log1p_square(t / math.sqrt(df), v / df)


class Logistic(LocationScale):
    """The logistic distribution around u."""

    exactness = Exactness.EXACT
    unit_variance = math.pi**2 / 3

    def forward(self, u: Tensor) -> distributions.Logistic:
        return distributions.Logistic(u, self.scale, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        t, v = self.standardized(x, mean, variance)
        return t - 2 * expected_softplus(t, v) - self.log_scale


def positive_of(x: Tensor, name: str) -> Tensor:
    """Return the data themselves, if they are positive."""
    return required(x, x > 0, f"the {name} likelihood takes x above zero")


class LogNormal(LocationScale):
    """Positive numbers whose logarithm is N(u, scale^2). Exact for every latent with a mean and a variance."""

    needs = Needs.MOMENTS
    exactness = Exactness.EXACT
    neutral = 1.0

    def forward(self, u: Tensor) -> td.LogNormal:
        return td.LogNormal(u, self.scale, validate_args=False)

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u at which x has this mean, and its derivative; the scale's part in the mean is left out."""
        mean = positive_of(mean, "log-normal")
        return mean.log(), 1 / mean

    def rough_u(self, x: Tensor) -> Tensor:
        """Return a u for every entry of the data, whose principal components a decoder starts with."""
        return positive_of(x, "log-normal").log()

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        log_x = positive_of(x, "log-normal").log()
        return expected_normal(self.log_scale, log_x, mean, variance) - log_x


class Gamma(nn.Module):
    """Positive numbers of mean e^u, with a learned shape per output: their deviation is the mean over its root.

    Args:
        event_shape: Shape of one example, or () for one shape parameter that all outputs share.
    """

    needs = Needs.GENERATING_FUNCTION
    sign = -1
    exactness = Exactness.EXACT
    neutral = 1.0

    def __init__(self, event_shape: int | Sequence[int]) -> None:
        super().__init__()
        self.log_shape = nn.Parameter(torch.zeros(shape_of(event_shape)))

    def forward(self, u: Tensor) -> td.Gamma:
        shape = self.log_shape.exp()
        return td.Gamma(shape.expand_as(u), shape * torch.exp(-u), validate_args=False)

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u at which x has this mean, and its derivative."""
        mean = positive_of(mean, "Gamma")
        return mean.log(), 1 / mean

    def rough_u(self, x: Tensor) -> Tensor:
        """Return a u for every entry of the data, whose principal components a decoder starts with."""
        return positive_of(x, "Gamma").log()

    def mean_of_u(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the mean of a Gaussian u of this variance at which x has this mean."""
        return mean.log() - variance / 2

    def expectation(self, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
        """Return E[log p(x|u)] from E[u] and log E[e^-u]."""
        x = positive_of(x, "Gamma")
        shape = self.log_shape.exp()
        log_norm = shape * self.log_shape - torch.lgamma(shape)
        return log_norm + (shape - 1) * x.log() - shape * (mean + x * log_mass.exp())
