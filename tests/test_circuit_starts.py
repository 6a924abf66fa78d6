"""Region graphs, and where circuits start."""

import math

import pytest
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from members import ALL_DECODERS, WITHOUT_A_START, Decoder, by_sampling_law, counts
from silentgrad.decoders.starts import clusters


def held_by(region_graph: sg.RegionGraph, region: int) -> set[int]:
    """All outputs of a region and its parts."""
    held = set(region_graph.outputs[region])
    for part, parent in enumerate(region_graph.parents):
        if parent == region:
            held |= held_by(region_graph, part)
    return held


@pytest.mark.parametrize("shape", [(4, 4), (28, 28), (3, 5, 6), (1, 1, 7), (2, 1, 1)], ids=str)
def test_a_quad_tree_is_made_of_blocks(shape: tuple[int, ...]) -> None:
    region_graph = sg.decoders.quad_tree(shape)
    outputs = torch.Size(shape).numel()
    region_graph.require(outputs)
    height, width = shape[-2:]
    for region in range(len(region_graph.parents)):
        held = sorted(held_by(region_graph, region))
        rows = {output % (height * width) // width for output in held}
        columns = {output % width for output in held}
        side = 2 ** math.ceil(math.log2(max(len(rows), len(columns))))
        assert len(held) == len(rows) * len(columns) * (outputs // (height * width))
        assert min(rows) % side == min(columns) % side == 0


@pytest.mark.parametrize("outputs", [1, 2, 5, 8, 31])
def test_a_binary_tree_has_few_levels(outputs: int) -> None:
    region_graph = sg.decoders.binary_tree(outputs)
    region_graph.require(outputs)
    assert len(region_graph.levels()) == 1 + math.ceil(math.log2(outputs))
    assert held_by(region_graph, len(region_graph.parents) - 1) == set(range(outputs))


def test_chow_liu_finds_the_strongest_tree() -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(200, 5, generator=generator) @ torch.randn(5, 5, generator=generator)
    strengths = torch.corrcoef(data.T).abs()
    region_graph = sg.decoders.chow_liu(data)
    region_graph.require(5)
    found = sum(strengths[child, parent] for child, parent in enumerate(region_graph.parents) if parent >= 0)
    best = 2 * 4 - minimum_spanning_tree((2 - strengths).numpy()).sum()
    assert found == pytest.approx(best, rel=1e-5)


def test_a_deep_tree_is_evaluated_and_copied() -> None:
    """A chain as Chow-Liu may find it: no recursion over its length."""
    chain = sg.RegionGraph((-1, *range(1500)), tuple((output,) for output in range(1501)))
    circuit = sg.Circuit(2, 1501, 2, region_graph=chain, gates="none")
    q = td.Normal(torch.zeros(3, 2), torch.ones(3, 2))
    assert circuit.expected_log_prob(torch.zeros(3, 1501), q).isfinite().all()


def images() -> Tensor:
    """Dark pixels, bright ones, and one that never changes."""
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(0, 256, (400, 1, 4, 4), generator=generator)
    levels[torch.rand(levels.shape, generator=generator) < 0.6] = 0
    levels[:, :, 0, 0] = 0
    return (levels + torch.rand(levels.shape, generator=generator)) / 256


def test_a_mixture_in_one_dimension_is_found() -> None:
    generator = torch.Generator().manual_seed(2)
    means, deviations = torch.tensor([-3.0, 0.0, 4.0]), torch.tensor([0.1, 1.0, 0.5])
    which = torch.randint(3, (20_000,), generator=generator)
    values = means[which] + deviations[which] * torch.randn(20_000, generator=generator)
    found = clusters(values.unsqueeze(1), 3, shared=False)
    torch.testing.assert_close(found.means.squeeze(0).float(), means, rtol=0, atol=0.1)
    torch.testing.assert_close(found.variances.sqrt().squeeze(0).float(), deviations, rtol=0.1, atol=0)


def test_an_output_that_never_changes_has_a_finite_precision() -> None:
    found = clusters(torch.full((50, 2), 7.0), 3, shared=False)
    assert (found.variances > 0).all()
    circuit = sg.Circuit(3, (1, 4, 4), 4)
    circuit.init_from_data(images())
    assert circuit.leaves.decoder.scale.min() > 0.99 / (256 * math.sqrt(12))


OTHERS = (*WITHOUT_A_START, "Multinomial", "Categorical", "context", "mixture", "circuit")
KINDS = [d for d in ALL_DECODERS if d.name not in OTHERS] + [
    Decoder("one scale", lambda d, s: sg.LinearLikelihood(d, s, sg.likelihoods.Normal(())), by_sampling_law),
    Decoder("constants", lambda d, s: sg.decoders.ConstantCategorical(d, s, 7), by_sampling_law, data=counts),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("together", [True, False])
def test_every_kind_of_leaf_starts(kind: Decoder, together: bool) -> None:
    torch.manual_seed(4)
    x = kind.data(200, 6).float()
    leaves = kind.build(2, (6, 3)) if together else [kind.build(2, (6,)) for _ in range(3)]
    circuit = sg.Circuit(2, 6, 3, leaves=leaves)
    circuit.init_from_data(x)
    value = circuit.expected_log_prob(x, td.Normal(torch.zeros(200, 2), 0.1))
    assert value.isfinite().all()
    p = circuit(torch.zeros(1, 2))
    assert ((p.sample((500,)).mean((0, 1)) - x.mean(0)).abs() < 5 * x.std(0)).all()
    value.sum().backward()


NOISY = {
    "exp": lambda noise: sg.LinearPrecisionGaussian(2, 3, link="exp", noise=noise),
    "linear": lambda noise: sg.LinearPrecisionGaussian(2, 3, link="linear", noise=noise),
    "units of the deviation": lambda noise: sg.StandardizedGaussian(2, 3, noise),
}


@pytest.mark.parametrize("kind", NOISY)
def test_noise_is_integrated_out(kind: str) -> None:
    torch.manual_seed(5)
    plain, noisy = NOISY[kind](0.0).double(), NOISY[kind](0.3).double()
    noisy.load_state_dict(plain.state_dict())
    q = td.Normal(torch.randn(4, 2).double(), torch.rand(4, 2).double())
    x = torch.randn(4, 3).double()
    nodes = 0.3 * torch.tensor([-1.0, 1.0]).double()  # two points with the noise's mean and variance
    truth = sum(plain.expected_log_probs(x + node, q) for node in nodes) / 2
    torch.testing.assert_close(noisy.expected_log_probs(x, q), truth)
    torch.testing.assert_close(noisy.expected_log_prob(x, q), truth.sum(-1))
    assert noisy.exactness(q) is sg.Exactness.LOWER_BOUND


@pytest.mark.parametrize("method", ["mean", "ppca"])
def test_a_start_in_units_of_the_deviation_is_the_same_model(method: str) -> None:
    data = images()
    torch.manual_seed(8)
    decoder = sg.StandardizedGaussian(3, (1, 4, 4))
    plain = sg.LinearLikelihood(3, (1, 4, 4), sg.likelihoods.Normal((1, 4, 4)))
    with torch.no_grad():
        plain.affine.weight.copy_(decoder.scale.unsqueeze(1) * decoder.affine.weight)
    for one in (decoder, plain):
        one.init_from_data(data, method, td.Normal(0.5, 2.0))
    z = torch.randn(5, 3)
    torch.testing.assert_close(decoder(z).mean, plain(z).mean, rtol=1e-4, atol=1e-4)
    if method == "ppca":
        torch.testing.assert_close(decoder(z).stddev, plain(z).stddev.expand(5, 1, 4, 4))
