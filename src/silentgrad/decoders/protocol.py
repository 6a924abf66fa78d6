"""Decoders: anything that has these methods, whatever it inherits from; also given side information."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError
from silentgrad.exactness import Exactness
from silentgrad.side_info import SideInfo


class Conditional(Protocol):
    """A decoder that takes side information; a tractable one has `expected_log_prob_given` and `exactness` too."""

    def decode(self, z: Tensor, side_info: SideInfo, /) -> td.Distribution:
        """p(x|z) given side information."""

    def log_prob_given(self, x: Tensor, z: Tensor, side_info: SideInfo, /) -> Tensor:
        """Return log p(x|z) over the observed entries, one number per example."""


class Given:
    """A decoder of one batch, whose examples have their side information already; as tractable as the decoder is.

    Every estimator, objective and guide takes it like the decoder itself.

    Args:
        decoder: The decoder.
        side_info: The side information of the batch.

    Example:
        >>> import torch
        >>> import silentgrad as sg
        >>> decoder = sg.LinearLikelihood(2, 3, sg.likelihoods.Poisson())
        >>> x, q = torch.ones(5, 3), td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> given = decoder.given(sg.SideInfo(offset=torch.zeros(5)))
        >>> sg.Exact()(q, sg.integrand_of(given, x)).shape
        torch.Size([5])
    """

    def __init__(self, decoder: Conditional, side_info: SideInfo) -> None:
        self.decoder, self.side_info = decoder, side_info

    def __call__(self, z: Tensor) -> td.Distribution:
        return self.decoder.decode(z, self.side_info)

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """Return log p(x|z) over the observed entries, one number per example."""
        return self.decoder.log_prob_given(x, z, self.side_info)

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        """Return E_q[log p(x|z)] over the observed entries, one number per example; for a tractable decoder."""
        expected: Tensor = self._tractable().expected_log_prob_given(x, q, self.side_info)
        return expected

    def exactness(self, q: td.Distribution) -> Exactness:
        """Return what `expected_log_prob` is for latents of this kind."""
        exactness: Exactness = self._tractable().exactness(q)
        return exactness

    def _tractable(self) -> Any:
        if not hasattr(self.decoder, "expected_log_prob_given"):
            raise IntractableError(f"{type(self.decoder).__name__} has no closed form of E[log p(x|z)]")
        return self.decoder


@runtime_checkable
class Tractable(Protocol):
    """A decoder p(x|z) that knows the expectation of its log-probability under a latent.

    Linear decoders are one kind. A class of your own with these methods is trained, guided with, measured and evaluated
    like them.
    """

    def __call__(self, z: Tensor, /) -> td.Distribution:
        """p(x|z), whose event is one example."""

    def expected_log_prob(self, x: Tensor, q: td.Distribution, /) -> Tensor:
        """Return E_q[log p(x|z)], one number per example, without drawing anything."""

    def exactness(self, q: td.Distribution, /) -> Exactness:
        """Return what `expected_log_prob` is for latents of this kind: exact, a lower bound or an approximation."""


@runtime_checkable
class Leaf(Tractable, Protocol):
    """A tractable decoder of independent outputs that knows the expectation of each one's log-probability.

    Circuits and mixtures are made of leaves.
    """

    latent_dim: int
    event_shape: torch.Size

    def expected_log_probs(self, x: Tensor, q: td.Distribution, /) -> Tensor:
        """Return E_q[log p(x_o|z)] of every output, `(*batch, outputs)`, without drawing anything."""


@runtime_checkable
class Statistical(Protocol):
    """A decoder whose log p(x|z) = F(s(z)) is a function of statistics s with known expectations."""

    def statistics(self, x: Tensor, z: Tensor, /) -> list[Tensor]:
        """s(z), each `(*batch, ...)`."""

    def expected_statistics(self, x: Tensor, q: td.Distribution, /) -> list[Tensor]:
        """Return E_q[s(z)], exactly, in the same shapes.

        Raises:
            IntractableError: There is no exact expectation for this latent.
        """

    def log_prob_from(self, x: Tensor, statistics: Sequence[Tensor], /) -> Tensor:
        """F(s), one number per example."""


@runtime_checkable
class Startable(Protocol):
    """A leaf that can start from data."""

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor, /) -> None:
        """Start every output at a mean and variance, and at weights of z; see `LinearDecoder.start_outputs`."""


def is_tractable(decoder: object) -> TypeGuard[Tractable]:
    """Return whether a decoder is tractable, also one that is given side information.

    The question is asked of its class: Python remembers that answer, and training asks at every step.
    """
    if isinstance(decoder, Given):
        decoder = decoder.decoder
    return issubclass(type(decoder), Tractable)
