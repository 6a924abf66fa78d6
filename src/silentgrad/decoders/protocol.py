"""What tractable decoders and leaves are: anything that has these methods, whatever it inherits from."""

from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.exactness import Exactness


@runtime_checkable
class Tractable(Protocol):
    """A decoder p(x|z) that knows the expectation of its log-probability under a latent.

    Linear decoders are one kind. A class of your own with these methods is trained, guided with, measured and evaluated
    like them.
    """

    def __call__(self, z: Tensor, /) -> td.Distribution:
        """p(x|z), whose event is one example."""

    def expected_log_prob(self, x: Tensor, q: td.Distribution, /) -> Tensor:
        """E_q[log p(x|z)], one number per example, without drawing anything."""

    def exactness(self, q: td.Distribution, /) -> Exactness:
        """What `expected_log_prob` is for latents of this kind: exact, a lower bound or an approximation."""


@runtime_checkable
class Leaf(Tractable, Protocol):
    """A tractable decoder of independent outputs that knows the expectation of each one's log-probability.

    Circuits and mixtures are made of leaves.
    """

    latent_dim: int
    event_shape: torch.Size

    def expected_log_probs(self, x: Tensor, q: td.Distribution, /) -> Tensor:
        """E_q[log p(x_o|z)] of every output, `(*batch, outputs)`, without drawing anything."""


@runtime_checkable
class Startable(Protocol):
    """A leaf that can start from data."""

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor, /) -> None:
        """Starts every output at a mean and variance, and at weights of z; see `LinearDecoder.start_outputs`."""


def is_tractable(decoder: object) -> TypeGuard[Tractable]:
    """Whether a decoder is tractable. Of its class: Python remembers that answer, and training asks at every step."""
    return issubclass(type(decoder), Tractable)
