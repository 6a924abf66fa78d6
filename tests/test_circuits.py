"""Circuits and mixtures against enumeration, a second implementation, sums over all x, and samples."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as td

import naive_circuits
import oracles
import random_circuits
import silentgrad as sg
from silentgrad.decoders.proxies import kearns_saul, proxy
from silentgrad.likelihoods import Bernoulli, Poisson

LATENTS = 3
BITS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=LATENTS)), dtype=torch.float64)


def random_circuit(seed: int, outputs: int, components: int, gates: str, leaves: str, proxy: bool) -> sg.Circuit:
    torch.manual_seed(seed)
    structure = random_circuits.random_forest(outputs, seed)
    kind = random_circuits.leaves_of(leaves, LATENTS, outputs, components)
    circuit = sg.Circuit(LATENTS, outputs, components, structure, gates, kind, proxy).double()
    for parameter in circuit.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.7)
    return circuit


def enumerated(probs: Tensor, values: Tensor) -> Tensor:
    """E over Bernoulli latents `(batch, latents)` of values `(states, batch)`."""
    z = BITS.unsqueeze(1)
    return ((z * probs + (1 - z) * (1 - probs)).prod(-1) * values).sum(0)


CIRCUITS = {
    "seed": st.integers(0, 10**6),
    "outputs": st.integers(1, 5),
    "components": st.integers(1, 4),
    "gates": st.sampled_from(["leaves", "all", "none"]),
    "leaves": st.sampled_from(random_circuits.LEAVES),
    "proxy": st.booleans(),
}


@given(**CIRCUITS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_log_prob_and_bound_equal_a_naive_implementation(
    seed: int, outputs: int, components: int, gates: str, leaves: str, proxy: bool
) -> None:
    circuit = random_circuit(seed, outputs, components, gates, leaves, proxy=False)
    structure = circuit.structure
    x = torch.randn(2, outputs, dtype=torch.float64)
    z = torch.randn(2, LATENTS, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, LATENTS, dtype=torch.float64, requires_grad=True)
    probs = logits.sigmoid()

    def expectation(function: naive_circuits.Callable[[Tensor], Tensor]) -> Tensor:
        return enumerated(probs, function(BITS.unsqueeze(1).expand(-1, 2, -1)))

    pairs = [
        (circuit(z).log_prob(x), naive_circuits.log_prob(circuit, structure, x, z)),
        (circuit.expected_log_prob(x, td.Bernoulli(probs)), naive_circuits.bound(circuit, structure, x, expectation)),
    ]
    parameters = [z, logits, *circuit.parameters()]
    for value, truth in pairs:
        torch.testing.assert_close(value, truth, rtol=1e-10, atol=1e-10)
        gradients = torch.autograd.grad(value.sum(), parameters, allow_unused=True, retain_graph=True)
        truths = torch.autograd.grad(truth.sum(), parameters, allow_unused=True, retain_graph=True)
        for gradient, expected in zip(gradients, truths, strict=True):
            if expected is None:
                assert gradient is None or not gradient.any()
            elif gradient is None:
                assert not expected.any()
            else:
                torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("gates", ["leaves", "all", "none"])
def test_equal_components_make_the_bound_exact(gates: str) -> None:
    circuit = random_circuit(3, 4, 3, gates, "exp", proxy=True)
    with torch.no_grad():
        for name, parameter in circuit.named_parameters():
            if name.startswith("leaves"):
                whole = parameter.unflatten(0, (4, 3))
                whole.copy_(whole[:, :1].clone().expand_as(whole))
            if name.startswith("gates"):
                parameter.zero_()
    probs, x = torch.rand(5, LATENTS, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    truth = enumerated(probs, circuit(BITS.unsqueeze(1).expand(-1, 5, -1)).log_prob(x))
    torch.testing.assert_close(circuit.expected_log_prob(x, td.Bernoulli(probs)), truth, rtol=1e-10, atol=0)


@pytest.mark.parametrize("decoder", [sg.Circuit, sg.Mixture])
def test_one_component_is_the_leaf(decoder: type[sg.Circuit]) -> None:
    leaf = sg.LinearPrecisionGaussian(2, (4, 4, 1), link="exp")
    model = decoder(2, (4, 4), components=1, leaves=leaf)
    q = td.Normal(torch.randn(3, 2), torch.rand(3, 2) + 0.1)
    x = torch.rand(3, 4, 4)
    torch.testing.assert_close(model.expected_log_prob(x, q), leaf.expected_log_prob(x.unsqueeze(-1), q))
    assert model.exactness(q) is sg.Exactness.EXACT
    assert sg.Circuit(2, 4).exactness(q) is sg.Exactness.LOWER_BOUND


def test_an_approximate_leaf_makes_an_approximate_circuit() -> None:
    q = td.Bernoulli(torch.full((3, 2), 0.5))
    leaves = [sg.LinearPrecisionGaussian(2, 4), sg.LinearGaussian(2, 4)]
    assert sg.Circuit(2, 4, 2, leaves=leaves).exactness(q) is sg.Exactness.APPROXIMATION
    assert sg.Circuit(2, 4, 2, leaves=leaves[1:] * 2).exactness(q) is sg.Exactness.LOWER_BOUND


# --- gates


def test_kearns_saul_is_never_below_the_generating_function() -> None:
    near = torch.logspace(-12, -1, 45, dtype=torch.float64)
    p = torch.cat([near, torch.linspace(0.1, 0.9, 81, dtype=torch.float64), 0.5 + near / 5, 0.5 - near / 5, 1 - near])
    t = torch.cat([-torch.logspace(-3, 2, 60), torch.logspace(-3, 2, 60)]).double().unsqueeze(1)
    excess = (
        p * t + kearns_saul(p.log() - (-p).log1p()) * t.square() / 2 - sg.generating_function(td.Bernoulli(p))(t).value
    )
    assert (excess >= -1e-14 * (1 + t.square())).all()
    assert excess[:, p == 0.5].max() > 0
    assert kearns_saul(torch.zeros(1, dtype=torch.float64)) == 0.25


@pytest.mark.parametrize("logit", [0.0, 1e-6, 0.0999, 0.1, 0.1001, 2.0, 80.0])
def test_kearns_saul_and_its_gradient(logit: float) -> None:
    at = torch.tensor(logit, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(kearns_saul, at, atol=1e-9)
    if logit > 0:
        p = torch.sigmoid(at)
        torch.testing.assert_close(kearns_saul(at), (2 * p - 1) / (2 * at), rtol=1e-9, atol=0)


def test_proxy_of_bits_touches_the_generating_function() -> None:
    """Kearns and Saul's parabola and the generating function meet at t = 2 log((1 - p) / p)."""
    p = torch.tensor([[0.1, 0.3, 0.9]], dtype=torch.float64)
    t = 2 * ((1 - p) / p).log()
    truth = (p * t.exp() + 1 - p).log().sum()
    torch.testing.assert_close((p * t).sum() + proxy(td.Bernoulli(p), t).squeeze(), truth, rtol=1e-12, atol=0)


