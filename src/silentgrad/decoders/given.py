"""A decoder given what stands beside x: p(x|z, offset, covariates), over the entries that were observed."""

from typing import Protocol

from torch import Tensor
from torch import distributions as td

from silentgrad.beside import Beside
from silentgrad.exactness import Exactness


class Conditional(Protocol):
    """A tractable decoder that takes what stands beside x."""

    def decode(self, z: Tensor, beside: Beside, /) -> td.Distribution:
        """p(x|z) given what stands beside x."""

    def log_prob(self, x: Tensor, z: Tensor, beside: Beside, /) -> Tensor:
        """log p(x|z) over the observed entries, one number per example."""

    def expected_log_prob(
        self,
        x: Tensor,
        q: td.Distribution,
        /,
        *,
        offset: Tensor | None = None,
        covariates: Tensor | None = None,
        mask: Tensor | None = None,
        deviation: Tensor | None = None,
    ) -> Tensor:
        """E_q[log p(x|z)] over the observed entries, one number per example."""

    def exactness(self, q: td.Distribution, /) -> Exactness:
        """What `expected_log_prob` is for latents of this kind."""


class GivenDecoder:
    """A tractable decoder of one batch, whose examples have all that stands beside them already.

    Every estimator, objective and guide takes it like the decoder itself.

    Args:
        decoder: The decoder.
        beside: What stands beside the batch.

    Example:
        >>> import torch
        >>> import silentgrad as sg
        >>> decoder = sg.LinearLikelihood(2, 3, sg.likelihoods.Poisson())
        >>> x, q = torch.ones(5, 3), td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> sg.Exact()(q, sg.integrand_of(decoder.given(offset=torch.zeros(5)), x)).shape
        torch.Size([5])
    """

    def __init__(self, decoder: Conditional, beside: Beside) -> None:
        self.decoder, self.beside = decoder, beside

    def __call__(self, z: Tensor) -> td.Distribution:
        return self.decoder.decode(z, self.beside)

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z) over the observed entries, one number per example."""
        return self.decoder.log_prob(x, z, self.beside)

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        """E_q[log p(x|z)] over the observed entries, one number per example."""
        return self.decoder.expected_log_prob(x, q, **self.beside.parts())

    def exactness(self, q: td.Distribution) -> Exactness:
        """What `expected_log_prob` is for latents of this kind."""
        return self.decoder.exactness(q)
