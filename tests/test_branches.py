"""Every closed form where its code branches or degenerates: value, gradient and second derivative equal the oracle.

A kink that autograd sees and the mathematics does not have gives a right value with a wrong gradient. So each latent is
put at the ends and the middle of its parameters, and each decoder at weights of zero, at the mean and on a level.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import mpmath
import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import oracles
import silentgrad as sg
from members import ALL_DECODERS, ALL_LATENTS, Decoder, Latent, by_sampling_law
from oracles import Expectation

DOUBLE = torch.float64
# The first two share every branch with another member of the list; a mixture has its branches in its leaves.
DECODERS = [d for d in ALL_DECODERS if d.name not in ("fixed variance per output", "linear link, auto", "mixture")]
X = torch.tensor([[0.2, -0.7, 1.1], [0.9, 0.4, -0.3]], dtype=DOUBLE)

# Parameters at which a family's formulas branch, beside the usual ones that every family is also tested at.
SPECIAL: dict[str, list[list[list[list[float]]]]] = {
    "Bernoulli": [
        [[[0.0, 0.5], [1.0, 0.3]]],
        [[[0.5, 0.5], [0.5, 0.5]]],
        [[[0.0, 1.0], [1.0, 0.0]]],
    ],
    "Bernoulli logits": [[[[0.0, 0.0], [-40.0, 40.0]]], [[[-800.0, 0.3], [0.2, 800.0]]]],
    "Binomial": [[[[0.0, 0.5], [1.0, 0.3]]]],
    "Geometric": [[[[1.0, 0.5], [0.4, 1.0]]]],
    "Poisson": [[[[1e-9, 1.0], [2.0, 1e-9]]]],
    "NegativeBinomial": [[[[1.0, 2.0], [1.0, 3.0]], [[1e-9, 0.3], [0.5, 1e-9]]]],
    "Normal": [[[[0.0, 0.0], [0.0, 1.0]], [[1e-9, 1.0], [1.0, 1e-9]]]],
    "Laplace": [[[[0.0, 0.0], [0.0, 1.0]], [[1e-6, 1.0], [1.0, 1e-6]]]],
    "Uniform": [[[[0.0, -1.0], [-0.5, 0.0]], [[1e-9, 1.0], [0.5, 2.0]]]],
    "HalfNormal": [[[[1e-6, 1.0], [2.0, 1e-6]]]],
}  # fmt: skip


def parameters_of(latent: Latent) -> Iterator[list[Tensor]]:
    """The usual parameters, then the special ones."""
    yield latent.draw()
    for point in SPECIAL.get(latent.name, []):
        yield [torch.tensor(values, dtype=DOUBLE).requires_grad_() for values in point]


def as_constructed(decoder: sg.LinearDecoder) -> None:
    """A = 0, as a newly made decoder has it."""
    if isinstance(decoder, sg.LinearPrecisionGaussian):
        nn.init.zeros_(decoder.precision_affine.weight)


def without_weights(decoder: sg.LinearDecoder) -> None:
    """W = 0 as well: no variance reaches the outputs."""
    as_constructed(decoder)
    nn.init.zeros_(decoder.affine.weight)


def with_gaps(decoder: sg.LinearDecoder) -> None:
    """One output without weights, as a pixel that is always black has after a start from pPCA."""
    with torch.no_grad():
        for layer in (decoder.affine, getattr(decoder, "precision_affine", decoder.affine)):
            layer.weight[0] = 0
            layer.weight[:, 0] = 0


PLACES = (as_constructed, without_weights, with_gaps)


def derivatives(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The value, its gradient, and its second derivative along a fixed direction."""
    weights = torch.linspace(1.0, -0.4, len(value), dtype=value.dtype)
    first = torch.autograd.grad(value @ weights, leaves, create_graph=True, materialize_grads=True)
    generator = torch.Generator().manual_seed(5)
    along = sum((g * torch.randn(g.shape, generator=generator, dtype=g.dtype)).sum() for g in first)
    second = torch.autograd.grad(along, leaves, retain_graph=True, materialize_grads=True)
    return [value, *first, *second]


