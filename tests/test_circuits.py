"""Circuits and mixtures against enumeration, a second implementation, sums over all x, and samples.

The bound of thousands of random examples is compared with the expectation by enumeration.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import one_hot

import oracles
import silentgrad as sg
from members import ALL_DECODERS, at_expected_leaves, by_bound_of_shares, flat, positive, reals, statistics_of
from refusals import Refusals, refusals, refused
from silentgrad.decoders.gates import kearns_saul, proxy
from silentgrad.decoders.region_graphs import separate
from silentgrad.likelihoods import Bernoulli, Categorical, Multinomial, Normal

LATENTS, BATCH = 3, 50
REGION_GRAPHS = {
    "forest": lambda outputs: random_forest(outputs),
    "quad-tree": lambda outputs: sg.decoders.quad_tree((2 - outputs % 2, outputs // (2 - outputs % 2))),
    "binary tree": sg.decoders.binary_tree,
    "chow-liu": lambda outputs: sg.decoders.chow_liu(torch.randn(8, outputs)),
    "mixture": lambda outputs: separate([range(first, outputs, 2) for first in range(min(2, outputs))]),
}
LEAVES = {  # of a shape (outputs, components)
    "exp": lambda latents, shape: sg.LinearPrecisionGaussian(latents, shape, link="exp"),
    "constant precision": lambda latents, shape: sg.LinearLikelihood(latents, shape, Normal(shape)),
    "fixed": lambda latents, shape: sg.LinearGaussian(latents, shape, variance=0.3),
    "separate": lambda latents, shape: [sg.LinearGaussian(latents, shape[0], 0.2 + k) for k in range(shape[1])],
}


def random_forest(outputs: int) -> sg.RegionGraph:
    """Regions that hold outputs, parts, or both: those without parts one output at least, any the others."""
    regions = int(torch.randint(1, outputs + 1, ()))
    parents = -1, *(int(torch.randint(-1, region, ())) for region in range(1, regions))
    ends = [region for region in range(regions) if region not in parents]
    owners = [*ends, *torch.randint(regions, (outputs - len(ends),)).tolist()]
    held = list(zip(torch.randperm(outputs).tolist(), owners, strict=True))
    return sg.RegionGraph(parents, tuple(tuple(o for o, owner in held if owner == r) for r in range(regions)))


def random_circuit(
    options: dict[str, Any], proxy: bool, latents: int = LATENTS, kind: str = "forest", size: float = 0.7
) -> sg.Circuit:
    seed, outputs, components, gates, leaves = itemgetter("seed", "outputs", "components", "gates", "leaves")(options)
    torch.manual_seed(seed)
    members = LEAVES[leaves](latents, (outputs, components))
    circuit = sg.Circuit(latents, outputs, components, REGION_GRAPHS[kind](outputs), gates, members, proxy).double()
    for parameter in circuit.parameters():
        parameter.data += size * torch.randn_like(parameter)
    return circuit


CIRCUITS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "outputs": st.integers(1, 6),
        "components": st.integers(1, 4),
        "gates": st.sampled_from(["leaves", "all", "none"]),
        "leaves": st.sampled_from(list(LEAVES)),
    }
)


@given(CIRCUITS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_log_prob_bound_and_statistics_equal_a_naive_implementation(options: dict[str, Any]) -> None:
    circuit = random_circuit(options, proxy=False)
    x = torch.randn(2, options["outputs"], dtype=torch.float64)
    z = torch.randn(2, LATENTS, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, LATENTS, dtype=torch.float64, requires_grad=True)
    q = td.Bernoulli(logits.sigmoid())
    expectation = oracles.on_grid(oracles.bits)(q)

    def at_z(function: Callable[[Tensor], Tensor]) -> Tensor:
        return function(z.unsqueeze(0)).squeeze(0)

    pairs = [(circuit(z).log_prob(x), at_z), (circuit.expected_log_prob(x, q), expectation)]
    parameters = [z, logits, *circuit.parameters()]
    torch.testing.assert_close(flat(circuit.expected_statistics(x, q)), statistics_of(circuit, x, expectation))
    for value, over in pairs:
        both, gradient = (value, at_expected_leaves(circuit, x, over)), partial(torch.autograd.grad, inputs=parameters)
        torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)
        gradients = (gradient(total.sum(), retain_graph=True, materialize_grads=True) for total in both)
        torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


def bits() -> tuple[td.Distribution, oracles.Expectation]:
    """Bernoulli latents, the first example's without variance."""
    probs = torch.rand(BATCH, LATENTS, dtype=torch.float64)
    probs[0] = probs[0].round()
    return td.Bernoulli(probs), oracles.on_grid(oracles.bits)(td.Bernoulli(probs))


