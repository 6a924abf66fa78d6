r"""A probabilistic circuit over the outputs, with leaves and weights that are linear in z.

As a function of its leaves' log-densities :math:`a_l = \log p_l(x_o|z)` the logarithm of a circuit is made of sums and
of :math:`\log \sum_k w_k e^{(\cdot)}`, each convex and non-decreasing. So it is convex, and by Jensen's inequality

.. math:: E_q[\log C(a(z))] \ge \log C(E_q[a(z)]):

one evaluation of the circuit at the expected leaves is a lower bound of the expected log-likelihood, without a sample.
For weights :math:`w(z) = \mathrm{softmax}(l)` the same holds of :math:`\log \sum e^{l + a}`, and Jensen's inequality
for the logarithm gives :math:`E[\log \sum e^l] \le \log \sum E[e^l]`: a node of the bound is
:math:`\log \sum_k e^{E l_k + E a_k} - \log \sum_k E[e^{l_k}]`. It is exact where q has no variance.

A mixture per output, per group of outputs or per example is a circuit without a tree.

References:
    Peharz et al. (2020), Einsum networks: fast and scalable learning of tractable probabilistic circuits.
    Correia et al. (2023), Continuous mixtures of tractable probabilistic models.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.checks import (
    event_of,
    flattened_latent,
    require_dtype,
    require_number,
    require_wide,
    whole_levels,
)
from silentgrad.decoders.context import Context, causal_order, start_contexts, told_of
from silentgrad.decoders.discretized import DiscretizedLogistic
from silentgrad.decoders.drawing import CircuitDistribution, of_regions
from silentgrad.decoders.gates import LinearGate
from silentgrad.decoders.gaussian import StandardizedGaussian
from silentgrad.decoders.leaves import leaves_of
from silentgrad.decoders.protocol import Leaf
from silentgrad.decoders.region_graphs import Per, RegionGraph, default_region_graph, groups_of, separate
from silentgrad.decoders.starts import clusters, leaf_starts, require_examples, shares_of
from silentgrad.decoders.sums import Fold, Gate, SumProduct, gate_at, weighed
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.exactness import Exactness, weakest
from silentgrad.latents.generating import moments_of
from silentgrad.latents.independent import base_of
from silentgrad.side_info import SideInfo
from silentgrad.tracing import widened, widened_latent

Gates = Literal["leaves", "all", "none"]


def firsts_of(outputs: Fold, event_shape: torch.Size) -> Tensor:
    """Return the output of each region that comes first in the causal order."""
    rank = causal_order(event_shape).argsort()[outputs.rows]
    first = {}
    for place in rank.argsort(descending=True).tolist():
        first[int(outputs.owners[place])] = int(outputs.rows[place])
    return torch.tensor([first[region] for region in range(outputs.count)])


class Circuit(nn.Module):
    """p(x|z) as a circuit: leaves of every output, then products and sums over a region graph.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        components: Number of leaves of each output, and of nodes of each region.
        region_graph: The regions; if absent a quad-tree for images, a binary tree for vectors.
        gates: Whose sums have weights linear in z: regions that hold outputs ("leaves"), "all" or "none".
        leaves: One decoder of event shape `(*event_shape, components)`, or a list of as many decoders of `event_shape`;
            if absent, Gaussians whose mean is linear in z; see `StandardizedGaussian`.
        proxy: Whether the gates of Bernoulli and one-hot latents take the sub-Gaussian proxy; see `LinearGate`.
        noise: Noise of the Gaussian leaves, integrated out of the bound; see `StandardizedGaussian`.
        context: Features of each output by earlier ones, which shift the leaves and weigh them; see `CausalContext`.

    Example:
        >>> decoder = Circuit(2, (1, 28, 28), components=4)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.zeros(5, 1, 28, 28), q).shape
        torch.Size([5])
        >>> decoder.exactness(q)
        <Exactness.LOWER_BOUND: 'lower bound'>
    """

    firsts: Tensor | None

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        components: int = 8,
        region_graph: RegionGraph | None = None,
        gates: Gates = "leaves",
        leaves: Leaf | Sequence[Leaf] | None = None,
        proxy: bool = True,
        noise: float = 0.0,
        context: Context | None = None,
    ) -> None:
        super().__init__()
        if components < 1:
            raise DomainError(f"a circuit needs components, got {components}")
        if gates not in ("leaves", "all", "none"):
            raise DomainError(f"gates have to be 'leaves', 'all' or 'none', got {gates!r}")
        self.latent_dim, self.components = latent_dim, components
        self.event_shape = event_of(event_shape)
        if leaves is None:
            leaves = StandardizedGaussian(latent_dim, (*self.event_shape, components), noise, context)
        elif noise or context is not None:
            raise DomainError("noise and context belong to the leaves that were given: build them with it")
        if region_graph is None:
            region_graph = default_region_graph(self.event_shape)
        region_graph.require(self.event_shape.numel())
        self.region_graph = region_graph
        self.leaves = leaves_of(leaves, latent_dim, self.event_shape, components)
        self.network = SumProduct(region_graph, components)
        self.register_buffer("firsts", None, persistent=False)
        if self.leaves.weighed and not any(layer.holds_outputs for layer in self.network.layers[1:]):
            self.firsts = firsts_of(self.network.layers[0].over_outputs, self.event_shape)
        self.gates = nn.ModuleDict()
        for position, layer in enumerate(self.network.layers):
            if components > 1 and (gates == "all" or (gates == "leaves" and layer.holds_outputs)):
                self.gates[str(position)] = LinearGate(latent_dim, layer.regions, components, proxy)

    def _gates(self) -> Iterator[tuple[int, LinearGate]]:
        """Return the gates, and the positions of their layers."""
        for position, gate in self.gates.items():
            assert isinstance(gate, LinearGate)
            yield int(position), gate

    def forward(self, z: Tensor) -> CircuitDistribution:
        """p(x|z) for latents of shape `(*batch, latent_dim)`, or those of a one-hot latent."""
        with torch.autocast(z.device.type, enabled=False):
            flat = self._flattened(widened(z))
            logits: list[Tensor | None] = [None] * len(self.network.layers)
            for position, gate in self._gates():
                logits[position] = gate(flat)
            dims = len(self.event_shape)
            return CircuitDistribution(self.leaves(flat), self.network, logits, dims, None, self.firsts)

    def _flattened(self, z: Tensor, examples: torch.Size | None = None) -> Tensor:
        """Return latents as `(*batch, latent_dim)`, in the circuit's precision."""
        require_wide(self.network.dtype)
        require_dtype("the latent", z, self.network.dtype)
        return flattened_latent(z, self.latent_dim, examples)

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        """Return a lower bound of E_q[log p(x|z)], one number per example, without drawing anything.

        Args:
            x: Examples `(*batch, *event_shape)`.
            q: Their latents, of any family for which the leaves are tractable.
        """
        leaves, gates = self.expectations(x, q)
        result = self.network(leaves, gates).reshape(self.batch_of(x))
        inputs = {"x": x, "the latent": moments_of(q).mean, **dict(self.named_parameters(prefix="decoder"))}
        require_number(result, inputs)
        return result

    def given(self, side_info: SideInfo) -> Self:
        """Return p(x|z) given what the leaves' context is told: a decoder of this batch, with the same parameters."""
        return told_of(self, side_info, next(self.parameters()))

    def batch_of(self, x: Tensor) -> torch.Size:
        """Return the shape of the examples in x, `(*batch,)`."""
        at = max(0, x.dim() - len(self.event_shape))
        if x.shape[at:] != self.event_shape:
            raise ShapeError(f"expected examples of shape {tuple(self.event_shape)}, got x of shape {tuple(x.shape)}")
        return x.shape[:at]

    def expectations(self, x: Tensor, q: td.Distribution) -> tuple[Tensor, list[Gate | None]]:
        """Return the expected leaves `(batch, outputs, components)` and the gates of every layer."""
        batch, q = self.batch_of(x), widened_latent(q)
        with torch.autocast(x.device.type, enabled=False):
            moments = moments_of(q)
            mean = self._flattened(moments.mean, batch)
            require_dtype("x", widened(x), self.network.dtype)
            leaves, weights = self.leaves.expected(widened(x), q)
            gates: list[Gate | None] = [None] * len(self.network.layers)
            for position, gate in self._gates():
                gates[position] = gate.expected(mean, moments, q)
            gates[0] = self._weighed(gates[0], weights, batch)
        return leaves.reshape(batch.numel(), *leaves.shape[-2:]), gates

    def _weighed(self, gate: Gate | None, weights: Tensor | None, batch: torch.Size) -> Gate | None:
        """Return the gate of the deepest regions with what a context adds to its logits."""
        if weights is None or self.firsts is None:
            return gate
        every = weights.expand(*batch, *self.event_shape, self.components)
        return weighed(gate, of_regions(every, self.firsts, self.event_shape))

    def statistics(self, x: Tensor, z: Tensor) -> list[Tensor]:
        """Return log-densities of leaves `(*batch, outputs, components)` and logits `(*batch, regions, components)`."""
        p = self(self._flattened(widened(z), self.batch_of(x)))
        leaves = p.leaves.log_prob(widened(x).unsqueeze(-1))
        logits = [own for own in p.logits if own is not None]
        return [leaves.reshape(*self.batch_of(x), -1, self.components), *logits]

    def expected_statistics(self, x: Tensor, q: td.Distribution) -> list[Tensor]:
        """Return expectations of the `statistics`; logits are linear in z.

        Raises:
            IntractableError: The leaves have no exact expectation for this latent.
        """
        if self.leaves.exactness(q) is not Exactness.EXACT:
            name = type(base_of(q)).__name__
            raise IntractableError(f"the leaves have no exact expectation for {name} latents: take Gaussian leaves")
        q = widened_latent(q)
        with torch.autocast(x.device.type, enabled=False):
            mean = self._flattened(moments_of(q).mean, self.batch_of(x))
            return [self.leaves.expected(widened(x), q)[0], *(gate(mean) for _, gate in self._gates())]

    def log_prob_from(self, x: Tensor, statistics: Sequence[Tensor]) -> Tensor:
        """Return the logarithm of the circuit from the `statistics`, one number per example."""
        leaves, *logits = statistics
        batch = self.batch_of(x)
        gates: list[Gate | None] = [None] * len(self.network.layers)
        for (position, _), own in zip(self._gates(), logits, strict=True):
            gates[position] = gate_at(own)
        gates[0] = self._weighed(gates[0], self.leaves.weights(widened(x)), batch)
        return self.network(leaves.reshape(-1, *leaves.shape[-2:]), gates).reshape(batch)

    def init_from_data(self, data: Tensor) -> None:
        """Start leaves and gates from data, without manual tuning: see `silentgrad.decoders.starts`.

        Args:
            data: Examples `(examples, *event_shape)` as the model sees them.
        """
        require_examples(data, self.event_shape)
        for leaf in self.leaves.modules():
            if isinstance(leaf, DiscretizedLogistic):
                whole_levels(data, leaf.levels - 1)
        start_contexts(self, data)
        flat = data.flatten(1)
        found = clusters(flat, self.components, shared=len(self.event_shape) > 1)
        self.leaves.start(*leaf_starts(found, flat, self.latent_dim))
        shares = shares_of(found, flat)
        for position, gate in self._gates():
            layer = self.network.layers[position]
            if layer.holds_outputs:
                gate.start(layer.over_outputs(shares.log()))

    def exactness(self, q: td.Distribution) -> Exactness:
        """Return a lower bound, unless the leaves' expectations are less; with a single component what they are."""
        of_leaves = self.leaves.exactness(q)
        if self.components == 1:
            return of_leaves
        return weakest(of_leaves, Exactness.LOWER_BOUND)

    def extra_repr(self) -> str:
        return f"{self.latent_dim}, {tuple(self.event_shape)}, components={self.components}"


