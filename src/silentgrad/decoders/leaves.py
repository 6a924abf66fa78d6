r"""The distributions of a circuit: those of its leaves, and p(x|z) that they make together.

Leaves are several tractable decoders of the same outputs, together in one or one by one.

Of every output the circuit's marginal is a mixture of its leaves, with probabilities :math:`\pi_k` that follow from the
weights alone, so its mean is :math:`\sum_k \pi_k \mu_k` and, by the law of total variance, its variance :math:`\sum_k
\pi_k (\sigma_k^2 + \mu_k^2) - (\sum_k \pi_k \mu_k)^2`. A sample is drawn from the roots downwards: a component of each
region, which is the node of each of its parts, and at last a value of the chosen leaf.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.distributions import constraints

from silentgrad.decoders.context import Causal
from silentgrad.decoders.gaussian import StandardizedDecoder
from silentgrad.decoders.linear import require_dtype
from silentgrad.decoders.protocol import Leaf, Startable
from silentgrad.decoders.sums import Gate, SumProduct, gate_at, weighed
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.exactness import Exactness, weakest
from silentgrad.tracing import widened


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


class CircuitDistribution(td.Distribution):
    """A circuit whose leaves are any distributions: those of a tractable decoder, or of a network of your own.

    Args:
        leaves: Distributions of batch shape `(*batch, *event_shape, components)`.
        network: The products and sums.
        logits: The gate's logits `(*batch, regions, components)`, or None, for each of its layers.
        event_dims: Number of dimensions of one example.
        firsts: The first output of each of the deepest regions, whose context weighs the region's leaves.

    Example:
        >>> from silentgrad.decoders import Circuit
        >>> p = Circuit(2, (4, 4), components=3)(torch.zeros(5, 2))
        >>> p.batch_shape, p.event_shape, p.sample((7,)).shape
        (torch.Size([5]), torch.Size([4, 4]), torch.Size([7, 5, 4, 4]))
    """

    arg_constraints: ClassVar = {}

    def __init__(
        self,
        leaves: td.Distribution,
        network: SumProduct,
        logits: Sequence[Tensor | None],
        event_dims: int,
        validate_args: bool | None = None,
        firsts: Tensor | None = None,
    ) -> None:
        require_single(leaves)
        self.leaves, self.network, self.logits, self.firsts = leaves, network, list(logits), firsts
        shape = leaves.batch_shape[:-1]
        at = len(shape) - event_dims
        super().__init__(shape[:at], shape[at:], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(self.leaves.support, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "CircuitDistribution":
        batch = torch.Size(batch_shape)
        leaves = self.leaves.expand(batch + self.event_shape + self.leaves.batch_shape[-1:])
        logits = [None if own is None else own.expand(*batch, *own.shape[-2:]) for own in self.logits]
        dims = len(self.event_shape)
        return CircuitDistribution(leaves, self.network, logits, dims, self._validate_args, self.firsts)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args and value.numel() > 0:  # torch cannot check a support over no examples
            self._validate_sample(value)
        value = widened(value)
        require_dtype("x", value, self.network.dtype)
        weights: Tensor | None = None
        if isinstance(self.leaves, Causal):
            found, weights = self.leaves.weighed(value.unsqueeze(-1))
        else:
            found = self.leaves.log_prob(value.unsqueeze(-1))
        outputs = widened(found)
        batch = outputs.shape[: outputs.dim() - 1 - len(self.event_shape)]
        rows = outputs.reshape(math.prod(batch), self.event_shape.numel(), outputs.shape[-1])
        gates = self._gates(batch)
        if weights is not None and self.firsts is not None:
            gates[0] = weighed(gates[0], of_regions(weights.expand(outputs.shape), self.firsts, self.event_shape))
        return self.network(rows, gates).reshape(batch)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with torch.no_grad():
            whole = torch.Size(sample_shape) + self.batch_shape
            if isinstance(self.leaves, Causal):  # the components from the roots down, then the outputs in order
                leaves = self.leaves.expand(whole + self.leaves.batch_shape[len(self.batch_shape) :])
                if self.firsts is not None:
                    return leaves.sample_of(_Chosen(self, whole, self.firsts))
                drawn = self._drawn(whole)
                return leaves.sample_of(lambda weights, front: drawn)
            values = self.leaves.sample(torch.Size(sample_shape))
            return values.gather(-1, self._drawn(whole)).squeeze(-1)

    def _drawn(self, batch: torch.Size) -> Tensor:
        """Return a component of each output, `(*batch, *event_shape, 1)`."""
        return self.network.draw(self._gates(batch), math.prod(batch)).reshape(*batch, *self.event_shape, 1)

    @property
    def mean(self) -> Tensor:
        return (self._chances() * self.leaves.mean).sum(-1)

    @property
    def variance(self) -> Tensor:
        within = (self._chances() * self.leaves.variance).sum(-1)
        between = (self._chances() * (self.leaves.mean - self.mean.unsqueeze(-1)).square()).sum(-1)
        return within + between

    def _chances(self) -> Tensor:
        """Return the probability of each leaf, `(*batch, *event_shape, components)`."""
        batch = self.batch_shape
        return self.network.chances(self._gates(batch), math.prod(batch)).reshape(self.leaves.batch_shape)

    def _gates(self, batch: torch.Size) -> list[Gate | None]:
        return [None if own is None else gate_at(own.expand(*batch, *own.shape[-2:])) for own in self.logits]


def of_regions(weights: Tensor, firsts: Tensor, event_shape: torch.Size) -> Tensor:
    """Return logits `(regions, components, batch)` from those of outputs, `(*batch, *event_shape, components)`."""
    rows = weights.reshape(-1, event_shape.numel(), weights.shape[-1])
    return rows[:, firsts].permute(1, 2, 0)


class _Chosen:
    """The leaf of each output, drawn when the first output of its region is next and the context there is known."""

    def __init__(self, p: CircuitDistribution, batch: torch.Size, firsts: Tensor) -> None:
        self.p, self.firsts = p, firsts
        self.gates = p._gates(batch)
        self.layer = p.network.layers[0]
        self.nodes, _ = p.network.draw_nodes(self.gates, batch.numel())
        self.leaves = firsts.new_zeros((*batch, *p.event_shape, 1))

    def __call__(self, weights: Tensor | None, front: Tensor) -> Tensor:
        gate = self.gates[0]
        if weights is not None:
            every = weights.expand(*self.leaves.shape[:-1], weights.shape[-1])
            gate = weighed(gate, of_regions(every, self.firsts, self.p.event_shape))
        now = torch.isin(self.firsts, front)
        drawn = self.layer.draw(self.nodes, gate)
        over = self.layer.over_outputs
        rows = over.rows[over.spread(now)]
        flat = self.leaves.view(-1, self.p.event_shape.numel())
        flat[:, rows] = over.spread(drawn)[over.spread(now)].T
        return self.leaves
