"""Every decoder with every latent family: value and gradient equal the oracle, or a named error says why not.

What is true of all decoders is checked here, over the lists of `members.py`.
"""

import copy
import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import members
import oracles
import silentgrad as sg
from members import ALL_DECODERS, ALL_LATENTS, BATCH, LIKELIHOODS, OUTPUTS, Decoder, Latent, by_sampling_law
from oracles import assert_close, derivatives
from refusals import refused

EVERY_PAIR = [(d, q) for d in ALL_DECODERS for q in ALL_LATENTS if q.name in d.families or not d.families]
PAIRS = [(d, q) for d, q in EVERY_PAIR if d.tractable(q) and q.name in members.FEW]
EACH_DECODER = pytest.mark.parametrize("decoder", ALL_DECODERS, ids=lambda m: m.name)


def each(pairs: Sequence[tuple[Decoder, Latent]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("decoder", "latent"), pairs, ids=[f"{d.name}, {q.name}" for d, q in pairs])


def error(actual: Tensor, expected: Tensor) -> float:
    """Largest deviation, relative to the tensor's largest entry."""
    return float(((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-6)).detach())


@each(EVERY_PAIR)
def test_value_and_derivatives_equal_the_oracle(decoder: Decoder, latent: Latent) -> None:
    """And the second derivative along a direction; twice the same bits, nothing drawn, in single precision close.

    And the value is what the decoder claims of it, against the law that it draws by.
    """
    parameters, model, x = latent.draw(), decoder.make(latent.latents), decoder.data(BATCH, OUTPUTS)
    q = latent.build(*parameters)
    if not decoder.tractable(latent):
        refused(sg.IntractableError, r"exp|register|Gaussian|exact", lambda: model.expected_log_prob(x, q))
        return
    leaves = [*parameters, *model.parameters()]
    if decoder.data is members.reals:
        leaves.append(x.requires_grad_())
    state = torch.get_rng_state()
    found = derivatives(model.expected_log_prob(x, q), leaves)
    again = derivatives(model.expected_log_prob(x, latent.build(*parameters)), leaves)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    expectation = latent.expectation(q)
    truth = derivatives(decoder.oracle(model, x, expectation), leaves)
    for gradient, expected in zip(found[: 1 + len(leaves)], truth[: 1 + len(leaves)], strict=True):
        assert error(gradient, expected) < 1e-10
    assert_close(found, truth, 1e-7)
    claim = model.exactness(q)
    require_claim(decoder, latent, claim, found[0], by_sampling_law(model, x, expectation))
    if approximate := claim is sg.Exactness.APPROXIMATION:
        message = "is an approximation.*allow_approximation"
        refused(sg.IntractableError, message, lambda: sg.Exact()(q, sg.integrand_of(model, x)))
    assert torch.equal(sg.Exact(approximate)(q, sg.integrand_of(model, x)), found[0])
    single = [leaf.detach().float().requires_grad_() for leaf in (x, *parameters)]
    value = model.float().expected_log_prob(single[0], latent.build(*single[1:]))
    weights = torch.linspace(1.0, -0.4, BATCH)  # those of `derivatives`
    gradients = torch.autograd.grad(value @ weights, [*single[1:], *model.parameters()])
    for close, double in zip([value, *gradients], found, strict=False):
        assert close.dtype == torch.float32
        assert error(close.double(), double) < 1e-4


def require_claim(decoder: Decoder, latent: Latent, claim: sg.Exactness, value: Tensor, law: Tensor) -> None:
    """An exact value is the expectation of the law that the decoder draws by; a bound is not above it."""
    if decoder.oracle in members.BOUNDS:
        assert claim is sg.Exactness.LOWER_BOUND
        assert (value <= law + 1e-10).all()
    elif decoder.name in ("a function", "linear link, taylor"):
        assert claim is sg.Exactness.APPROXIMATION
    elif decoder.oracle is by_sampling_law or latent.gaussian:
        assert claim is sg.Exactness.EXACT
        assert error(value, law) < 1e-10
    else:
        assert claim is sg.Exactness.APPROXIMATION


LEVELS = Decoder("circuit of levels", lambda d, s: sg.Circuit(d, s, 2, leaves=sg.DiscretizedLogistic(d, (*s, 2), 8)),
                 by_sampling_law, data=members.counts)  # fmt: skip
STATISTICAL = [(d, q) for d, q in PAIRS if d in LIKELIHOODS or d.name in ("mixture", "circuit")]


@each([*STATISTICAL, *((LEVELS, q) for q in ALL_LATENTS if q.name == "Normal")])
def test_statistics_make_the_log_probability_and_are_expected_as_told(decoder: Decoder, latent: Latent) -> None:
    """With their derivatives, in the latents' parameters and the decoder's."""
    parameters, model, x = latent.draw(), decoder.make(latent.latents), decoder.data(BATCH, OUTPUTS)
    q, integrand = latent.build(*parameters), sg.integrand_of(model, x)
    z = q.sample()
    torch.testing.assert_close(integrand.from_statistics(integrand.statistics(z)), integrand(z))
    found = members.flat(integrand.expected_statistics(q))
    pair = found, members.statistics_of(model, x, latent.expectation(q))
    assert_close(*(derivatives(value.flatten(), [*parameters, *model.parameters()]) for value in pair), 1e-7)


Place = Literal["as constructed", "without weights", "with gaps"]
BRANCHING = (  # with the other members each shares every branch with one of them
    *("units of the deviation", "fixed variance", "linear link, auto", "linear link, taylor"),
    *("exponential link", "Normal"),
)


@torch.no_grad()
def put(model: sg.LinearDecoder, place: Place) -> None:
    """At A = 0, as a newly made decoder has it; W = 0 as well, so that no variance reaches the outputs.

    Or with one output without weights, as a pixel that is always black has after a start from pPCA.
    """
    for layer in {model.affine, getattr(model, "precision_affine", model.affine)}:
        if place == "with gaps":
            layer.weight[0] = 0
            layer.weight[:, 0] = 0
        elif place == "without weights" or layer is not model.affine:
            layer.weight.zero_()


@each([(d, q) for d in ALL_DECODERS for q in ALL_LATENTS if d.name in BRANCHING and d.tractable(q)])
def test_derivatives_where_the_code_branches(decoder: Decoder, latent: Latent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kink that autograd sees and the mathematics does not have gives a right value with a wrong gradient.

    So each latent is put at the ends and the middle of its parameters too, each decoder at weights of zero.
    """
    monkeypatch.setattr(oracles, "ORDER", 12)  # enough for the tolerance below, in half the time
    x, learned = decoder.data(BATCH, OUTPUTS), "linear link" in decoder.name
    places, special = get_args(Place), members.SPECIAL.get(latent.name, [])
    points = [[torch.tensor(p, dtype=torch.float64, requires_grad=True) for p in point] for point in special]
    for parameters, place in itertools.product([latent.draw(), *points], places):
        if place == "with gaps" and learned:
            continue  # an output without variance and others with it: neither oracle serves all of them
        model, q = decoder.make(latent.latents), latent.build(*parameters)
        put(model, place)
        leaves = [*parameters, *model.parameters()]
        # Without a variance of v all log terms agree to second order, and Edgeworth's density is 0 / 0.
        oracle = by_sampling_law if learned else decoder.oracle
        expected = derivatives(oracle(model, x, latent.expectation(q)), leaves)
        assert_close(derivatives(model.expected_log_prob(x, q), leaves), expected, 1e-7)


@pytest.mark.parametrize("latent", ALL_LATENTS, ids=lambda m: m.name)
def test_moments_equal_the_oracle(latent: Latent) -> None:
    q = latent.build(*latent.draw())
    moments, expectation = sg.latents.central_moments(q), latent.expectation(q)
    mean = expectation(lambda z: z.flatten(2))
    torch.testing.assert_close(moments.mean.flatten(1), mean, rtol=1e-10, atol=1e-10)
    if isinstance(moments, sg.latents.JointMoments):
        covariance = expectation(lambda z: (z.flatten(2) - mean).unsqueeze(-1) * (z.flatten(2) - mean).unsqueeze(-2))
        size = moments.covariance.shape[-1]
        for group, block in enumerate(moments.covariance.reshape(BATCH, -1, size, size).unbind(1)):
            own = slice(group * size, (group + 1) * size)
            assert error(block, covariance[:, own, own]) < 1e-10
        return
    for order, moment in ((2, moments.s2), (3, moments.s3()), (4, moments.s4())):
        truth = expectation(lambda z, n=order: (z - mean) ** n)
        assert ((moment - truth) / moments.s2 ** (order / 2)).abs().max() < 1e-10


@pytest.mark.parametrize("latent", [m for m in ALL_LATENTS if m.tilts and m.independent], ids=lambda m: m.name)
@pytest.mark.parametrize("t", [-0.4, -1e-3, 0.0, 0.2, 0.5])
def test_cumulants_equal_the_oracle(latent: Latent, t: float) -> None:
    q = latent.build(*latent.draw())
    k, at, expectation = sg.latents.generating_function(q), torch.tensor(t, dtype=torch.float64), latent.expectation(q)
    if "Chi2" in latent.name and t > 0.3:
        refused(sg.DomainError, "t < r", lambda: k(at))
        return
    mass = expectation(lambda z: (t * z).exp())
    mean = expectation(lambda z: z * (t * z).exp()) / mass
    variance = expectation(lambda z: (z - mean).square() * (t * z).exp()) / mass
    torch.testing.assert_close(tuple(k(at)), (mass.log(), mean, variance), rtol=1e-10, atol=1e-12)


# Distributions that do not look at their parameters, which `torch.vmap` does not allow.
unchecked = partial(patch.object, td.Distribution, "_validate_args", False)


@each(PAIRS)
def test_a_batch_is_its_examples(decoder: Decoder, latent: Latent) -> None:
    """One by one, in another shape, and mapped by `torch.vmap` over all arguments or one of them; with its gradient."""
    model = decoder.make(latent.latents)
    arguments = decoder.data(BATCH, OUTPUTS), *(p.detach() for p in latent.draw())
    everything = tuple(range(len(arguments)))

    def value(x: Tensor, *parameters: Tensor) -> Tensor:
        return model.expected_log_prob(x, latent.build(*parameters))

    together = value(*arguments)
    torch.testing.assert_close(torch.stack([value(*row) for row in zip(*arguments, strict=True)]), together)
    torch.testing.assert_close(value(*(a.unsqueeze(1) for a in arguments)), together.unsqueeze(1))
    leaves = [a.clone().requires_grad_() for a in arguments[1:]]
    gradients = torch.autograd.grad(value(arguments[0], *leaves).sum(), leaves)
    with unchecked():  # torch can check a support neither under vmap nor over no examples
        mapped = torch.vmap(torch.func.grad_and_value(value, argnums=everything[1:]))(*arguments)
        torch.testing.assert_close(mapped, (gradients, together), rtol=1e-9, atol=1e-9)
        for position in everything:
            dims = tuple(0 if other == position else None for other in everything)
            rows = [a if other == position else a[0] for other, a in enumerate(arguments)]
            singly = [value(*rows[:position], row, *rows[position + 1 :]) for row in arguments[position]]
            torch.testing.assert_close(torch.vmap(value, dims)(*rows), torch.stack(singly), rtol=1e-10, atol=1e-10)
        leaf = torch.zeros(0, latent.latents, dtype=torch.float64, requires_grad=True)
        none = value(*(a[:0] for a in arguments)), sg.integrand_of(model, arguments[0][:0])(leaf)
        assert model(leaf).sample((3,)).shape == (3, 0, OUTPUTS)
    for empty in none:
        assert empty.shape == (0,)
        slopes = torch.autograd.grad(empty.sum(), [leaf, *model.parameters()], materialize_grads=True)
        assert not torch.cat([slope.flatten() for slope in slopes]).any()


class ExpectedLogProb(nn.Module):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, x: Tensor, q: td.Distribution) -> Tensor:
        return self.decoder.expected_log_prob(x, q)


def normal() -> td.Normal:
    loc, log_scale = torch.randn(2, BATCH, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return td.Normal(loc, (log_scale / 3).exp())


@EACH_DECODER
def test_states_ensembles_and_shapes(decoder: Decoder) -> None:
    """A state loads, decoders are mapped as an ensemble, and the outputs may lie in several dimensions."""
    models = [ExpectedLogProb(decoder.make(2, seed)) for seed in (1, 2, 3)]
    x, q = decoder.data(BATCH, OUTPUTS), normal()
    values = [model(x, q) for model in models]
    parameters, buffers = torch.func.stack_module_state(models)
    with unchecked():
        mapped = torch.vmap(lambda own: torch.func.functional_call(models[0], own, (x, q)))((parameters, buffers))
    torch.testing.assert_close(mapped, torch.stack(values), rtol=1e-10, atol=1e-10)
    wide = decoder.make(2, 2, shape=(1, OUTPUTS))
    for own, other in zip(wide.parameters(), models[2].parameters(), strict=True):
        own.data.copy_(other.reshape(own.shape))
    torch.testing.assert_close(wide.expected_log_prob(x.unsqueeze(1), q), values[2])
    models[0].load_state_dict(models[1].state_dict())
    assert torch.equal(models[0](x, q), values[1])
    assert torch.equal(copy.deepcopy(models[0])(x, q), values[1])


@EACH_DECODER
def test_samples_follow_the_log_probability(decoder: Decoder) -> None:
    """The chances of another z, relative to the first, average to one; without variance, log p is its expectation."""
    torch.manual_seed(0)
    model, z = decoder.make(2), torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    with torch.no_grad():
        p = model(z)
        x = p.sample((20_000,))
        ratio = (model(z + 0.1).log_prob(x) - p.log_prob(x)).exp()
        assert_mean(ratio, torch.ones(1))
        if decoder.name != "context":
            assert_mean(x, p.mean)
        if decoder.name not in ("context", "StudentT"):  # whose squares have no variance
            assert_mean((x - p.mean).square(), p.variance)
        if "taylor" not in decoder.name:
            sure = model.expected_log_prob(x[0], td.Normal(z, 1e-8))
            torch.testing.assert_close(sure, p.log_prob(x[0]), rtol=1e-6, atol=1e-6)


def assert_mean(draws: Tensor, truth: Tensor) -> None:
    """To five standard errors."""
    assert ((draws.mean(0) - truth).abs() <= 5 * draws.std(0) / len(draws) ** 0.5 + 1e-12).all()


OVERFLOWS = ("Poisson", "ZeroInflatedPoisson", "Gamma", "Waiting", "a function")  # an exponential of u, or of x - u


@pytest.mark.parametrize("size", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e4])
@EACH_DECODER
def test_extremes_are_finite(decoder: Decoder, scale: float, size: float) -> None:
    """In single precision, with all derivatives."""
    torch.manual_seed(0)
    model, x = decoder.build(2, (OUTPUTS,)), decoder.data(BATCH, OUTPUTS).float()
    if decoder.data is members.reals:
        x = size * x
    q = td.Normal(torch.zeros(BATCH, 2, requires_grad=True), torch.full((BATCH, 2), scale, requires_grad=True))
    if decoder.name in OVERFLOWS and max(scale, size) == 1e4 and (scale == 1e4 or decoder.data is members.reals):
        refused(sg.DomainError, "overflow", lambda: model.expected_log_prob(x, q))
        return
    value = model.expected_log_prob(x, q)
    leaves = [q.loc, q.scale, *model.parameters()]
    for result in (value, *torch.autograd.grad(value.sum(), leaves, materialize_grads=True)):
        assert result.isfinite().all()


PRECISIONS = [  # of the decoder, of the latent and of x, and the message
    (32, 64, 32, r"the latent is torch.float64, the decoder torch.float32.*decoder.to\(torch.float64"),
    (32, 64, 64, r"the latent is torch.float64, the decoder torch.float32: .*.to\(torch.float32\)"),
    (64, 32, 32, "the latent is torch.float32, the decoder torch.float64"),
    (32, 32, 64, r"x is torch.float64, the decoder torch.float32.*.to\(torch.float32\)"),
    (32, 64, 16, "the latent is torch.float64, the decoder torch.float32"),
]


def require_one_precision(model: nn.Module, x: Tensor, z: Tensor, message: str) -> None:
    refused(sg.DomainError, message, lambda: model.expected_log_prob(x, td.Normal(z, 1.0)))
    refused(sg.DomainError, message, lambda: sg.integrand_of(model, x)(z))


@EACH_DECODER
def test_half_precision_is_widened_and_two_precisions_are_refused(decoder: Decoder) -> None:
    model, x = decoder.make(2).float(), decoder.data(BATCH, OUTPUTS).bfloat16()
    half = td.Normal(*(p.bfloat16().requires_grad_() for p in (normal().loc, normal().scale)))
    wide = model.expected_log_prob(x.float(), td.Normal(half.loc.float(), half.scale.float()))
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = model.expected_log_prob(x, half)
            if isinstance(model, sg.Circuit):
                torch.testing.assert_close(model(half.loc).log_prob(x), model(half.loc.float()).log_prob(x.float()))
        assert torch.equal(value, wide)
        for gradient in torch.autograd.grad(value.sum(), [half.loc, half.scale, *model.parameters()]):
            assert gradient.isfinite().all()
    for *sizes, message in PRECISIONS:
        of_decoder, of_latent, of_x = (getattr(torch, f"float{size}") for size in sizes)
        require_one_precision(model.to(of_decoder), x.to(of_x), torch.zeros(BATCH, 2, dtype=of_latent), message)
    q, message = td.Normal(torch.zeros(BATCH, 2), half.scale.double()), "the latent's variance is torch.float64"
    refused(sg.DomainError, message, lambda: model.float().expected_log_prob(x.float(), q))
    refused(sg.DomainError, r"call decoder\.float\(\)", lambda: model.half().expected_log_prob(x, half))


TRACED = [  # every path through a closed form once
    *((d, q) for d, q in EVERY_PAIR if q.name == "Bernoulli" and "link" in d.name and d.tractable(q)),
    *((d, q) for d, q in EVERY_PAIR if q.name == "Normal" and d.name in (
        "fixed variance", "linear link, auto", "exponential link", "Bernoulli", "a function", "NegativeBinomial"
    )),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the tracer's own doing
@each(TRACED)
def test_traceable_in_one_graph(decoder: Decoder, latent: Latent) -> None:
    """Forward and backward, by the compiler's front end: no C++ compiler needed; with side information."""
    model, x, side_info = decoder.make(latent.latents).float(), decoder.data(BATCH, OUTPUTS).float(), {}
    parameters = [p.detach().float().requires_grad_() for p in latent.draw()]
    if decoder.name == "a function":
        model.nodes = 3
    if decoder.name == "NegativeBinomial":
        mask = torch.rand(BATCH, OUTPUTS) < 0.7
        side_info, x = {"offset": torch.rand_like(x), "mask": mask}, torch.where(mask, x, math.nan)

    def objective(*parameters: Tensor) -> Tensor:
        return model.expected_log_prob(x, latent.build(*parameters), **side_info).sum()

    torch.compiler.reset()  # no more graphs of one function are kept than there are cases here
    with unchecked():
        compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
        values = compiled(*parameters), objective(*parameters)
    torch.testing.assert_close(*values)
    gradients = [torch.autograd.grad(value, [*parameters, *model.parameters()]) for value in values]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@EACH_DECODER
def test_a_start_from_data_is_better_than_none(decoder: Decoder) -> None:
    """With an output of which nothing was observed, where there may be; or what the start lacks is named."""
    torch.manual_seed(0)
    model, x, side_info = decoder.build(2, (6,)), decoder.data(100, 6).float(), {}
    if decoder.name in members.WITHOUT_A_START:
        refused(sg.IntractableError, "u_at_mean", lambda: model.init_from_data(x))
        return
    if decoder in LIKELIHOODS:
        mask = torch.rand(x.shape) < 0.7
        mask[:, 2] = False
        side_info, x = {"mask": mask}, torch.where(mask, x, math.nan)
    q = td.Normal(torch.zeros(100, 2), 0.1)
    before = model.expected_log_prob(x, q, **side_info).mean()
    model.init_from_data(x, **side_info)
    value = model.expected_log_prob(x, q, **side_info)
    assert value.mean() > before
    value.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
