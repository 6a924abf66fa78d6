"""The leaves of a circuit: several tractable decoders of the same outputs, together in one or one by one."""

import contextlib
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.distributions import constraints

from silentgrad.decoders.protocol import Leaf, Startable
from silentgrad.decoders.standardized import StandardizedDecoder
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.exactness import Exactness, weakest


def leaves_of(
    leaves: Leaf | Sequence[Leaf], latent_dim: int, event_shape: torch.Size, components: int
) -> "Together | Separate":
    """Check that leaves fit each other and the circuit; see `Circuit` for what they may be."""
    if isinstance(leaves, Sequence):
        if len(leaves) != components:
            raise ShapeError(f"{components} components, but {len(leaves)} leaves")
        for leaf in leaves:
            _require(leaf, latent_dim, event_shape)
        _require_one_measure(leaves)
        return Separate(leaves)
    _require(leaves, latent_dim, torch.Size((*event_shape, components)))
    _outputs_at_zero(leaves)
    return Together(leaves)


def _outputs_at_zero(leaf: Leaf) -> td.Distribution:
    """Return a leaf's distribution of each output at z = 0, once it was found to have one."""
    like = torch.empty(0)
    if isinstance(leaf, nn.Module):
        like = next(leaf.parameters(), like)
    with torch.no_grad():
        return outputs_of(leaf(like.new_zeros(1, leaf.latent_dim)))


def _require_one_measure(leaves: Sequence[Leaf]) -> None:
    """Raise if some leaves have probabilities and others densities, which cannot be weighed against each other."""
    names: dict[bool, str] = {}
    for leaf in leaves:
        outputs = _outputs_at_zero(leaf)
        with contextlib.suppress(NotImplementedError):  # torch's word for a distribution that declares no support
            support = outputs.support
            if support is not None:
                names[support.is_discrete] = type(outputs).__name__
    if len(names) > 1:
        raise DomainError(
            f"leaves mix probabilities ({names[True]}) with densities ({names[False]}): a density changes with the "
            "unit of x, and a probability does not, so their sum is neither. Choose leaves of one kind: "
            "DiscretizedLogistic for levels, Normal or Logistic for dequantized or real numbers"
        )


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
    """All leaves in one decoder, whose event has the components as its last dimension: the fastest way."""

    def __init__(self, decoder: Leaf) -> None:
        super().__init__()
        self.decoder = decoder
        self.components = decoder.event_shape[-1]

    def forward(self, z: Tensor) -> td.Distribution:
        """Return the leaves' distributions of each output, of batch shape `(*batch, *event_shape, components)`."""
        return outputs_of(self.decoder(z))

    def expected(self, x: Tensor, q: td.Distribution) -> tuple[Tensor, Tensor | None]:
        """Return E_q[log p(x_o|z)], `(*batch, outputs, components)`, and what a context adds to the leaves' logits."""
        repeated = x.unsqueeze(-1).expand(*x.shape, self.components)
        expected, weights = _expected(self.decoder, repeated, q)
        return expected.unflatten(-1, (-1, self.components)), weights

    @property
    def weighed(self) -> bool:
        """Return whether a context weighs the leaves of an output against each other."""
        return (
            isinstance(self.decoder, StandardizedDecoder) and self.decoder.context is not None and self.components > 1
        )

    def weights(self, x: Tensor) -> Tensor | None:
        """Return what a context adds to the logits of leaves, `(*batch, *event_shape, components)`."""
        if not isinstance(self.decoder, StandardizedDecoder):
            return None
        return self.decoder.weights_at(self.decoder.features_at(x))

    def start(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        """Start the leaves of each output and component; the weights are `(outputs, components, latent_dim)`."""
        _startable(self.decoder).start_outputs(means.flatten(), variances.flatten(), weights.flatten(0, 1))

    def exactness(self, q: td.Distribution) -> Exactness:
        return self.decoder.exactness(q)


class Separate(nn.Module):
    """Leaves that are decoders of their own, one for each component, of one kind or of several."""

    def __init__(self, decoders: Sequence[Leaf]) -> None:
        super().__init__()
        for decoder in decoders:
            if not isinstance(decoder, nn.Module):
                raise DomainError(f"{type(decoder).__name__} has to be a module: the circuit owns its parameters")
        self.decoders = nn.ModuleList(decoders)  # type: ignore[arg-type]
        self.components = len(self.decoders)

    weighed = False

    def weights(self, x: Tensor) -> Tensor | None:
        """Return nothing: each context belongs to one leaf."""
        return None

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for leaf in self.decoders if isinstance(leaf, Leaf)]

    def forward(self, z: Tensor) -> td.Distribution:
        """Return the leaves' distributions of each output, of batch shape `(*batch, *event_shape, components)`."""
        return Stacked([outputs_of(leaf(z)) for leaf in self.leaves])

    def expected(self, x: Tensor, q: td.Distribution) -> tuple[Tensor, Tensor | None]:
        """Return E_q[log p(x_o|z)], `(*batch, outputs, components)`; each context weighs nothing but its own leaf."""
        return torch.stack([_expected(leaf, x, q)[0] for leaf in self.leaves], -1), None

    def start(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        """Start the leaves of each output and component; the weights are `(outputs, components, latent_dim)`."""
        for k, leaf in enumerate(self.leaves):
            _startable(leaf).start_outputs(means[:, k], variances[:, k], weights[:, k])

    def exactness(self, q: td.Distribution) -> Exactness:
        return weakest(*(leaf.exactness(q) for leaf in self.leaves))


def _startable(leaf: Leaf) -> Startable:
    if not isinstance(leaf, Startable):
        raise IntractableError(f"{type(leaf).__name__} has no start_outputs, so it cannot start from data")
    return leaf


def _expected(leaf: Leaf, x: Tensor, q: td.Distribution) -> tuple[Tensor, Tensor | None]:
    if isinstance(leaf, StandardizedDecoder):
        return leaf.expected_in_context(x, q)
    return leaf.expected_log_probs(x, q), None


def outputs_of(distribution: td.Distribution) -> td.Distribution:
    """Return the distribution of each output by itself."""
    if not isinstance(distribution, td.Independent):
        raise IntractableError(f"a leaf's outputs have to be td.Independent given z, got {type(distribution).__name__}")
    require_single(distribution.base_dist)
    return distribution.base_dist


def require_single(outputs: td.Distribution) -> None:
    """Raise if a distribution has one probability for several outputs, which a circuit would count for each."""
    if outputs.event_shape:
        raise IntractableError(
            f"a leaf needs a probability for each output, and {type(outputs).__name__} has one for every "
            f"{outputs.event_shape.numel()} of them: take a likelihood of single outputs"
        )


class Stacked(td.Distribution):
    """Several distributions of single numbers side by side, in a last batch dimension."""

    arg_constraints: ClassVar = {}

    def __init__(self, members: Sequence[td.Distribution]) -> None:
        self.members = list(members)
        shape = torch.broadcast_shapes(*(member.batch_shape for member in self.members))
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
        return torch.stack([member.log_prob(part) for member, part in zip(self.members, parts, strict=True)], -1)