def test_proxy_of_one_hot_latents_is_never_below_the_generating_function() -> None:
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 10.0):
        logits = scale * torch.randn(200, 1, 4, dtype=torch.float64, generator=generator)
        q = td.OneHotCategorical(logits=logits)
        weights = scale * torch.randn(50, 4, dtype=torch.float64, generator=generator)
        truth = (logits.log_softmax(-1) + weights).logsumexp(-1)
        assert (q.probs.squeeze(1) @ weights.T + proxy(q, weights).T - truth >= -1e-12).all()
    certain = td.OneHotCategorical(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64))
    assert (
        proxy(certain, weights / 10).max()
        < 0.1 * proxy(td.OneHotCategorical(torch.full((1, 4), 0.25).double()), weights / 10).max()
    )


@pytest.mark.parametrize("joint", [False, True])
def test_gaussian_latents_keep_the_bound(joint: bool) -> None:
    torch.manual_seed(2)
    circuit = sg.Circuit(2, 4, 3, gates="all").double()
    loc, scale = torch.randn(3, 2, dtype=torch.float64), torch.rand(3, 2, dtype=torch.float64)
    factor = torch.diag_embed(scale)
    q: td.Distribution = td.Normal(loc, scale)
    if joint:
        factor = factor + torch.tensor([[0.0, 0.0], [0.7, 0.0]], dtype=torch.float64)
        q = td.MultivariateNormal(loc, scale_tril=factor)
    nodes, weights = oracles.hermite(40)
    grid = torch.cartesian_prod(nodes, nodes)
    z = loc + torch.einsum("bij,sj->sbi", factor, grid)
    mass = torch.cartesian_prod(weights, weights).prod(-1, keepdim=True)
    x = torch.randn(3, 4, dtype=torch.float64)
    truth = (mass * circuit(z).log_prob(x)).sum(0)
    assert (circuit.expected_log_prob(x, q) <= truth).all()


