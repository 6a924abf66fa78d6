"""Nonlinear decoders whose likelihood is a mixture or a circuit, and not one Gaussian per output."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import softplus

from silentgrad.decoders import CircuitDistribution
from silentgrad.decoders.starts import clusters, require_examples, shares_of
from silentgrad.decoders.structures import Structure
from silentgrad.decoders.sum_product import SumProduct
from silentgrad.lab.networks.decoders import START_LOG_PRECISION, require_shape

SPREAD = 1.5  # of the components' means around the network's, in standard deviations: alike, they would stay so


class NonlinearCircuit(nn.Module):
    """p(x|z) as a circuit whose leaves and whose weights over leaves a network computes from z.

    As in `silentgrad.StandardizedGaussian` the network moves a leaf's mean in units of a deviation of its own.

    Args:
        network: From latents `(batch, latent_dim)` to `(batch, 3 * components * channels, ...)`: of each component the
            mean, the log-precision and the logit of its weight. Outputs that one region holds add up their logits.
        event_shape: Shape of one example.
        components: Number of leaves of each output, and of nodes of each region.
        structure: The regions of outputs.
        levels: Number of levels of an output, which bounds the precision as in `NonlinearGaussian`.
    """

    centre: Tensor

    def __init__(
        self, network: nn.Module, event_shape: Sequence[int], components: int, structure: Structure, levels: int = 256
    ) -> None:
        super().__init__()
        self.network, self.components = network, components
        self.event_shape = torch.Size(event_shape)
        self.sums = SumProduct(structure, components)
        self.most = math.log(12 * levels**2)
        scale = math.exp(-START_LOG_PRECISION / 2)
        spread = torch.linspace(-SPREAD, SPREAD, components) * scale
        self.register_buffer("centre", spread.expand(*self.event_shape, components).clone())
        self.log_scale = nn.Parameter(torch.full_like(self.centre, math.log(scale)))

    def forward(self, z: Tensor) -> CircuitDistribution:
        numbers = self.network(z.flatten(1))
        channels, *size = self.event_shape
        require_shape(numbers, (3 * self.components * channels, *size))
        mean, g, logits = numbers.unflatten(1, (3, self.components, channels)).movedim(2, -1).unbind(1)
        log_precision = self.most - softplus(self.most + 2 * self.log_scale - g)
        leaves = td.Normal(self.centre + self.log_scale.exp() * mean, torch.exp(-log_precision / 2))
        return CircuitDistribution(leaves, self.sums, self._gates(logits.flatten(1, -2)), len(self.event_shape))

    def init_from_data(self, data: Tensor) -> None:
        """Starts the leaves and the weights over them from data, as `silentgrad.Circuit` does.

        Args:
            data: Examples `(examples, *event_shape)` as the model sees them.
        """
        require_examples(data, self.event_shape)
        flat = data.flatten(1)
        found = clusters(flat, self.components, shared=len(self.event_shape) > 1)
        shares = shares_of(found, flat).log()
        outputs = flat.shape[1]
        with torch.no_grad():
            self.centre.copy_(found.means.expand(outputs, -1).reshape(self.centre.shape))
            self.log_scale.copy_(found.variances.expand(outputs, -1).log().reshape(self.centre.shape) / 2)
            for layer in self.sums.layers:
                if layer.holds_outputs:
                    layer.logits.add_(layer.over_outputs(shares).unsqueeze(1))

    def _gates(self, logits: Tensor) -> list[Tensor | None]:
        """The logits of every layer's regions, summed over the outputs that a region holds itself."""
        outputs_first = logits.movedim(0, -1)
        gates: list[Tensor | None] = []
        for layer in self.sums.layers:
            if layer.holds_outputs:
                gates.append(layer.over_outputs(outputs_first).movedim(-1, 0))
            else:
                gates.append(None)
        return gates
