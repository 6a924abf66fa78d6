"""A nonlinear decoder given what stands beside x."""

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.beside import Beside


class Elementwise(nn.Module):
    """A nonlinear decoder whose outputs are independent given z, so that some of them may be missing."""

    event_shape: torch.Size

    def decode(self, z: Tensor, beside: Beside) -> td.Independent:
        """p(x|z) given what stands beside x; which entries were observed makes no difference to it."""
        beside.require_none(type(self).__name__, "offset", "covariates", "deviation")
        decoded: td.Independent = self(z)
        return decoded

    def given(
        self,
        *,
        offset: Tensor | None = None,
        covariates: Tensor | None = None,
        mask: Tensor | None = None,
        deviation: Tensor | None = None,
    ) -> "GivenNetwork":
        """p(x|z) given what stands beside x, as linear decoders have it."""
        return GivenNetwork(self, Beside(offset, covariates, mask, deviation))


class GivenNetwork:
    """A nonlinear decoder of one batch, whose examples have all that stands beside them already.

    Args:
        decoder: The decoder.
        beside: What stands beside the batch.
    """

    def __init__(self, decoder: Elementwise, beside: Beside) -> None:
        self.decoder, self.beside = decoder, beside

    def __call__(self, z: Tensor) -> td.Independent:
        return self.decoder.decode(z, self.beside)

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z) over the observed entries, one number per example."""
        known = self.beside.flattened(x.shape[:1], self.decoder.event_shape)
        x = known.observed(x.flatten(1), 0.0).unflatten(1, self.decoder.event_shape)
        return known.total(self(z).base_dist.log_prob(x).flatten(1))