# --- the distribution


def all_of(values: int, outputs: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(values), repeat=outputs)), dtype=torch.float64)


def discrete(leaves: str, gates: str = "all") -> sg.Circuit:
    torch.manual_seed(4)
    kinds = {
        "bits": lambda: [sg.LinearLikelihood(2, (2, 2), Bernoulli()) for _ in range(3)],
        "bits together": lambda: sg.LinearLikelihood(2, (2, 2, 3), Bernoulli()),
        "constants": lambda: sg.ConstantCategorical(2, (2, 2, 3), categories=2),
    }
    return sg.Circuit(2, (2, 2), 3, gates=gates, leaves=kinds[leaves]()).double()


@pytest.mark.parametrize("leaves", ["bits", "bits together", "constants"])
@pytest.mark.parametrize("gates", ["leaves", "all", "none"])
def test_probabilities_add_to_one(leaves: str, gates: str) -> None:
    p = discrete(leaves, gates)(torch.randn(5, 2, dtype=torch.float64))
    x = all_of(2, 4).reshape(16, 1, 2, 2).expand(16, 5, 2, 2)
    torch.testing.assert_close(p.log_prob(x).exp().sum(0), torch.ones(5, dtype=torch.float64))


def test_a_density_integrates_to_one() -> None:
    torch.manual_seed(5)
    circuit = sg.Circuit(2, 2, 3).double()
    grid = torch.linspace(-9, 9, 301, dtype=torch.float64)
    x = torch.cartesian_prod(grid, grid).unsqueeze(1)
    total = circuit(torch.randn(1, 2, dtype=torch.float64)).log_prob(x).exp().sum(0) * (grid[1] - grid[0]) ** 2
    torch.testing.assert_close(total, torch.ones(1, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("leaves", ["bits", "constants"])
def test_samples_and_moments_follow_log_prob(leaves: str) -> None:
    p = discrete(leaves)(torch.randn(1, 2, dtype=torch.float64))
    x = all_of(2, 4).reshape(16, 1, 2, 2)
    probabilities = p.log_prob(x).exp()
    mean = (probabilities[..., None, None] * x).sum(0)
    torch.testing.assert_close(p.mean, mean)
    torch.testing.assert_close(p.variance, (probabilities[..., None, None] * (x - mean).square()).sum(0))
    drawn = p.sample((20_000,)).flatten(1)
    counts = (drawn @ torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)).long().bincount(minlength=16)
    deviation = (probabilities.squeeze(1) * 20_000).sqrt()
    assert ((counts - 20_000 * probabilities.squeeze(1)).abs() < 5 * deviation + 1).all()


def test_gaussian_moments_follow_samples() -> None:
    torch.manual_seed(6)
    p = sg.Circuit(2, (3, 3), 4, gates="all").double()(torch.randn(2, 2, dtype=torch.float64))
    drawn = p.sample((40_000,))
    error = p.stddev / 200
    assert ((drawn.mean(0) - p.mean).abs() < 5 * error).all()
    torch.testing.assert_close(drawn.var(0), p.variance, rtol=0.1, atol=0)


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
    q = td.Normal(torch.zeros(4, 6, 2), 1.0)
    assert circuit.expected_log_prob(x[0, 0], q).shape == (4, 6)
    one = td.Independent(td.Normal(torch.zeros(2), torch.ones(2)), 1)
    assert circuit.expected_log_prob(x[0, 0, 0, 0], one).shape == ()
    none = td.Normal(torch.zeros(0, 2), torch.ones(0, 2))
    assert circuit.expected_log_prob(x[0, 0, 0, :0], none).shape == (0,)
    assert circuit(torch.zeros(2)).sample().shape == (1, 5, 3)
    checking = sg.CircuitDistribution(p.leaves, p.network, p.logits, event_dims=3, validate_args=True)
    with pytest.raises(ValueError, match="support"):
        checking.log_prob(torch.full((4, 6, 1, 5, 3), torch.nan))


# --- mixtures


@pytest.mark.parametrize(
    ("per", "shape"),
    [("output", (2, 3, 4, 3)), ("pixel", (3, 4, 3)), ("example", (3,)), ([range(12), range(12, 24)], (2, 3))],
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
    for group, outputs in enumerate(mixture.structure.outputs):
        for output in outputs:
            torch.testing.assert_close(groups[:, group], gradient[:, output])


def test_a_mixture_per_example_tells_clusters_apart() -> None:
    torch.manual_seed(8)
    truth = torch.randint(2, (64,))
    x = truth.unsqueeze(1) * torch.ones(6) + 0.05 * torch.randn(64, 6)
    mixture = sg.Mixture(2, 6, components=2, per="example")
    mixture.init_from_data(x)
    q = td.Normal(torch.zeros(64, 2), torch.full((64, 2), 0.1))
    found = mixture.responsibilities(x, q).argmax(-1)
    assert (found == truth).float().mean() > 0.99


# --- rounding and extremes


@pytest.mark.parametrize("gates", ["leaves", "all"])
def test_single_precision_is_close_to_double(gates: str) -> None:
    torch.manual_seed(9)
    circuit = sg.Circuit(8, (1, 9, 7), 5, gates=gates)
    loc, scale, x = torch.randn(6, 8), torch.rand(6, 8) + 0.05, torch.rand(6, 1, 9, 7)
    results = []
    for dtype in (torch.float32, torch.float64):
        model = circuit.to(dtype)
        value = model.expected_log_prob(x.to(dtype), td.Normal(loc.to(dtype), scale.to(dtype)))
        results.append([value.double(), *(g.double() for g in torch.autograd.grad(value.mean(), model.parameters()))])
    for single, double in zip(*results, strict=True):
        assert (single - double).abs().max() < 1e-4 * double.abs().max().clamp(min=0.1)


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
    for gradient in torch.autograd.grad(value.sum(), [loc, scale, *circuit.parameters()], allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


def test_weights_of_no_account_keep_their_gradient() -> None:
    """The only component that explains x has a logit of -50: the gradient raises it."""
    circuit = sg.Mixture(1, 1, components=2, gates=False)
    with torch.no_grad():
        circuit.leaves.decoder.centre.copy_(torch.tensor([0.0, 1000.0]))
        circuit.leaves.decoder.affine.weight.zero_()
        circuit.leaves.decoder.affine.bias.zero_()
        circuit.network.layers[0].logits.copy_(torch.tensor([[[50.0, -50.0]]]))
    value = circuit.expected_log_prob(torch.full((1, 1), 1000.0), td.Normal(torch.zeros(1, 1), torch.ones(1, 1)))
    assert -40 < value.item() < -20
    value.sum().backward()
    assert circuit.leaves.decoder.log_scale.grad[1] == pytest.approx(-1.0, rel=1e-3)


# --- latents that are not Gaussian, noise, half precision


def test_poisson_leaves_take_every_latent_with_a_generating_function() -> None:
    torch.manual_seed(11)
    leaves = [sg.LinearLikelihood(LATENTS, 4, Poisson()) for _ in range(2)]
    circuit = sg.Circuit(LATENTS, 4, 2, leaves=leaves).double()
    probs, x = torch.rand(3, LATENTS, dtype=torch.float64), torch.randint(9, (3, 4)).double()
    truth = enumerated(probs, circuit(BITS.unsqueeze(1).expand(-1, 3, -1)).log_prob(x))
    assert (circuit.expected_log_prob(x, td.Bernoulli(probs)) <= truth).all()


def test_half_precision_latents_are_widened() -> None:
    circuit = sg.Circuit(2, 4, 3)
    q = td.Normal(torch.zeros(3, 2), torch.ones(3, 2))
    half = td.Normal(q.loc.bfloat16(), q.scale.bfloat16())
    x = torch.ones(3, 4)
    torch.testing.assert_close(circuit.expected_log_prob(x.bfloat16(), half), circuit.expected_log_prob(x, q))


# --- bad input


def test_bad_input_is_named() -> None:
    with pytest.raises(sg.ShapeError, match="does not cover output 3"):
        sg.Circuit(2, 4, structure=sg.binary_tree(3))
    with pytest.raises(sg.ShapeError, match="only 4"):
        sg.Circuit(2, 4, structure=sg.binary_tree(5))
    with pytest.raises(sg.ShapeError, match="output 1 twice"):
        sg.Mixture(2, 3, per=[[0, 1], [1, 2]])
    with pytest.raises(sg.DomainError, match="neither outputs nor parts"):
        sg.Structure((-1, 0), ((0, 1), ()))
    with pytest.raises(sg.DomainError, match="circle"):
        sg.Structure((-1, 2, 1), ((0,), (1,), (2,)))
    with pytest.raises(sg.DomainError, match="does not exist"):
        sg.Structure((7,), ((0,),))
    with pytest.raises(sg.DomainError, match="components, got 0"):
        sg.Circuit(2, 4, components=0)
    with pytest.raises(sg.DomainError, match="gates"):
        sg.Circuit(2, 4, gates="some")
    with pytest.raises(sg.DomainError, match="per has to be"):
        sg.Mixture(2, 4, per="colour")
    with pytest.raises(sg.ShapeError, match="event_shape"):
        sg.Circuit(2, (0, 3))
    with pytest.raises(sg.ShapeError, match=r"event_shape \(5,\), expected \(4,\)"):
        sg.Circuit(2, 4, 2, leaves=[sg.LinearGaussian(2, 4), sg.LinearGaussian(2, 5)])
    with pytest.raises(sg.ShapeError, match="3 latents, expected 2"):
        sg.Circuit(2, 4, 1, leaves=[sg.LinearGaussian(3, 4)])
    with pytest.raises(sg.ShapeError, match="8 components, but 1 leaves"):
        sg.Circuit(2, 4, leaves=[sg.LinearGaussian(2, 4)])
    with pytest.raises(sg.IntractableError, match="no leaf"):
        sg.Circuit(2, 4, 1, leaves=[torch.nn.Linear(2, 4)])
    with pytest.raises(sg.ShapeError, match="image"):
        sg.quad_tree((5,))


class WholeOnly(sg.LinearGaussian):
    """Knows the expectation of all outputs together, as a decoder of somebody's own might."""

    output_form = sg.LinearDecoder.output_form


def test_a_decoder_without_a_per_output_expectation_is_refused() -> None:
    circuit = sg.Circuit(2, 4, 1, leaves=[WholeOnly(2, 4)])
    with pytest.raises(sg.IntractableError, match="WholeOnly knows no expectation of a single output"):
        circuit.expected_log_prob(torch.zeros(3, 4), td.Normal(torch.zeros(3, 2), 1.0))


def test_wrong_shapes_and_numbers_are_refused() -> None:
    circuit = sg.Circuit(2, 4, 3)
    q = td.Normal(torch.zeros(3, 2), torch.ones(3, 2))
    with pytest.raises(sg.ShapeError):
        circuit.expected_log_prob(torch.zeros(2, 4), q)
    with pytest.raises(sg.DomainError, match="not finite: x"):
        circuit.expected_log_prob(torch.full((3, 4), torch.nan), q)
    with pytest.raises(sg.ShapeError, match="examples of shape"):
        circuit.init_from_data(torch.zeros(5, 3))


def test_shapes_are_told_as_they_were_given() -> None:
    q = td.Normal(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(sg.ShapeError, match=r"expected examples of shape \(6,\), got x of shape \(2, 7\)"):
        sg.Circuit(3, 6).expected_log_prob(torch.zeros(2, 7), q)
