r"""A circuit as a function of the logarithms of its leaves, one level after the other.

The same function serves p(x|z), where the leaves are log-densities at one z, and the bound, where they are expected
ones. Read from the roots downwards it also says how likely an output has each of its leaves, and draws them.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from silentgrad.decoders.structures import Structure
from silentgrad.decoders.sums import Gate, SumLayer


class SumProduct(nn.Module):
    """Alternating products and sums over a structure.

    Args:
        structure: The regions, over all outputs.
        components: Number of leaves of an output, and of nodes of a region.
    """

    positions: Tensor

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
        self.register_buffer("positions", torch.tensor(outputs).argsort(), persistent=False)

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
        rows = _outputs_first(leaves)
        below: Tensor | None = None
        for layer, gate in zip(self.layers, gates, strict=True):
            below = layer(layer.products(rows, below), gate)
        assert below is not None
        return below.sum((0, 1))

    def posterior(self, leaves: Tensor, gates: Sequence[Gate | None]) -> Tensor:
        """The probability of each component of the deepest regions given x, if nothing is above them.

        Returns:
            `(batch, regions, components)`.
        """
        (layer,), (gate,) = self.layers, gates
        joint = layer.products(_outputs_first(leaves), None) + layer.weights().log().transpose(1, 2)
        if gate is not None:
            joint = joint + gate.expected
        return joint.softmax(1).movedim(-1, 0)

    def chances(self, gates: Sequence[Gate | None], batch: int) -> Tensor:
        """The probability of each output's leaves, `(batch, outputs, components)`."""
        parts: list[Tensor] = []
        nodes = torch.ones(1, 1, batch, dtype=self.dtype, device=self.positions.device)
        for layer, gate in self._downwards(gates):
            nodes = nodes.expand(layer.regions, -1, -1)
            components = (nodes.unsqueeze(2) * layer.chances(gate)).sum(1)
            parts.append(layer.over_outputs.spread(components))
            nodes = layer.over_parts.handed_down(components)
        return self._unordered(parts)

    def draw(self, gates: Sequence[Gate | None], batch: int) -> Tensor:
        """A leaf for each output, `(batch, outputs, 1)`, drawn from the roots downwards."""
        parts: list[Tensor] = []
        nodes = self.positions.new_zeros(1, batch)
        for layer, gate in self._downwards(gates):
            nodes = nodes.expand(layer.regions, -1)
            chances = layer.chances(gate).expand(-1, -1, -1, batch)
            picked = nodes[:, None, None].expand(-1, 1, chances.shape[2], -1)
            of_node = chances.gather(1, picked).squeeze(1).movedim(1, -1)
            components = torch.multinomial(of_node.flatten(0, 1), 1).view(layer.regions, batch)
            parts.append(layer.over_outputs.spread(components).unsqueeze(1))
            nodes = layer.over_parts.handed_down(components)
        return self._unordered(parts)

    def _downwards(self, gates: Sequence[Gate | None]) -> Iterator[tuple[SumLayer, Gate | None]]:
        yield from zip(reversed(self.layers), reversed(gates), strict=True)

    def _unordered(self, parts: list[Tensor]) -> Tensor:
        """What the layers found for their outputs, from the roots down, as `(batch, outputs, ...)`."""
        return torch.cat(parts[::-1]).index_select(0, self.positions).movedim(-1, 0)


def _outputs_first(leaves: Tensor) -> Tensor:
    """From `(batch, outputs, components)` to `(outputs, components, batch)`: a region's matrix in one piece."""
    return leaves.movedim(0, -1).contiguous()
