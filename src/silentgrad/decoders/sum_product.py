r"""A circuit as a function of the logarithms of its leaves, one level after the other.

The same function serves p(x|z), where the leaves are log-densities at one z, and the bound, where they are expected
ones. Read from the roots downwards it also says how likely an output has each of its leaves, and draws them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from silentgrad.decoders.structures import Structure
from silentgrad.decoders.sums import Gate, SumLayer
from silentgrad.tracing import transformed


class SumProduct(nn.Module):
    """Alternating products and sums over a structure.

    Args:
        structure: The regions, over all outputs.
        components: Number of leaves of an output, and of nodes of a region.
    """

    order: Tensor
    inverse: Tensor

    def __init__(self, structure: Structure, components: int) -> None:
        super().__init__()
        levels = structure.levels()
        outputs: list[int] = []
        layers = []
        for level in levels:
            outputs += level.outputs
            nodes = components
            if level is levels[-1]:
                nodes = 1
            layers.append(SumLayer(level, nodes, components))
        self.levels = nn.ModuleList(layers)
        self.held = [len(level.outputs) for level in levels]
        self.register_buffer("order", torch.tensor(outputs, dtype=torch.long), persistent=False)
        self.register_buffer("inverse", self.order.argsort(), persistent=False)

    @property
    def layers(self) -> list[SumLayer]:
        """One for each level of the structure, the deepest first."""
        return [layer for layer in self.levels if isinstance(layer, SumLayer)]

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def forward(self, leaves: Tensor, gates: Sequence[Gate | None]) -> Tensor:
        """The logarithm of the circuit, `(batch,)`.

        Args:
            leaves: `(batch, outputs, components)`.
            gates: One for each layer.
        """
        ordered = self._ordered(leaves)
        below: Tensor | None = None
        for layer, own, gate in zip(self.layers, ordered.split(self.held), gates, strict=True):
            below = layer(layer.products(own, below), gate)
        assert below is not None
        return below.sum((0, 1))

    def posterior(self, leaves: Tensor, gates: Sequence[Gate | None]) -> Tensor:
        """The probability of each component of the deepest regions given x, if nothing is above them.

        Returns:
            `(batch, regions, components)`.
        """
        (layer,), (gate,) = self.layers, gates
        joint = layer.products(self._ordered(leaves), None) + layer.weights().log().transpose(1, 2)
        if gate is not None:
            joint = joint + gate.expected
        return joint.softmax(1).movedim(-1, 0)

    def chances(self, gates: Sequence[Gate | None], batch: int) -> Tensor:
        """The probability of each output's leaves, `(batch, outputs, components)`."""
        parts: list[Tensor] = []
        nodes = torch.ones(1, 1, batch, dtype=self.dtype, device=self.order.device)
        for layer, gate in self._downwards(gates):
            nodes = nodes.expand(layer.regions, -1, -1)
            components = (nodes.unsqueeze(2) * layer.chances(gate)).sum(1)
            parts.append(layer.over_outputs.spread(components))
            nodes = self._handed_down(layer, components)
        return self._unordered(parts)

    def draw(self, gates: Sequence[Gate | None], batch: int) -> Tensor:
        """A leaf for each output, `(batch, outputs, 1)`, drawn from the roots downwards."""
        parts: list[Tensor] = []
        nodes = self.order.new_zeros(1, batch)
        for layer, gate in self._downwards(gates):
            nodes = nodes.expand(layer.regions, -1)
            chances = layer.chances(gate).expand(-1, -1, -1, batch)
            picked = nodes[:, None, None].expand(-1, 1, chances.shape[2], -1)
            of_node = chances.gather(1, picked).squeeze(1).movedim(1, -1)
            components = torch.multinomial(of_node.flatten(0, 1), 1).view(layer.regions, batch)
            parts.append(layer.over_outputs.spread(components).unsqueeze(1))
            nodes = self._handed_down(layer, components)
        return self._unordered(parts)

    def _downwards(self, gates: Sequence[Gate | None]) -> Iterator[tuple[SumLayer, Gate | None]]:
        yield from zip(reversed(self.layers), reversed(gates), strict=True)

    def _handed_down(self, layer: SumLayer, components: Tensor) -> Tensor:
        """A product's component is the node of each of its parts."""
        return layer.over_parts.spread(components)

    def _ordered(self, leaves: Tensor) -> Tensor:
        """The leaves as `(outputs, components, batch)`, outputs in the order of the layers that hold them."""
        rows = leaves.movedim(0, -1)
        if transformed():
            return rows.index_select(0, self.order)
        return _Permuted.apply(rows, self.order, self.inverse)

    def _unordered(self, parts: list[Tensor]) -> Tensor:
        """What the layers found for their outputs, from the roots down, as `(batch, outputs, ...)`."""
        return torch.cat(parts[::-1]).index_select(0, self.inverse).movedim(-1, 0)


class _Permuted(torch.autograd.Function):
    """Rows in another order, and back; torch's own derivative would add the rows up one by one."""

    @staticmethod
    def forward(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return rows.index_select(0, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _, ctx.order, ctx.inverse = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Permuted.apply(grad, ctx.inverse, ctx.order), None, None
