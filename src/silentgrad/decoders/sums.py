r"""A circuit as a function of the logarithms of its leaves, one level after the other.

The same function serves p(x|z), where the leaves are log-densities at one z, and the bound, where they are expected
ones. Read from the roots downwards it also says how likely an output has each of its leaves, and draws them.

**A level** has sum nodes over its regions, and product nodes below them. With the logarithms :math:`a_k` of a region's
products, node j is

.. math:: \log \sum_k w_{jk} e^{l_k + a_k} - \log \sum_k w_{jk} e^{L_k},

where :math:`l = L` are the logits of a gate at one z, or :math:`E\,l \le L` bounds :math:`\log E[e^l]` under q; without
a gate both are zero. Both sums are a matrix product of exponentials around their largest exponent, as in einsum
networks. Weights are mixed with a trace of the uniform ones, so the largest exponent always counts, and neither
the logarithm nor its derivative leaves the range of numbers; nor does the quotient of the two sums, of which one
logarithm serves both.

References:
    Peharz et al. (2020), Einsum networks: fast and scalable learning of tractable probabilistic circuits.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from silentgrad.decoders.region_graphs import Level, RegionGraph
from silentgrad.tracing import transformed, widened

TRACE = 1e-12  # of the uniform weights
SPREAD = 1.0  # of the logits at the start: equal nodes would stay equal


class Gate(NamedTuple):
    """Logits that depend on z: E l and a bound of log E[e^l], at one z both l itself.

    Each is `(regions, components, batch)`.
    """

    expected: Tensor
    log_mass: Tensor


def weighed(gate: Gate | None, logits: Tensor) -> Gate:
    """Return a gate with logits `(regions, components, batch)` added that z does not change."""
    if gate is None:
        return Gate(logits, logits)
    return Gate(gate.expected + logits, gate.log_mass + logits)


def gate_at(logits: Tensor) -> Gate:
    """Return the gate at one z for each example, from logits `(*batch, regions, components)`."""
    rows = logits.reshape(math.prod(logits.shape[:-2]), *logits.shape[-2:])
    at_z = widened(rows.permute(1, 2, 0).contiguous())
    return Gate(at_z, at_z)


class Mixed(NamedTuple):
    """The sums sum_k w_jk e^{a_k - top}, `(regions, nodes, batch)`, and the top, `(regions, 1, batch)`."""

    sums: Tensor
    top: Tensor


def mix(weights: Tensor, exponents: Tensor) -> Mixed:
    """Return the sums of exponentials `(regions, components, batch)`, weighted by `(regions, nodes, components)`."""
    top = exponents.detach().amax(1, keepdim=True)
    return Mixed(weights @ (exponents - top).exp(), top)


class SumLayer(nn.Module):
    """Products over the members of each region of a level, and `nodes` sums that mix its `components` products."""

    def __init__(self, level: Level, nodes: int, components: int) -> None:
        super().__init__()
        self.regions = level.regions
        self.holds_outputs = len(level.outputs) > 0
        self.logits = nn.Parameter(SPREAD * torch.randn(level.regions, nodes, components))
        self.over_outputs = Fold(level.outputs, level.output_owners, level.regions)
        self.over_parts = Fold(level.parts, level.part_owners, level.regions)

    def weights(self) -> Tensor:
        """Return the constant weights `(regions, nodes, components)`, which add to one over the components."""
        return (1 - TRACE) * self.logits.softmax(-1) + TRACE / self.logits.shape[-1]

    def products(self, leaves: Tensor, below: Tensor | None) -> Tensor:
        """Return the logarithms of the product nodes, `(regions, components, batch)`."""
        if below is None:
            return self.over_outputs(leaves)
        if not self.holds_outputs:
            return self.over_parts(below)
        return self.over_outputs(leaves) + self.over_parts(below)

    def forward(self, products: Tensor, gate: Gate | None) -> Tensor:
        """Return the logarithms of the sum nodes, `(regions, nodes, batch)`."""
        weights = self.weights()
        if gate is None:
            mixed = mix(weights, products)
            return mixed.sums.log() + mixed.top
        mixed = mix(weights, products + gate.expected)
        mass = mix(weights, gate.log_mass)
        return (mixed.sums / mass.sums).log() + (mixed.top - mass.top)

    def chances(self, gate: Gate | None) -> Tensor:
        """Return the probability of each component in each node, `(regions, nodes, components, batch or 1)`."""
        log_weights = self.weights().log().unsqueeze(-1)
        if gate is None:
            return log_weights.exp()
        return (log_weights + gate.expected.unsqueeze(1)).softmax(2)

    def draw(self, nodes: Tensor, gate: Gate | None) -> Tensor:
        """Return a component of each region's chosen node, `(regions, batch)`."""
        chances = self.chances(gate).expand(-1, -1, -1, nodes.shape[-1])
        picked = nodes[:, None, None].expand(-1, 1, chances.shape[2], -1)
        of_node = chances.gather(1, picked).squeeze(1).movedim(1, -1)
        return torch.multinomial(of_node.flatten(0, 1), 1).view(nodes.shape)