def assert_close(actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    for position, (a, b) in enumerate(zip(actual, expected, strict=True)):
        scale = float(b.detach().abs().max()) + 1e-2  # where it vanishes, the quadrature leaves 1e-10
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * scale, msg=lambda m, n=position: f"{n}: {m}")


def oracle_at(decoder: Decoder, place: Callable, model: sg.LinearDecoder, expectation: Expectation) -> Tensor:
    """Without a variance of v all log terms agree with the truth to second order, and Edgeworth's density is 0 / 0."""
    degenerate = place in (as_constructed, without_weights) and "link" in decoder.name
    oracle = by_sampling_law if degenerate else decoder.oracle
    return oracle(model, X, expectation)


@pytest.mark.parametrize("latent", ALL_LATENTS, ids=lambda m: m.name)
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda m: m.name)
def test_value_gradient_and_second_derivative(
    decoder: Decoder, latent: Latent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracles, "ORDER", 12)  # enough for the tolerance below, in half the time
    if not decoder.tractable(latent):
        pytest.skip("no closed form, as the conformance suite checks")
    for parameters, place in itertools.product(parameters_of(latent), PLACES):
        if place is with_gaps and "link, " in decoder.name and "exact" not in decoder.name:
            continue  # an output without variance and others with it: neither oracle serves all of them
        model = decoder.make(latent.latents)
        place(model)
        leaves = [*parameters, *model.parameters()]
        q = latent.build(*parameters)
        expected = derivatives(oracle_at(decoder, place, model, latent.expectation(q)), leaves)
        assert_close(derivatives(model.expected_log_prob(X, q), leaves), expected, 1e-7)


LIKELIHOODS: dict[str, tuple[Callable[[], Callable], list[float]]] = {
    "Bernoulli": (sg.likelihoods.Bernoulli, [0.0, 0.5, 1.0]),
    "Poisson": (sg.likelihoods.Poisson, [0.0, 1.0, 7.0]),
    "Normal": (lambda: sg.likelihoods.Normal(3), [0.0, 0.4, -1.0]),
    "Laplace": (lambda: sg.likelihoods.Laplace(3), [0.1, 0.4, -1.0]),
    "StudentT": (lambda: sg.likelihoods.StudentT(3), [0.0, 0.4, -1.0]),
    "Logistic": (lambda: sg.likelihoods.Logistic(3), [0.0, 0.4, -1.0]),
    "DiscretisedLogistic": (lambda: sg.likelihoods.DiscretisedLogistic(3, levels=5), [0.0, 0.25, 1.0]),
    "a function": (lambda: lambda u: td.Bernoulli(logits=u, validate_args=False), [0.0, 0.5, 1.0]),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_without_variance(name: str) -> None:
    """At V = 0 the derivative in V is half the second derivative in u, by the heat equation."""
    build, data = LIKELIHOODS[name]
    likelihood = build()
    if isinstance(likelihood, nn.Module):
        likelihood.double()
    x = torch.tensor(data, dtype=DOUBLE)
    mean = torch.tensor([0.0, 0.3, -0.8], dtype=DOUBLE, requires_grad=True)
    variance = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    value = sg.expected_log_prob(likelihood, x, mean, variance)
    truth = likelihood(mean).log_prob(x)
    assert_close([value], [truth], 1e-8)
    in_mean, in_variance = torch.autograd.grad(value.sum(), (mean, variance), create_graph=True)
    (slope,) = torch.autograd.grad(truth.sum(), mean, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), mean, materialize_grads=True)
    assert_close([in_mean, in_variance], [slope, curvature / 2], 1e-7)
    (second,) = torch.autograd.grad(in_mean.sum(), mean, materialize_grads=True)
    assert_close([second], [curvature], 1e-7)


