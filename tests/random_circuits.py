"""Circuits at random: over every kind of region graph, and many parameters of one circuit at once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from silentgrad.likelihoods import Normal

REGION_GRAPHS = ("forest", "quad-tree", "binary tree", "chow-liu", "mixture")
LEAVES = ("exp", "constant precision", "fixed", "separate")


def random_region_graph(kind: str, outputs: int, seed: int) -> sg.RegionGraph:
    """A region graph of one kind over so many outputs."""
    if kind == "forest":
        return random_forest(outputs, seed)
    if kind == "quad-tree":
        height = 1 + (outputs + 1) % 2
        return sg.decoders.quad_tree((height, outputs // height))
    if kind == "binary tree":
        return sg.decoders.binary_tree(outputs)
    generator = torch.Generator().manual_seed(seed)
    if kind == "chow-liu":
        return sg.decoders.chow_liu(torch.randn(8, outputs, generator=generator))
    return sg.RegionGraph((-1, -1)[:outputs], (tuple(range(0, outputs, 2)), tuple(range(1, outputs, 2)))[:outputs])


def random_forest(outputs: int, seed: int) -> sg.RegionGraph:
    """A random forest over the outputs, with regions that hold outputs, parts, or both."""
    generator = torch.Generator().manual_seed(seed)
    regions = int(torch.randint(1, outputs + 2, (), generator=generator))
    parents = [-1]
    for region in range(1, regions):
        parents.append(int(torch.randint(-1, region, (), generator=generator)))
    held: list[list[int]] = [[] for _ in parents]
    for output in torch.randperm(outputs, generator=generator).tolist():
        held[int(torch.randint(0, regions, (), generator=generator))].append(output)
    return pruned(parents, held)


def pruned(parents: list[int], held: list[list[int]]) -> sg.RegionGraph:
    """Without the regions that have neither outputs nor parts."""
    while True:
        empty = [r for r, own in enumerate(held) if not own and r not in parents]
        if not empty:
            return sg.RegionGraph(tuple(parents), tuple(tuple(own) for own in held))
        gone = empty[0]
        parents = [p - (p > gone) for r, p in enumerate(parents) if r != gone]
        held = [own for r, own in enumerate(held) if r != gone]


def leaves_of(kind: str, latents: int, outputs: int, components: int) -> sg.LinearDecoder | list[sg.LinearDecoder]:
    """Gaussian leaves of one kind."""
    shape = (outputs, components)
    if kind == "exp":
        return sg.LinearPrecisionGaussian(latents, shape, link="exp")
    if kind == "constant precision":
        return sg.LinearLikelihood(latents, shape, Normal(shape))
    if kind == "fixed":
        return sg.LinearGaussian(latents, shape, variance=0.3)
    return [sg.LinearGaussian(latents, outputs, 0.2 + component) for component in range(components)]


class BoundAndLogProbs(nn.Module):
    """What is compared of a circuit: its bound, and its log-probability at every state of the latents."""

    def __init__(self, circuit: sg.Circuit) -> None:
        super().__init__()
        self.circuit = circuit

    def forward(self, x: Tensor, q: td.Distribution, states: Tensor) -> tuple[Tensor, Tensor]:
        return self.circuit.expected_log_prob(x, q), self.circuit(states).log_prob(x)


def of_many(
    circuit: sg.Circuit, many: int, size: float, x: Tensor, q: td.Distribution, states: Tensor
) -> tuple[Tensor, Tensor]:
    """The bounds `(many, batch)` and log-probabilities `(many, states, batch)` of a circuit with random parameters.

    Its own are their centre, `size` their deviation from it; `states` is `(states, batch, *shape of the latents)`.
    """
    pair = BoundAndLogProbs(circuit)
    parameters = {}
    for name, centre in pair.named_parameters():
        parameters[name] = centre.detach() + size * torch.randn(many, *centre.shape, dtype=centre.dtype)

    def at(own: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        bound, log_probs = torch.func.functional_call(pair, own, (x, q, states))
        return bound, log_probs

    with unchecked(), torch.no_grad():
        return torch.vmap(at)(parameters)


@contextmanager
def unchecked() -> Iterator[None]:
    """Distributions that do not look at their parameters, which `torch.vmap` does not allow."""
    before = td.Distribution._validate_args
    td.Distribution.set_default_validate_args(False)
    yield
    td.Distribution.set_default_validate_args(before)
