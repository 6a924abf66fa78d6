"""Circuits a second time: one node after the other, by the definition, from the parameters of a decoder."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

import silentgrad as sg

Leaf = Callable[[int, int], Tensor]  # of an output and a component
Gate = Callable[[int, int, int], tuple[Tensor, Tensor]]  # of a level, a region of it and a component: E l, log E e^l


def log_circuit(decoder: sg.Circuit, region_graph: sg.RegionGraph, leaf: Leaf, gate: Gate) -> Tensor:
    """log C by recursion over regions, nodes and components."""
    places = _places(region_graph)

    def product(region: int, component: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for output in region_graph.outputs[region]:
            total = total + leaf(output, component)
        for part, parent in enumerate(region_graph.parents):
            if parent == region:
                total = total + node(part, component)
        return total

    def node(region: int, which: int) -> Tensor:
        level, position = places[region]
        logits = decoder.network.layers[level].logits[position, which]
        weights = (1 - 1e-12) * logits.softmax(0) + 1e-12 / len(logits)
        above, below = [], []
        for component, weight in enumerate(weights):
            expected, log_mass = gate(level, position, component)
            above.append(weight.log() + expected + product(region, component))
            below.append(weight.log() + log_mass)
        return torch.stack(torch.broadcast_tensors(*above)).logsumexp(0) - torch.stack(
            torch.broadcast_tensors(*below)
        ).logsumexp(0)

    total = torch.zeros((), dtype=torch.float64)
    for region, parent in enumerate(region_graph.parents):
        if parent == -1:
            total = total + node(region, 0)
    return total


def _places(region_graph: sg.RegionGraph) -> dict[int, tuple[int, int]]:
    """The level of each region, the deepest being 0, and its position there.

    Roots in their own order; the others in that of their parents, or of their first outputs if every region of the
    level has outputs.
    """
    regions = [region for region, parent in enumerate(region_graph.parents) if parent == -1]
    levels = []
    while regions:
        levels.append(regions)
        regions = [part for region in regions for part, parent in enumerate(region_graph.parents) if parent == region]
        if all(region_graph.outputs[region] for region in regions):
            regions = sorted(regions, key=lambda region: region_graph.outputs[region][0])
    places = {}
    for level, members in enumerate(reversed(levels)):
        for position, region in enumerate(members):
            places[region] = (level, position)
    return places


def bound(
    decoder: sg.Circuit,
    region_graph: sg.RegionGraph,
    x: Tensor,
    expectation: Callable[[Callable[[Tensor], Tensor]], Tensor],
) -> Tensor:
    """The circuit at expected leaves and logits, and at log E[e^l], all by brute force."""

    seen: list[Tensor] = []

    def outputs_at(z: Tensor) -> Tensor:
        """Computed once: every expectation is over the same z."""
        if not seen:
            flat = z.reshape(len(z), len(x), decoder.latent_dim)
            outputs = decoder.leaves(flat).log_prob(x.reshape(-1, *decoder.event_shape).unsqueeze(-1))
            seen.append(outputs.reshape(len(z), len(x), -1, decoder.components))
        return seen[0]

    @cache
    def leaf(output: int, component: int) -> Tensor:
        return expectation(lambda z: outputs_at(z)[..., output, component])

    @cache
    def gate(level: int, position: int, component: int) -> tuple[Tensor, Tensor]:
        def logit(z: Tensor) -> Tensor:
            flat = z.reshape(len(z), len(x), decoder.latent_dim)
            return _logit(decoder, level, position, component, flat).expand(flat.shape[:-1])

        return expectation(logit), expectation(lambda z: logit(z).exp()).log()

    return log_circuit(decoder, region_graph, leaf, gate)


def _logit(decoder: sg.Circuit, level: int, position: int, component: int, z: Tensor) -> Tensor:
    if str(level) not in decoder.gates:
        return torch.zeros((), dtype=z.dtype)
    linear = decoder.gates[str(level)].logits
    row = position * decoder.components + component
    return z @ linear.weight[row] + linear.bias[row]