# log E[exp(t z)] to fifty digits, straight from the definition of the family.
FAR = (-1e4, -800.0, -300.0, -89.0, -40.0, -3.0, -2.0, -0.3, -1e-8, 0.0, 1e-8, 0.3, 39.0, 41.0, 60.0, 89.0, 300.0, 1e4)
FIFTY_DIGITS: dict[str, tuple[Callable[[Tensor], td.Distribution], Callable, Sequence[float], Sequence[float]]] = {
    "Bernoulli": (
        td.Bernoulli, lambda t, p: mpmath.log(1 - p + p * mpmath.exp(t)), (0.0, 1e-30, 1e-6, 0.3, 0.5, 0.9, 1.0), FAR
    ),
    "Bernoulli logits": (
        lambda s: td.Bernoulli(logits=s),
        lambda t, s: mpmath.log((1 + mpmath.exp(s + t)) / (1 + mpmath.exp(s))), (-60.0, -5.0, 0.0, 20.0, 60.0), FAR,
    ),
    "HalfNormal": (
        td.HalfNormal,
        lambda t, s: mpmath.log(mpmath.erfc(-s * t / mpmath.sqrt(2))) + (s * t) ** 2 / 2, (1.0, 1e-3),
        [t for t in FAR if t < 5],
    ),
    "Uniform": (
        lambda high: td.Uniform(torch.zeros_like(high), high),
        lambda t, h: mpmath.log(mpmath.expm1(h * t) / (h * t)) if t else mpmath.mpf(0), (1.0, 0.02), FAR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
@pytest.mark.parametrize("name", FIFTY_DIGITS)
def test_generating_functions_far_from_zero(name: str, dtype: torch.dtype) -> None:
    build, formula, parameters, points = FIFTY_DIGITS[name]
    tolerance = 1e-12 if dtype == DOUBLE else 2e-5
    for parameter, point in itertools.product(parameters, points):
        own, t = (torch.tensor(a, dtype=dtype).requires_grad_() for a in (parameter, point))
        k = sg.generating_function(build(own))(t)
        (slope,) = torch.autograd.grad(k.value, t, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, t, retain_graph=True)
        with mpmath.workdps(50):
            exact = [mpmath.mpf(a.item()) for a in (t, own)]
            truth = [float(mpmath.diff(formula, tuple(exact), (n, 0))) for n in range(3)]
        found = [a.item() for a in (k.value, k.mean, k.variance, slope, curvature)]
        for a, b in zip(found, [*truth, *truth[1:]], strict=True):
            assert a == pytest.approx(b, rel=tolerance, abs=tolerance), (parameter, point, found, truth)


def test_an_impossible_category_does_not_hide_the_others() -> None:
    """The exponent of a category without probability is by far the largest."""
    decoder = sg.LinearPrecisionGaussian(3, 1, link="exp")
    with torch.no_grad():
        decoder.precision_affine.weight.copy_(torch.tensor([[200.0, 0.0, 0.1]]))
    x = torch.zeros(1, 1)
    probs = torch.tensor([[0.0, 0.4, 0.6]])
    value = decoder.expected_log_prob(x, td.OneHotCategorical(probs=probs))
    truth = sum(p * decoder(z).log_prob(x) for p, z in zip((0.4, 0.6), torch.eye(3)[1:], strict=True))
    torch.testing.assert_close(value, truth)


@pytest.mark.parametrize("weight", [-89.0, -800.0])
def test_steep_precision_of_a_bit(weight: float) -> None:
    """The expectation is that of both values of the bit, of which one has a vanishing precision."""
    decoder = sg.LinearPrecisionGaussian(1, 1, link="exp")
    nn.init.constant_(decoder.precision_affine.weight, weight)
    x, p = torch.zeros(1, 1), torch.tensor([[0.3]], requires_grad=True)
    value = decoder.expected_log_prob(x, td.Bernoulli(p))
    gradients = torch.autograd.grad(value.sum(), [p, *decoder.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    sides = [decoder.double()(torch.full((1, 1), bit, dtype=DOUBLE)).log_prob(x.double()) for bit in (0.0, 1.0)]
    expected = 0.7 * sides[0] + 0.3 * sides[1]
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("dtype", "exponent"), [(torch.float32, 45.0), (torch.float32, 80.0), (DOUBLE, 330.0), (DOUBLE, 600.0)]
)
def test_a_large_precision_is_not_cut(dtype: torch.dtype, exponent: float) -> None:
    decoder = sg.LinearPrecisionGaussian(1, 1, link="exp").to(dtype)
    nn.init.constant_(decoder.precision_affine.bias, exponent)
    nn.init.zeros_(decoder.affine.weight)
    nn.init.zeros_(decoder.affine.bias)
    q = td.Normal(torch.zeros(1, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype))
    value = decoder.expected_log_prob(torch.ones(1, 1, dtype=dtype), q)
    with mpmath.workdps(50):
        truth = (exponent - mpmath.exp(exponent) - mpmath.log(2 * mpmath.pi)) / 2
        assert abs(value.item() / truth - 1) < (1e-12 if dtype == DOUBLE else 1e-5)


@pytest.mark.parametrize(("dtype", "exponent"), [(torch.float32, 95.0), (DOUBLE, 720.0)])
def test_a_precision_beyond_the_numbers_is_an_error(dtype: torch.dtype, exponent: float) -> None:
    decoder = sg.LinearPrecisionGaussian(1, 1, link="exp").to(dtype)
    nn.init.constant_(decoder.precision_affine.bias, exponent)
    q = td.Normal(torch.zeros(1, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype))
    with pytest.raises(sg.DomainError, match="overflow"):
        decoder.expected_log_prob(torch.ones(1, 1, dtype=dtype), q)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the tracer's own doing
@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        (td.Gumbel, (0.0, 2.0)), (td.Laplace, (0.0, 2.0)), (td.Gamma, (1.0, 0.5)), (td.NegativeBinomial, (1.0, 0.9)),
    ],
)  # fmt: skip
def test_a_compiled_graph_answers_nan_where_a_moment_is_infinite(
    family: Callable[..., td.Distribution], parameters: tuple[float, float]
) -> None:
    decoder = sg.LinearPrecisionGaussian(1, 2, link="exp")
    nn.init.constant_(decoder.precision_affine.weight, 1.0)
    own = [torch.full((3, 1), value) for value in parameters]
    x = torch.zeros(3, 2)

    def closed_form(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return decoder.expected_log_prob(x, family(a, b, validate_args=False))

    with pytest.raises(sg.DomainError):
        closed_form(x, *own)
    assert torch.compile(closed_form, backend="eager", fullgraph=True)(x, *own).isnan().all()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("likelihood", "wrong"),
    [(sg.likelihoods.Bernoulli(), 5.0), (sg.likelihoods.Poisson(), -1.0),
     (sg.likelihoods.DiscretisedLogistic(2, levels=5), 0.3)],
)  # fmt: skip
def test_a_compiled_graph_answers_nan_for_impossible_data(likelihood: nn.Module, wrong: float) -> None:
    decoder = sg.LinearLikelihood(1, 2, likelihood)
    x, loc = torch.full((3, 2), wrong), torch.zeros(3, 1)

    def closed_form(x: Tensor, loc: Tensor) -> Tensor:
        return decoder.expected_log_prob(x, td.Normal(loc, 1.0, validate_args=False))

    with pytest.raises(sg.DomainError):
        closed_form(x, loc)
    assert torch.compile(closed_form, backend="eager", fullgraph=True)(x, loc).isnan().all()


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "decoder",
    [
        lambda: sg.LinearGaussian(2, 3, 0.3),
        lambda: sg.LinearPrecisionGaussian(2, 3, link="linear"),
        lambda: sg.LinearPrecisionGaussian(2, 3, link="exp"),
        lambda: sg.LinearLikelihood(2, 3, sg.likelihoods.Poisson()),
        lambda: sg.LinearLikelihood(2, 3, sg.likelihoods.Laplace(3)),
    ],
    ids=["fixed", "linear", "exp", "Poisson", "Laplace"],
)
@pytest.mark.parametrize("family", ["Normal", "Bernoulli"])
def test_forward_under_autocast_and_backward_outside_it(decoder: Callable, family: str, narrow: torch.dtype) -> None:
    """The usual mixed precision; the closed form sees what the encoder gave, widened."""
    torch.manual_seed(0)
    model, encoder = decoder(), nn.Linear(3, 4)
    x = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]])
    if family == "Bernoulli" and isinstance(model, sg.LinearLikelihood) and "Laplace" in repr(model):
        pytest.skip("u is not Gaussian")

    def latent(numbers: Tensor) -> td.Distribution:
        loc, log_scale = numbers.chunk(2, -1)
        return td.Normal(loc, log_scale.exp()) if family == "Normal" else td.Bernoulli(logits=loc)

    with torch.autocast("cpu", dtype=narrow):
        numbers = encoder(x)
        value = model.expected_log_prob(x, latent(numbers))
    assert numbers.dtype == narrow
    assert value.dtype == torch.float32
    value.sum().backward()
    kept = numbers.detach().float().requires_grad_()
    truth = model.expected_log_prob(x, latent(kept))
    torch.testing.assert_close(value, truth, rtol=0.02, atol=0)
    assert all(p.grad is None or p.grad.isfinite().all() for p in (*encoder.parameters(), *model.parameters()))
    assert encoder.weight.grad.abs().sum() > 0