def categories() -> tuple[td.Distribution, oracles.Expectation]:
    """Two one-hot latents of three categories, likewise."""
    probs = (2 * torch.randn(BATCH, 2, 3, dtype=torch.float64)).softmax(-1)
    probs[0] = one_hot(probs[0].argmax(-1), 3)
    q = td.Independent(td.OneHotCategorical(probs), 1)
    return q, oracles.categories(q)


@given(
    options=CIRCUITS,
    proxy=st.booleans(),
    latent=st.sampled_from([(bits, 3), (categories, 6)]),
    kind=st.sampled_from(list(REGION_GRAPHS)),
    size=st.sampled_from([0.1, 0.7, 2.0]),
)
@settings(max_examples=300, deadline=None, derandomize=True)
@torch.no_grad()
def test_bound_is_never_above_the_expectation(
    options: dict[str, Any], proxy: bool, latent: tuple[Callable, int], kind: str, size: float
) -> None:
    """Three hundred circuits with fifty latents and x each."""
    build, latents = latent
    circuit = random_circuit(options, proxy, latents, kind, size)
    q, expectation = build()
    x = torch.randn(BATCH, options["outputs"], dtype=torch.float64)
    bound, truth = circuit.expected_log_prob(x, q), expectation(lambda z: circuit(z).log_prob(x))
    assert (bound <= truth + 1e-9 * truth.abs()).all()
    if circuit.components == 1:
        torch.testing.assert_close(bound, truth)
    torch.testing.assert_close(bound[0], truth[0], rtol=1e-8, atol=1e-8)  # where q has no variance


@pytest.mark.parametrize("decoder", [sg.Circuit, sg.Mixture])
def test_one_component_is_the_leaf(decoder: type[sg.Circuit]) -> None:
    leaf = sg.LinearPrecisionGaussian(2, (4, 4, 1), link="exp")
    model = decoder(2, (4, 4), components=1, leaves=leaf)
    q, x = td.Normal(torch.randn(3, 2), torch.rand(3, 2) + 0.1), torch.rand(3, 4, 4)
    torch.testing.assert_close(model.expected_log_prob(x, q), leaf.expected_log_prob(x.unsqueeze(-1), q))
    assert model.exactness(q) is sg.Exactness.EXACT
    bits, leaves = td.Bernoulli(torch.full((3, 2), 0.5)), [sg.LinearPrecisionGaussian(2, 4), sg.LinearGaussian(2, 4)]
    assert decoder(2, 4, 2, leaves=leaves).exactness(bits) is sg.Exactness.APPROXIMATION
    assert decoder(2, 4, 2, leaves=leaves[1:] * 2).exactness(bits) is sg.Exactness.LOWER_BOUND


@pytest.mark.parametrize("logit", [0.0, 1e-6, 0.0999, 0.1, 0.1001, 2.0, 80.0])
def test_kearns_saul_and_its_gradient(logit: float) -> None:
    at = torch.tensor(logit, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(kearns_saul, at, atol=1e-9)
    p = torch.sigmoid(at)
    truth = (2 * p - 1) / (2 * at) if logit > 0 else torch.full_like(at, 0.25)
    torch.testing.assert_close(kearns_saul(at), truth, rtol=1e-9, atol=0)


def test_proxy_of_one_hot_latents_is_never_below_the_generating_function() -> None:
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 10.0):
        logits = scale * torch.randn(200, 1, 4, dtype=torch.float64, generator=generator)
        q = td.OneHotCategorical(logits=logits)
        weights = scale * torch.randn(50, 4, dtype=torch.float64, generator=generator)
        truth = (logits.log_softmax(-1) + weights).logsumexp(-1)
        assert (q.probs.squeeze(1) @ weights.T + proxy(q, weights).T - truth >= -1e-12).all()
    certain = td.OneHotCategorical(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64))
    assert proxy(certain, weights / 10).max() == 0


