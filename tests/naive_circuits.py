"""Circuits a second time: one node after the other, by the definition, from the parameters of a decoder."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

import silentgrad as sg

Leaf = Callable[[int, int], Tensor]  # of an output and a component
Gate = Callable[[int, int, int], tuple[Tensor, Tensor]]  # of a level, a region of it and a component: E l, log E e^l


def log_circuit(decoder: sg.Circuit, leaf: Leaf, gate: Gate) -> Tensor:
    """log C by loops over levels, the deepest first, their regions, nodes and components."""
    nodes: list[list[Tensor]] = []
    for number, level in enumerate(decoder.region_graph.levels()):
        below, nodes = nodes, []
        for region, of_nodes in enumerate(decoder.network.layers[number].logits):
            outputs = [o for o, owner in zip(level.outputs, level.output_owners, strict=True) if owner == region]
            parts = [p for p, owner in zip(level.parts, level.part_owners, strict=True) if owner == region]
            products, gates = [], []
            for k in range(decoder.components):
                products.append(sum([*(leaf(output, k) for output in outputs), *(below[part][k] for part in parts)]))
                gates.append(gate(number, region, k))
            nodes.append([log_sum(logits, products, gates) for logits in of_nodes])
    return sum((root for (root,) in nodes), torch.zeros((), dtype=torch.float64))


def log_sum(logits: Tensor, products: list[Tensor], gates: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The logarithm of a sum node."""
    weights = (1 - 1e-12) * logits.softmax(0) + 1e-12 / len(logits)
    above = [weight.log() + g[0] + product for weight, g, product in zip(weights, gates, products, strict=True)]
    below = [weight.log() + g[1] for weight, g in zip(weights, gates, strict=True)]
    sums = [torch.stack(torch.broadcast_tensors(*terms)).logsumexp(0) for terms in (above, below)]
    return sums[0] - sums[1]


def bound(decoder: sg.Circuit, x: Tensor, expectation: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> Tensor:
    """The circuit at expected leaves and logits, and at log E[e^l], all by brute force."""

    @cache  # every expectation is over the same z
    def outputs_at(z: Tensor) -> Tensor:
        flat = z.reshape(len(z), len(x), decoder.latent_dim)
        outputs = decoder.leaves(flat).log_prob(x.reshape(-1, *decoder.event_shape).unsqueeze(-1))
        return outputs.reshape(len(z), len(x), -1, decoder.components)

    @cache
    def leaf(output: int, component: int) -> Tensor:
        return expectation(lambda z: outputs_at(z)[..., output, component])

    @cache
    def gate(level: int, position: int, component: int) -> tuple[Tensor, Tensor]:
        if str(level) not in decoder.gates:
            return torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        linear, row = decoder.gates[str(level)].logits, position * decoder.components + component

        def logit(z: Tensor) -> Tensor:
            return z.reshape(len(z), len(x), decoder.latent_dim) @ linear.weight[row] + linear.bias[row]

        return expectation(logit), expectation(lambda z: logit(z).exp()).log()

    return log_circuit(decoder, leaf, gate)
