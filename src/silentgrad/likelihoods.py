r"""Likelihoods p(x|u) with one parameter u per output that is linear in z, and their expected logarithm.

For Gaussian latents :math:`u = w \cdot z + b` is exactly Gaussian, so :math:`E[\log p(x|u)]` is a function of its mean
m and variance V and an integral over one number, with no sampling variance. A likelihood is any callable from u to the
distribution of x, elementwise; :func:`expected_log_prob` integrates it by Gauss-Hermite quadrature, unless it has a
method `expected_log_prob(x, mean, variance)` that knows better. Those here have. With :math:`t = (x - u) / s` and
the expectations of :mod:`silentgrad.mathematics.quadrature`,

====================  ==================================================================================
Bernoulli, logits u   :math:`x m - E \log(1 + e^u)`
Poisson, log rate u   :math:`x m - e^{m + V/2} - \log x!`
Normal, scale s       :math:`-\tfrac12 ((x - m)^2 + V) / s^2 - \log s - \tfrac12 \log 2 \pi`
Laplace, scale s      :math:`-E|t| - \log 2 s`
Logistic, scale s     :math:`(x - m) / s - 2 E \log(1 + e^t) - \log s`
in levels             :math:`\log(1 - e^{-(a - b)}) - E \log(1 + e^{-a}) - E \log(1 + e^b)`, a and b the level's borders
Student's t           :math:`-\tfrac{\nu + 1}{2} E \log(1 + t^2 / \nu) - \log s` and a constant
====================  ==================================================================================
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad import distributions
from silentgrad.errors import DomainError, ShapeError
from silentgrad.latents.moments import required
from silentgrad.mathematics.quadrature import expected_abs, expected_log1p_square, expected_softplus, gauss_hermite
from silentgrad.widening import widened

START_SCALE = 1 / 3


def expected_log_prob(
    likelihood: Callable[[Tensor], td.Distribution], x: Tensor, mean: Tensor, variance: Tensor, nodes: int = 32
) -> Tensor:
    """E[log p(x|u)] for u ~ N(mean, variance), elementwise.

    Args:
        likelihood: From u to the distribution of x; one of this module or any callable.
        x: Data, of any shape.
        mean: Of u, of the same shape.
        variance: Of u, of the same shape.
        nodes: Of the quadrature, for a likelihood without a closed form.

    Example:
        >>> zero, one = torch.zeros(3), torch.ones(3)
        >>> expected_log_prob(Bernoulli(), one, zero, one)
        tensor([-0.8061, -0.8061, -0.8061])
        >>> expected_log_prob(lambda u: td.Bernoulli(logits=u), one, zero, one)
        tensor([-0.8061, -0.8061, -0.8061])
    """
    if not x.shape == mean.shape == variance.shape:
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, mean, variance))
        raise ShapeError(f"x, mean and variance have to be of one shape, got {shapes}")
    x, mean, variance = widened(x), widened(mean), widened(variance)
    variance = required(variance, variance >= 0, "a variance cannot be negative or NaN")
    own_rule = getattr(likelihood, "expected_log_prob", None)
    if own_rule is not None:
        result: Tensor = own_rule(x, mean, variance)
        return result
    return gauss_hermite(lambda u: likelihood(u).log_prob(x), mean, variance, nodes)


class Bernoulli(nn.Module):
    """p(x = 1) = sigmoid(u). Grey values between 0 and 1 are taken as the cross-entropy takes them."""

    def forward(self, u: Tensor) -> td.Bernoulli:
        return td.Bernoulli(logits=u, validate_args=False)

    def link(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """The u at which x has this mean, and its derivative: where a start from data begins."""
        p = mean.clamp(0.02, 0.98)  # a pixel that is never on should not start beyond recall
        return p.logit(), 1 / (p * (1 - p))

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        x = required(x, (x >= 0) & (x <= 1), "the Bernoulli likelihood takes x between 0 and 1: scale it first")
        return x * mean - expected_softplus(mean, variance)


class Poisson(nn.Module):
    """Counts of rate e^u. Closed for every latent with a cumulant generating function: only log E[e^u] is needed."""

    def forward(self, u: Tensor) -> td.Poisson:
        return td.Poisson(u.exp(), validate_args=False)

    def link(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """The u at which x has this mean, and its derivative."""
        rate = mean.clamp(min=0.02)
        return rate.log(), 1 / rate

    def expectation(self, x: Tensor, mean: Tensor, log_rate: Tensor) -> Tensor:
        """E[log p(x|u)] from E[u] and log E[e^u]."""
        x = required(x, x >= 0, "the Poisson likelihood takes counts: x cannot be negative")
        return x * mean - log_rate.exp() - torch.lgamma(x + 1)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self.expectation(x, mean, mean + variance / 2)


class LocationScale(nn.Module):
    """u is the location; the scale is learned, one per output. A family of your own has to add only `forward`.

    Args:
        event_shape: Shape of one example, or () for one scale that all outputs share.
    """

    unit_variance = 1.0  # at scale 1

    def __init__(self, event_shape: int | Sequence[int]) -> None:
        super().__init__()
        shape = [event_shape] if isinstance(event_shape, int) else list(event_shape)
        self.log_scale = nn.Parameter(torch.full(shape, math.log(START_SCALE)))

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp()

    def link(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """The u at which x has this mean, and its derivative."""
        return mean, torch.ones_like(mean)

    def start(self, variance: float) -> None:
        """Starts the scale so that x varies by this much around u."""
        nn.init.constant_(self.log_scale, math.log(variance / self.unit_variance) / 2)

    def standardised(self, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of (x - u) / scale."""
        return (x - mean) / self.scale, variance / self.scale.square()