def test_proxy_of_bits_is_tight_to_second_order_and_where_they_are_sure() -> None:
    """And never below the generating function, which it touches at t = 2 log((1 - p) / p)."""
    near = torch.logspace(-12, -1, 30, dtype=torch.float64)
    middle = torch.cat([torch.linspace(0.1, 1, 30), torch.zeros(1)]).double()
    p = torch.cat([near, 0.5 + near / 5, 0.5 - near / 5, 1 - near, middle]).unsqueeze(1)
    t = torch.cat([torch.logspace(-3, 2.8, 60), -torch.logspace(-3, 2.8, 60)]).double().unsqueeze(1)
    q = td.Bernoulli(p)
    excess = p.T * t + proxy(q, t) - sg.latents.generating_function(q)(t.unsqueeze(1)).value.squeeze(-1)
    assert (excess >= -1e-14 * (1 + t.square())).all()
    small = t.abs().squeeze() < 0.01
    variance = (p * (1 - p)).T
    assert (excess[small] <= 0.4 * variance * t[small].abs() ** 3 + 1e-16).all()
    within = t.abs().squeeze() < 300
    assert (excess[:, [-2, -1]][within].abs() <= 1e-13 * t[within].abs()).all()  # rounding of the truth
    p = torch.tensor([[0.1, 0.3, 0.9]], dtype=torch.float64)
    t = 2 * ((1 - p) / p).log()
    truth = (p * t.exp() + 1 - p).log().sum()
    torch.testing.assert_close((p * t).sum() + proxy(td.Bernoulli(p), t).squeeze(), truth, rtol=1e-12, atol=0)


def test_proxy_of_sure_bits_has_a_gradient() -> None:
    weights = torch.tensor([[0.5, -500.0], [0.5, 3.0]], requires_grad=True)
    logits = torch.tensor([[40.0, -3.0]], requires_grad=True)
    for result in torch.autograd.grad(proxy(td.Bernoulli(logits=logits), weights).sum(), [weights, logits]):
        assert result.isfinite().all()
    assert proxy(td.Bernoulli(torch.ones(1, 1)), torch.tensor([[500.0]])).isfinite().all()


LEAVES_OF_BITS = {
    "bits": lambda: [sg.LinearLikelihood(2, (2, 2), Bernoulli()) for _ in range(3)],
    "bits together": lambda: sg.LinearLikelihood(2, (2, 2, 3), Bernoulli()),
    "constants": lambda: sg.decoders.ConstantCategorical(2, (2, 2, 3), categories=2),
}


@pytest.mark.parametrize("leaves", LEAVES_OF_BITS)
@pytest.mark.parametrize("gates", ["leaves", "all", "none", "groups in any order"])
def test_a_circuit_is_a_distribution(leaves: str, gates: str) -> None:
    torch.manual_seed(4)
    if gates == "groups in any order":
        circuit = sg.Mixture(2, (2, 2), 3, per=[[3, 0], [2], [1]], leaves=LEAVES_OF_BITS[leaves]())
    else:
        circuit = sg.Circuit(2, (2, 2), 3, gates=gates, leaves=LEAVES_OF_BITS[leaves]())
    z = torch.randn(2, 2, dtype=torch.float64)
    oracles.require_distribution(circuit.double()(z), oracles.every(2, 2, 2))