def test_half_precision_is_widened_or_refused() -> None:
    """E|u| at the smallest variance was 0.288 in half precision: an offset meant not to be noticed was 0.02."""
    zero, tenth = torch.zeros(1, dtype=torch.float16), torch.full((1,), 0.1, dtype=torch.float16)
    likelihood = sg.likelihoods.Laplace(1)
    narrow = sg.expected_log_prob(likelihood, tenth, zero, zero)
    torch.testing.assert_close(narrow, likelihood(zero.float()).log_prob(tenth.float()))
    decoder = sg.LinearGaussian(2, 3).half()
    q = td.Normal(torch.zeros(1, 2).half(), torch.ones(1, 2).half())
    with pytest.raises(sg.DomainError, match=r"decoder\.float"):
        decoder.expected_log_prob(torch.zeros(1, 3).half(), q)
    assert decoder.float().expected_log_prob(torch.zeros(1, 3).half(), q).dtype == torch.float32


@pytest.mark.parametrize(
    "family",
    [td.Bernoulli, lambda p: td.OneHotCategorical(torch.stack([p, 1 - p], -1).squeeze(-2), validate_args=False)],
)
def test_a_batch_of_no_examples_has_no_expectations(family: Callable[[Tensor], td.Distribution]) -> None:
    q = family(torch.full((0, 1), 0.5))
    decoder = sg.LinearPrecisionGaussian(q.mean.shape[-1], 3, link="exp")
    assert decoder.expected_log_prob(torch.zeros(0, 3), q).shape == (0,)


def test_counts_from_logits_keep_their_digits() -> None:
    """1 - p rounds to one for small p, and p to one for large logits."""
    q = td.NegativeBinomial(torch.tensor(3.0), logits=torch.tensor(20.0))
    with mpmath.workdps(50):
        odds = mpmath.exp(20)
        assert float(sg.central_moments(q).s2) == pytest.approx(float(3 * odds * (1 + odds)), rel=1e-6)
        truth = -3 * mpmath.log(1 - odds * mpmath.expm1(mpmath.mpf("-1e-3")))
        assert float(sg.generating_function(q)(torch.tensor(-1e-3)).value) == pytest.approx(float(truth), rel=1e-6)
