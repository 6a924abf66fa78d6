"""Likelihoods of bits and levels."""

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch import distributions as td

from silentgrad import distributions
from silentgrad.errors import DomainError
from silentgrad.exactness import Exactness
from silentgrad.latents.moments import required
from silentgrad.likelihoods.continuous import LocationScale
from silentgrad.mathematics.quadrature import expected_softplus

BETWEEN = "the Bernoulli likelihood takes x between 0 and 1"


class Bernoulli(nn.Module):
    """p(x = 1) = sigmoid(u). Grey values between 0 and 1 are taken as the cross-entropy takes them."""

    exactness = Exactness.EXACT

    def forward(self, u: Tensor) -> td.Bernoulli:
        return td.Bernoulli(logits=u, validate_args=False)

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """The u at which x has this mean, and its derivative: where a start from data begins."""
        mean = required(mean, (mean > -0.01) & (mean < 1.01), f"{BETWEEN}; the data to start from are not")
        p = mean.clamp(0.02, 0.98)  # a pixel that is never on should not start beyond recall
        return p.logit(), 1 / (p * (1 - p))

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        x = required(x, (x >= 0) & (x <= 1), f"{BETWEEN}: scale it first")
        return x * mean - expected_softplus(mean, variance)


class DiscretisedLogistic(LocationScale):
    """A logistic variable around u in levels: a probability, not a density, for data that were not dequantized.

    Args:
        event_shape: Shape of one example.
        levels: Number of values that x takes, equidistant from 0 to 1: 256 for bytes divided by 255.
    """

    exactness = Exactness.EXACT
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
            f"x is not one of {self.levels} equidistant values from 0 to 1; dequantized data take Logistic",
        )
        p, v = self(mean), variance / self.scale.square()
        above, below = p.borders(x)
        return p.of_level(x, -expected_softplus(-above, v), -expected_softplus(below, v))
