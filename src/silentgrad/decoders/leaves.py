"""The leaves of a circuit: several tractable decoders of the same outputs, together in one or one by one."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.distributions import constraints

from silentgrad.decoders.protocol import Leaf, Startable
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.exactness import Exactness


def leaves_of(
    leaves: Leaf | Sequence[Leaf], latent_dim: int, event_shape: torch.Size, components: int
) -> "Together | Separate":
    """Checks that leaves fit each other and the circuit.

    Args:
        leaves: One decoder of event shape `(*event_shape, components)`, or as many of `event_shape` as components.
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        components: Number of leaves of each output.
    """
    if isinstance(leaves, Sequence):
        if len(leaves) != components:
            raise ShapeError(f"{components} components, but {len(leaves)} leaves")
        for leaf in leaves:
            _require(leaf, latent_dim, event_shape)
        return Separate(leaves)
    _require(leaves, latent_dim, torch.Size((*event_shape, components)))
    return Together(leaves)


def _require(leaf: Leaf, latent_dim: int, event_shape: torch.Size) -> None:
    name = type(leaf).__name__
    if not isinstance(leaf, Leaf):
        raise IntractableError(f"{name} is no leaf: it has no expected_log_probs, the expectation of each output")
    if leaf.event_shape != event_shape:
        shapes = f"{tuple(leaf.event_shape)}, expected {tuple(event_shape)}"
        raise ShapeError(f"a leaf ({name}) has event_shape {shapes}")
    if leaf.latent_dim != latent_dim:
        raise ShapeError(f"a leaf ({name}) takes {leaf.latent_dim} latents, expected {latent_dim}")


class Together(nn.Module):
    """All leaves in one decoder, whose event has the components as its last dimension: the fastest way.

    Args:
        decoder: A leaf of event shape `(*event_shape, components)`.
    """

    def __init__(self, decoder: Leaf) -> None:
        super().__init__()
        self.decoder = decoder
        self.components = decoder.event_shape[-1]

    def forward(self, z: Tensor) -> td.Distribution:
        """The leaves' distributions of each output, of batch shape `(*batch, *event_shape, components)`."""
        return outputs_of(self.decoder(z))

    def expected_log_probs(self, x: Tensor, q: td.Distribution) -> Tensor:
        """E_q[log p(x_o|z)] of each output and component, `(*batch, outputs, components)`."""
        repeated = x.unsqueeze(-1).expand(*x.shape, self.components)
        return self.decoder.expected_log_probs(repeated, q).unflatten(-1, (-1, self.components))

    def start(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        """Starts the leaves of each output and component; the weights are `(outputs, components, latent_dim)`."""
        _startable(self.decoder).start_outputs(means.flatten(), variances.flatten(), weights.flatten(0, 1))

    def exactness(self, q: td.Distribution) -> Exactness:
        return self.decoder.exactness(q)


class Separate(nn.Module):
    """Leaves that are decoders of their own, of one kind or of several.

    Args:
        decoders: The leaves, one for each component.
    """

    def __init__(self, decoders: Sequence[Leaf]) -> None:
        super().__init__()
        self.decoders = nn.ModuleList()
        for decoder in decoders:
            if not isinstance(decoder, nn.Module):
                raise DomainError(f"{type(decoder).__name__} has to be a module: the circuit owns its parameters")
            self.decoders.append(decoder)
        self.components = len(self.decoders)

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for leaf in self.decoders if isinstance(leaf, Leaf)]

    def forward(self, z: Tensor) -> td.Distribution:
        """The leaves' distributions of each output, of batch shape `(*batch, *event_shape, components)`."""
        distributions = []
        for leaf in self.leaves:
            distributions.append(outputs_of(leaf(z)))
        return Stacked(distributions)

    def expected_log_probs(self, x: Tensor, q: td.Distribution) -> Tensor:
        """E_q[log p(x_o|z)] of each output and component, `(*batch, outputs, components)`."""
        return torch.stack([leaf.expected_log_probs(x, q) for leaf in self.leaves], -1)

    def start(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        """Starts the leaves of each output and component; the weights are `(outputs, components, latent_dim)`."""
        for k, leaf in enumerate(self.leaves):
            _startable(leaf).start_outputs(means[:, k], variances[:, k], weights[:, k])

    def exactness(self, q: td.Distribution) -> Exactness:
        found = [leaf.exactness(q) for leaf in self.leaves]
        for worst in (Exactness.APPROXIMATION, Exactness.LOWER_BOUND):
            if worst in found:
                return worst
        return Exactness.EXACT


def _startable(leaf: Leaf) -> Startable:
    if not isinstance(leaf, Startable):
        raise IntractableError(f"{type(leaf).__name__} has no start_outputs, so it cannot start from data")
    return leaf


def outputs_of(distribution: td.Distribution) -> td.Distribution:
    """The distribution of each output by itself."""
    if not isinstance(distribution, td.Independent):
        raise IntractableError(f"a leaf's outputs have to be td.Independent given z, got {type(distribution).__name__}")
    return distribution.base_dist


class Stacked(td.Distribution):
    """Several distributions of one batch shape side by side, in a last batch dimension.

    Args:
        members: The distributions, of single numbers.
    """

    arg_constraints: ClassVar = {}

    def __init__(self, members: Sequence[td.Distribution]) -> None:
        self.members = list(members)
        shape = torch.Size()
        for member in self.members:
            shape = torch.broadcast_shapes(shape, member.batch_shape)
        super().__init__(torch.Size((*shape, len(self.members))), validate_args=False)

    @property
    def support(self) -> constraints.Constraint | None:
        return self.members[0].support

    @property
    def mean(self) -> Tensor:
        return torch.stack([member.mean for member in self.members], -1)

    @property
    def variance(self) -> Tensor:
        return torch.stack([member.variance for member in self.members], -1)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "Stacked":
        shape = torch.Size(batch_shape[:-1])
        return Stacked([member.expand(shape) for member in self.members])

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = torch.Size(sample_shape)
        return torch.stack([member.sample(shape) for member in self.members], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        parts = value.expand(*value.shape[:-1], len(self.members)).unbind(-1)
        log_probs = []
        for member, part in zip(self.members, parts, strict=True):
            log_probs.append(member.log_prob(part))
        return torch.stack(log_probs, -1)
