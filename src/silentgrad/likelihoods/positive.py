r"""Likelihoods of positive real numbers: log-normal, and Gamma.

The Gamma distribution of mean :math:`e^u` and shape :math:`\alpha` has

.. math:: \log p(x|u) = \alpha \log \alpha - \log \Gamma(\alpha) + (\alpha - 1) \log x - \alpha u - \alpha x e^{-u},

so its expectation needs :math:`\log E[e^{-u}]`, the generating function at the other side of zero.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.exactness import Exactness
from silentgrad.latents.moments import required
from silentgrad.likelihoods.base import Needs
from silentgrad.likelihoods.continuous import LocationScale, expected_normal
from silentgrad.shapes import shape_of


def positive_of(x: Tensor, name: str) -> Tensor:
    """The data themselves, if they are positive."""
    return required(x, x > 0, f"the {name} likelihood takes x above zero")


class LogNormal(LocationScale):
    """Positive numbers whose logarithm is N(u, scale^2). Exact for every latent with a mean and a variance."""

    needs = Needs.MOMENTS
    exactness = Exactness.EXACT
    neutral = 1.0

    def forward(self, u: Tensor) -> td.LogNormal:
        return td.LogNormal(u, self.scale, validate_args=False)

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """The u at which x has this mean, and its derivative; the scale's part in the mean is left out."""
        mean = positive_of(mean, "log-normal")
        return mean.log(), 1 / mean

    def rough_u(self, x: Tensor) -> Tensor:
        """A u for every entry of the data, whose principal components a decoder starts with."""
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
        """The u at which x has this mean, and its derivative."""
        mean = positive_of(mean, "Gamma")
        return mean.log(), 1 / mean

    def rough_u(self, x: Tensor) -> Tensor:
        """A u for every entry of the data, whose principal components a decoder starts with."""
        return positive_of(x, "Gamma").log()

    def mean_of_u(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The mean of a Gaussian u of this variance at which x has this mean."""
        return mean.log() - variance / 2

    def expectation(self, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
        """E[log p(x|u)] from E[u] and log E[e^-u]."""
        x = positive_of(x, "Gamma")
        shape = self.log_shape.exp()
        log_norm = shape * self.log_shape - torch.lgamma(shape)
        return log_norm + (shape - 1) * x.log() - shape * (mean + x * log_mass.exp())