class Normal(LocationScale):
    """N(u, scale^2)."""

    def forward(self, u: Tensor) -> td.Normal:
        return td.Normal(u, self.scale, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        t, v = self.standardised(x, mean, variance)
        return -(t.square() + v) / 2 - self.log_scale - math.log(2 * math.pi) / 2


class Laplace(LocationScale):
    """Laplace(u, scale)."""

    unit_variance = 2.0

    def forward(self, u: Tensor) -> td.Laplace:
        return td.Laplace(u, self.scale, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return -expected_abs(*self.standardised(x, mean, variance)) - self.log_scale - math.log(2)


class StudentT(LocationScale):
    """Student's t around u.

    Args:
        event_shape: Shape of one example.
        df: Degrees of freedom, fixed.
    """

    def __init__(self, event_shape: int | Sequence[int], df: float = 4.0) -> None:
        super().__init__(event_shape)
        if not df > 0:
            raise DomainError(f"df has to be positive, got {df}")
        self.df = df
        self.unit_variance = df / (df - 2) if df > 2 else 1.0  # there is none for fewer degrees of freedom

    def forward(self, u: Tensor) -> td.StudentT:
        return td.StudentT(self.df, u, self.scale, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        df = self.df
        t, v = self.standardised(x, mean, variance)
        log_norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
        return log_norm - self.log_scale - (df + 1) / 2 * expected_log1p_square(t / math.sqrt(df), v / df)


class Logistic(LocationScale):
    """The logistic distribution around u."""

    unit_variance = math.pi**2 / 3

    def forward(self, u: Tensor) -> distributions.Logistic:
        return distributions.Logistic(u, self.scale, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        t, v = self.standardised(x, mean, variance)
        return t - 2 * expected_softplus(t, v) - self.log_scale


class DiscretisedLogistic(LocationScale):
    """A logistic variable around u in levels: a probability, not a density, for data that were not dequantised.

    Args:
        event_shape: Shape of one example.
        levels: Number of values that x takes, equidistant from 0 to 1: 256 for bytes divided by 255.
    """

    unit_variance = math.pi**2 / 3

    def __init__(self, event_shape: int | Sequence[int], levels: int = 256) -> None:
        super().__init__(event_shape)
        if levels < 2:
            raise DomainError(f"expected at least two levels, got {levels}")
        self.levels = levels

    def forward(self, u: Tensor) -> distributions.DiscretisedLogistic:
        return distributions.DiscretisedLogistic(u, self.scale, self.levels, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        level = x * (self.levels - 1)
        on_level = (level - level.round()).abs() < 1e-3
        x = required(
            x,
            on_level & (x >= 0) & (x <= 1),
            f"x is not one of {self.levels} equidistant values from 0 to 1; dequantised data take Logistic",
        )
        p, v = self(mean), variance / self.scale.square()
        above, below = p.borders(x)
        return p.of_level(x, -expected_softplus(-above, v), -expected_softplus(below, v))