class Fold(nn.Module):
    """Sums over the rows that belong to one of `count` owners; rows are listed owner by owner."""

    rows: Tensor
    owners: Tensor
    inverse: Tensor

    def __init__(self, rows: Sequence[int], owners: Sequence[int], count: int) -> None:
        super().__init__()
        self.count, self.each = count, len(rows) // count
        self.even = list(owners) == [position // max(1, self.each) for position in range(count * self.each)]
        self.in_place = list(rows) == list(range(len(rows)))
        self.register_buffer("rows", torch.tensor(rows, dtype=torch.long), persistent=False)
        self.register_buffer("owners", torch.tensor(owners, dtype=torch.long), persistent=False)
        self.register_buffer("inverse", self.rows.argsort(), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return the sum of the values of each owner's rows."""
        own = self._own(values)
        if self.even and self.each == 1:
            return own
        if self.even:
            return own.unflatten(0, (self.count, self.each)).sum(1)
        return own.new_zeros(self.count, *own.shape[1:]).index_add(0, self.owners, own)

    def _own(self, values: Tensor) -> Tensor:
        """Return the values of the rows, owner by owner."""
        if len(values) > len(self.rows):
            return values.index_select(0, self.rows)
        if self.in_place:
            return values
        if transformed():
            return values.index_select(0, self.rows)
        return _Permuted.apply(values, self.rows, self.inverse)

    def spread(self, owned: Tensor) -> Tensor:
        """Return the owner's value for each row, owner by owner."""
        return owned.index_select(0, self.owners)

    def handed_down(self, owned: Tensor) -> Tensor:
        """Return the owner's value for each row, in the order of the rows."""
        return self.spread(owned).index_select(0, self.inverse)


class _Permuted(torch.autograd.Function):
    """Rows in another order, and back; torch's own derivative would add the rows up one by one."""

    @staticmethod
    def forward(values: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return values.index_select(0, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _, ctx.order, ctx.inverse = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Permuted.apply(grad, ctx.inverse, ctx.order), None, None


class SumProduct(nn.Module):
    """Alternating products and sums over a region graph.

    Args:
        region_graph: The regions, over all outputs.
        components: Number of leaves of an output, and of nodes of a region.
    """

    positions: Tensor

    def __init__(self, region_graph: RegionGraph, components: int) -> None:
        super().__init__()
        levels = region_graph.levels()
        outputs = [output for level in levels for output in level.outputs]
        self.levels = nn.ModuleList(SumLayer(level, components, components) for level in levels[:-1])
        self.levels.append(SumLayer(levels[-1], 1, components))
        self.register_buffer("positions", torch.tensor(outputs).argsort(), persistent=False)

    @property
    def layers(self) -> list[SumLayer]:
        """One for each level of the region graph, the deepest first."""
        return [layer for layer in self.levels if isinstance(layer, SumLayer)]

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def forward(self, leaves: Tensor, gates: Sequence[Gate | None]) -> Tensor:
        """Return the logarithm of the circuit, `(batch,)`, from leaves `(batch, outputs, components)`."""
        rows = _outputs_first(leaves)
        below: Tensor | None = None
        with torch.autocast(leaves.device.type, enabled=False):
            for layer, gate in zip(self.layers, gates, strict=True):
                below = layer(layer.products(rows, below), gate)
        assert below is not None
        return below.sum((0, 1))

    def posterior(self, leaves: Tensor, gates: Sequence[Gate | None]) -> Tensor:
        """Return each component's probability given x, `(batch, regions, components)`, if there is a single level."""
        (layer,), (gate,) = self.layers, gates
        joint = layer.products(_outputs_first(leaves), None) + layer.weights().log().transpose(1, 2)
        if gate is not None:
            joint = joint + gate.expected
        return joint.softmax(1).movedim(-1, 0)

    def chances(self, gates: Sequence[Gate | None], batch: int) -> Tensor:
        """Return the probability of each output's leaves, `(batch, outputs, components)`."""
        parts: list[Tensor] = []
        nodes = torch.ones(1, 1, batch, dtype=self.dtype, device=self.positions.device)
        for layer, gate in self._downwards(gates):
            nodes = nodes.expand(layer.regions, -1, -1)
            components = (nodes.unsqueeze(2) * layer.chances(gate)).sum(1)
            parts.append(layer.over_outputs.spread(components))
            nodes = layer.over_parts.handed_down(components)
        return self._unordered(parts)

    def draw(self, gates: Sequence[Gate | None], batch: int) -> Tensor:
        """Return a leaf for each output, `(batch, outputs, 1)`, drawn from the roots downwards."""
        nodes, parts = self.draw_nodes(gates, batch)
        deepest = self.layers[0]
        parts.append(deepest.over_outputs.spread(deepest.draw(nodes, gates[0])).unsqueeze(1))
        return self._unordered(parts)

    def draw_nodes(self, gates: Sequence[Gate | None], batch: int) -> tuple[Tensor, list[Tensor]]:
        """Return a node of each of the deepest regions, `(regions, batch)`, and the leaves of outputs above them."""
        parts: list[Tensor] = []
        nodes = self.positions.new_zeros(1, batch)
        for layer, gate in [*self._downwards(gates)][:-1]:
            components = layer.draw(nodes.expand(layer.regions, -1), gate)
            parts.append(layer.over_outputs.spread(components).unsqueeze(1))
            nodes = layer.over_parts.handed_down(components)
        return nodes.expand(self.layers[0].regions, -1), parts

    def _downwards(self, gates: Sequence[Gate | None]) -> Iterator[tuple[SumLayer, Gate | None]]:
        yield from zip(reversed(self.layers), reversed(gates), strict=True)

    def _unordered(self, parts: list[Tensor]) -> Tensor:
        """Return what the layers found for their outputs, from the roots down, as `(batch, outputs, ...)`."""
        return torch.cat(parts[::-1]).index_select(0, self.positions).movedim(-1, 0)


def _outputs_first(leaves: Tensor) -> Tensor:
    """Return `(batch, outputs, components)` as `(outputs, components, batch)`: a region's matrix in one piece."""
    return leaves.movedim(0, -1).contiguous()