def test_shapes_are_those_of_torch() -> None:
    circuit = sg.Circuit(2, (1, 5, 3), 2)
    p = circuit(torch.randn(4, 6, 2))
    assert (p.batch_shape, p.event_shape) == ((4, 6), (1, 5, 3))
    assert p.sample().shape == p.mean.shape == p.stddev.shape == (4, 6, 1, 5, 3)
    x = p.sample((2, 7))
    assert x.shape == (2, 7, 4, 6, 1, 5, 3)
    assert p.log_prob(x).shape == (2, 7, 4, 6)
    wide = p.expand((3, 4, 6))
    assert wide.sample((2,)).shape == (2, 3, 4, 6, 1, 5, 3)
    torch.testing.assert_close(wide.log_prob(x[0, 0]), p.log_prob(x[0, 0]).expand(3, 4, 6))
    torch.testing.assert_close(wide.mean[1], p.mean)
    assert circuit(torch.zeros(2)).sample().shape == (1, 5, 3)
    assert circuit(torch.zeros(2, 2)).sample((0,)).shape == (0, 2, 1, 5, 3)
    checking = sg.decoders.CircuitDistribution(p.leaves, p.network, p.logits, event_dims=3, validate_args=True)
    refused(ValueError, "support", lambda: checking.log_prob(torch.full((4, 6, 1, 5, 3), torch.nan)))