class Mixture(Circuit):
    """p(x|z) as a product of mixtures, whose weights are constant or linear in z; a circuit without a tree.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        components: Number of components of each mixture.
        per: What is mixed by itself: every "output", every "pixel" with its colors, the whole "example", or every
            group of a list of groups of outputs, numbered as in a flattened example.
        gates: Whether the weights are linear in z.
        leaves: As for `Circuit`, and so are the arguments that follow.

    Example:
        >>> decoder = Mixture(2, (3, 8, 8), per="pixel")
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> x = torch.zeros(5, 3, 8, 8)
        >>> decoder.expected_log_prob(x, q).shape
        torch.Size([5])
        >>> decoder.responsibilities(x, q).shape
        torch.Size([5, 8, 8, 3])
    """

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        components: int = 3,
        per: Per | Sequence[Sequence[int]] = "output",
        gates: bool = True,
        leaves: Leaf | Sequence[Leaf] | None = None,
        proxy: bool = True,
        noise: float = 0.0,
        context: Context | None = None,
    ) -> None:
        shape = event_of(event_shape)
        groups, self.groups_shape = groups_of(shape, per)
        which: Literal["leaves", "none"] = "none"
        if gates:
            which = "leaves"
        super().__init__(latent_dim, shape, components, separate(groups), which, leaves, proxy, noise, context)

    def responsibilities(self, x: Tensor, q: td.Distribution) -> Tensor:
        """Return the posterior of the components given x, where the bound is best.

        Args:
            x: Examples `(*batch, *event_shape)`.
            q: Their latents.

        Returns:
            `(*batch, *event_shape, components)` for mixtures per output, `(*batch, height, width, components)` per
            pixel, `(*batch, components)` per example, `(*batch, groups, components)` per group.
        """
        posterior = self.network.posterior(*self.expectations(x, q))
        return posterior.reshape(*self.batch_of(x), *self.groups_shape, self.components)