@pytest.mark.parametrize(
    ("per", "shape"),
    [
        ("output", (2, 3, 4, 3)),
        ("pixel", (3, 4, 3)),
        ("example", (3,)),
        ([range(12), range(12, 24)], (2, 3)),
        ([[9, 11], range(12, 24), [10, 1, *range(2, 9)], [0]], (4, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("gates", [True, False])
def test_responsibilities_are_the_gradient_of_the_bound(per: object, shape: tuple[int, ...], gates: bool) -> None:
    torch.manual_seed(7)
    mixture = sg.Mixture(2, (2, 3, 4), per=per, gates=gates).double()
    q = td.Normal(torch.randn(5, 2).double(), torch.rand(5, 2).double())
    x = torch.rand(5, 2, 3, 4).double()
    leaves, at = mixture.expectations(x, q)
    (gradient,) = torch.autograd.grad(mixture.network(leaves, at).sum(), leaves)
    found = mixture.responsibilities(x, q)
    assert found.shape == (5, *shape)
    torch.testing.assert_close(found.sum(-1), torch.ones(5, *shape[:-1]).double())
    groups = found.reshape(5, -1, 3)
    for group, outputs in enumerate(mixture.region_graph.outputs):
        for output in outputs:
            torch.testing.assert_close(groups[:, group], gradient[:, output])
    assert mixture.responsibilities(x[:0], td.Normal(q.loc[:0], 1.0)).shape == (0, *shape)
    half = td.Normal(q.loc.bfloat16(), q.scale.bfloat16())
    narrow, wide = x.bfloat16(), td.Normal(half.loc.float(), half.scale.float())
    expected = mixture.float().responsibilities(narrow.float(), wide)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(mixture.responsibilities(narrow, half), expected)


@pytest.mark.parametrize("per", [[[3, 0], [1], [4, 2]], [[4, 2], [3, 0], [1]]], ids=str)
def test_a_start_from_data_does_not_depend_on_the_order_of_groups(per: list[list[int]]) -> None:
    torch.manual_seed(8)
    data = torch.randint(3, (60, 5)) + torch.linspace(0, 5, 5) + 0.1 * torch.randn(60, 5)
    values = []
    for groups in (per, sorted(per)):
        mixture = sg.Mixture(2, 5, per=groups)
        mixture.init_from_data(data)
        torch.nn.init.zeros_(mixture.network.layers[0].logits)
        for _, gate in mixture._gates():
            torch.nn.init.zeros_(gate.logits.weight)
        values.append(mixture.expected_log_prob(data, td.Normal(torch.zeros(60, 2), 0.1)))
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("size", [1.0, 50.0, -50.0])
@pytest.mark.parametrize("far", [1.0, 1e3])
@pytest.mark.parametrize(("components", "shape"), [(1, (3, 3)), (4, (3, 3)), (4, (1, 1))])
def test_extremes_are_finite(size: float, far: float, components: int, shape: tuple[int, int]) -> None:
    """Precision at that of eight bits, x far from every leaf, and weights, constant or gated, next to 0 and 1."""
    torch.manual_seed(10)
    circuit = sg.Circuit(3, shape, components, gates="all")
    with torch.no_grad():
        for layer in circuit.network.layers:
            layer.logits.mul_(size)
        for _, gate in circuit._gates():
            gate.logits.bias.normal_().mul_(size)
        circuit.leaves.decoder.log_scale.fill_(-math.log(12 * 256**2) / 2)
    x = far * torch.rand(4, *shape)
    loc, scale = torch.randn(4, 3, requires_grad=True), torch.full((4, 3), 1e-3, requires_grad=True)
    value = circuit.expected_log_prob(x, td.Normal(loc, scale))
    assert value.isfinite().all()
    assert value.min() < -1e6 * (far - 1)
    for gradient in torch.autograd.grad(value.sum(), [loc, scale, *circuit.parameters()], materialize_grads=True):
        assert gradient.isfinite().all()


def test_weights_of_no_account_keep_their_gradient() -> None:
    """The only component that explains x has a logit of -50: the gradient raises it."""
    circuit = sg.Mixture(1, 1, components=2, gates=False)
    with torch.no_grad():
        circuit.leaves.decoder.center.copy_(torch.tensor([0.0, 1000.0]))
        circuit.leaves.decoder.affine.weight.zero_()
        circuit.leaves.decoder.affine.bias.zero_()
        circuit.network.layers[0].logits.copy_(torch.tensor([[[50.0, -50.0]]]))
    value = circuit.expected_log_prob(torch.full((1, 1), 1000.0), td.Normal(torch.zeros(1, 1), torch.ones(1, 1)))
    assert -40 < value.item() < -20
    value.sum().backward()
    assert circuit.leaves.decoder.log_scale.grad[1] == pytest.approx(-1.0, rel=1e-3)


@pytest.mark.parametrize("likelihood", [Multinomial, Categorical])
def test_one_probability_for_several_outputs_is_no_leaf(likelihood: type[torch.nn.Module]) -> None:
    needs, shared = "a leaf needs a probability for each output", "has one for every 2 of them"
    whole, paired = (sg.LinearLikelihood(2, shape, likelihood()) for shape in (4, (4, 2)))
    refused(sg.IntractableError, needs, lambda: sg.Mixture(2, 4, 2, leaves=[whole, whole]))
    refused(sg.IntractableError, shared, lambda: sg.Circuit(2, 4, 2, leaves=paired))
    p, network = likelihood()(torch.zeros(5, 4, 2)), sg.Circuit(2, 4, 2).network
    refused(sg.IntractableError, shared, lambda: sg.decoders.CircuitDistribution(p, network, [None] * 3, 1))


JOINT = (by_bound_of_shares, at_expected_leaves)
SINGLE = {d.name: d for d in ALL_DECODERS if d.oracle not in JOINT and d.name != "context"}
DENSITIES = [name for name, decoder in SINGLE.items() if decoder.data in (reals, positive)]
PROBABILITIES = [name for name in SINGLE if name not in DENSITIES]


@pytest.mark.parametrize("kinds", [*zip(DENSITIES, itertools.cycle(PROBABILITIES), strict=False)], ids=str)
def test_densities_and_probabilities_do_not_mix(kinds: tuple[str, str]) -> None:
    leaves = [SINGLE[kind].build(2, (4,)) for kind in kinds]
    message = r"leaves mix probabilities \(\w+\) with densities \(\w+\)"
    for order in (leaves, leaves[::-1]):
        refused(sg.DomainError, message, lambda order=order: sg.Mixture(2, 4, 2, leaves=order))
    for leaf in leaves:
        sg.Mixture(2, 4, 2, leaves=[leaf, leaf])


def test_leaves_that_declare_no_support_are_taken_at_their_word() -> None:
    class Undeclared(td.Normal):
        support = td.Distribution.support  # as where a distribution of somebody's own says nothing

    leaf = sg.LinearLikelihood(2, 4, lambda u: Undeclared(u, 1.0))
    assert sg.Mixture(2, 4, 2, leaves=[leaf, sg.LinearGaussian(2, 4)]).components == 2


class WholeOnly(sg.LinearGaussian):
    """Knows the expectation of all outputs together, as a decoder of somebody's own might."""

    output_form = sg.LinearDecoder.output_form


@refusals
def test_bad_input_is_named() -> Refusals:
    circuit, trees = sg.Circuit(2, 4, 3), sg.decoders.binary_tree
    expected, q = circuit.expected_log_prob, td.Normal(torch.zeros(3, 2), torch.ones(3, 2))
    gaussian, other, three = sg.LinearGaussian(2, 4), sg.LinearGaussian(2, 5), sg.LinearGaussian(3, 4)
    shapes, none = r"event_shape \(5,\), expected \(4,\)", r"\(examples, \*event_shape\), got \(5, 0\)"
    theirs, single = "belong to the leaves", "WholeOnly knows no expectation of a single output"
    graph, whole = sg.RegionGraph, sg.Circuit(2, 4, 1, leaves=[WholeOnly(2, 4)])
    told = r"expected examples of shape \(4,\), got x of shape \(3, 7\)"
    return {
        "too few outputs": (sg.ShapeError, "does not cover output 3", lambda: sg.Circuit(2, 4, region_graph=trees(3))),
        "an output too many": (sg.ShapeError, "only 4", lambda: sg.Circuit(2, 4, region_graph=trees(5))),
        "an output twice": (sg.ShapeError, "output 1 twice", lambda: sg.Mixture(2, 3, per=[[0, 1], [1, 2]])),
        "an empty region": (sg.DomainError, "neither outputs nor parts", lambda: graph((-1, 0), ((0, 1), ()))),
        "a circle": (sg.DomainError, "circle", lambda: graph((-1, 2, 1), ((0,), (1,), (2,)))),
        "an unknown parent": (sg.DomainError, "does not exist", lambda: graph((7,), ((0,),))),
        "no components": (sg.DomainError, "components, got 0", lambda: sg.Circuit(2, 4, components=0)),
        "unknown gates": (sg.DomainError, "gates", lambda: sg.Circuit(2, 4, gates="some")),
        "unknown groups": (sg.DomainError, "per has to be", lambda: sg.Mixture(2, 4, per="colour")),
        "no outputs": (sg.ShapeError, "event_shape", lambda: sg.Circuit(2, (0, 3))),
        "leaves of two shapes": (sg.ShapeError, shapes, lambda: sg.Circuit(2, 4, 2, leaves=[gaussian, other])),
        "leaves of 3 latents": (sg.ShapeError, "3 latents, expected 2", lambda: sg.Circuit(2, 4, 1, leaves=[three])),
        "too few leaves": (sg.ShapeError, "8 components, but 1 leaves", lambda: sg.Circuit(2, 4, leaves=[gaussian])),
        "no leaf": (sg.IntractableError, "no leaf", lambda: sg.Circuit(2, 4, 1, leaves=[torch.nn.Linear(2, 4)])),
        "negative noise": (sg.DomainError, "noise", lambda: sg.Circuit(2, 4, noise=-1.0)),
        "noise of others": (sg.DomainError, theirs, lambda: sg.Circuit(2, 4, 1, leaves=[gaussian], noise=0.1)),
        "no image": (sg.ShapeError, "image", lambda: sg.decoders.quad_tree((5,))),
        "no rows": (sg.ShapeError, "needs pixels", lambda: sg.decoders.quad_tree((0, 3))),
        "no columns": (sg.ShapeError, "needs pixels", lambda: sg.decoders.quad_tree((3, 0))),
        "no colors": (sg.ShapeError, "needs pixels", lambda: sg.decoders.quad_tree((0, 4, 4))),
        "no regions": (sg.ShapeError, "at least one region", lambda: graph((), ())),
        "a tree without outputs": (sg.ShapeError, none, lambda: sg.decoders.chow_liu(torch.zeros(5, 0))),
        "no groups": (sg.ShapeError, "at least one region", lambda: sg.Mixture(2, 3, per=[])),
        "all outputs together": (sg.IntractableError, single, lambda: whole.expected_log_prob(torch.zeros(3, 4), q)),
        "another batch": (sg.ShapeError, "x has shape", lambda: expected(torch.zeros(2, 4), q)),
        "another shape, told as given": (sg.ShapeError, told, lambda: expected(torch.zeros(3, 7), q)),
        "NaN": (sg.DomainError, "not finite: x", lambda: expected(torch.full((3, 4), torch.nan), q)),
        "a start": (sg.ShapeError, "examples of shape", lambda: circuit.init_from_data(torch.zeros(5, 3))),
    }
