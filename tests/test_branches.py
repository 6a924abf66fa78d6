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
from members import ALL_LATENTS, GAUSSIANS, LIKELIHOODS, Decoder, Latent, by_sampling_law
from oracles import Expectation, assert_close, derivatives

DOUBLE = torch.float64
# Those left out share every branch with another member.
DECODERS = [
    *(d for d in GAUSSIANS if d.name not in ("fixed variance per output", "linear link, exact")),
    *(d for d in LIKELIHOODS if d.name == "Normal"),
]
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
        k = sg.latents.generating_function(build(own))(t)
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
    x, q = torch.zeros(1, 1), td.OneHotCategorical(torch.tensor([[0.0, 0.4, 0.6]]))
    value = decoder.expected_log_prob(x, q)
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
    torch.testing.assert_close(value.double(), 0.7 * sides[0] + 0.3 * sides[1], rtol=1e-5, atol=0)


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
    nn.init.constant_(decoder.precision_affine.bias, 95.0 if dtype == torch.float32 else 720.0)
    with pytest.raises(sg.DomainError, match="overflow"):  # beyond the numbers
        decoder.expected_log_prob(torch.ones(1, 1, dtype=dtype), q)
    with mpmath.workdps(50):
        truth = (exponent - mpmath.exp(exponent) - mpmath.log(2 * mpmath.pi)) / 2
        assert abs(value.item() / truth - 1) < (1e-12 if dtype == DOUBLE else 1e-5)


IMPOSSIBLE: dict[str, tuple[nn.Module | None, float, Callable[..., td.Distribution], float, float]] = {
    "Gumbel": (None, 0.0, td.Gumbel, 0.0, 2.0),
    "Laplace": (None, 0.0, td.Laplace, 0.0, 2.0),
    "Gamma": (None, 0.0, td.Gamma, 1.0, 0.5),
    "NegativeBinomial": (None, 0.0, td.NegativeBinomial, 1.0, 0.9),
    "a bit of five": (sg.likelihoods.Bernoulli(), 5.0, td.Normal, 0.0, 1.0),
    "a negative count": (sg.likelihoods.Poisson(), -1.0, td.Normal, 0.0, 1.0),
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the tracer's own doing
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_compiled_graph_answers_nan_for_infinite_moments_and_impossible_data(case: str) -> None:
    likelihood, wrong, family, *parameters = IMPOSSIBLE[case]
    decoder = sg.LinearLikelihood(1, 2, likelihood) if likelihood else sg.LinearPrecisionGaussian(1, 2, link="exp")
    if likelihood is None:
        nn.init.constant_(decoder.precision_affine.weight, 1.0)
    x, own = torch.full((3, 2), wrong), [torch.full((3, 1), value) for value in parameters]

    def closed_form(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return decoder.expected_log_prob(x, family(a, b, validate_args=False))

    with pytest.raises(sg.DomainError):
        closed_form(x, *own)
    assert torch.compile(closed_form, backend="eager", fullgraph=True)(x, *own).isnan().all()


def test_half_precision_is_widened() -> None:
    """E|u| at the smallest variance was 0.288 in half precision: an offset meant not to be noticed was 0.02."""
    zero, tenth = torch.zeros(1, dtype=torch.float16), torch.full((1,), 0.1, dtype=torch.float16)
    likelihood = sg.likelihoods.Laplace(1)
    narrow = sg.likelihoods.expected_log_prob(likelihood, tenth, zero, zero)
    torch.testing.assert_close(narrow, likelihood(zero.float()).log_prob(tenth.float()))


def of_geometric(t: mpmath.mpf, p: mpmath.mpf) -> mpmath.mpf:
    return mpmath.log(p) - mpmath.log(1 - (1 - p) * mpmath.exp(t))


DIGITS = {  # of counts whose 1 - p rounds to one for small p, and p to one for large logits
    **{f"Geometric({p})": (td.Geometric, of_geometric, p, 0.3 * p) for p in (1e-6, 1e-4, 0.3, 0.999999)},
    "Geometric, logits": (
        lambda s: td.Geometric(logits=s), lambda t, s: of_geometric(t, 1 / (1 + mpmath.exp(-s))), 20.0, 1.0
    ),
    "NegativeBinomial, logits": (
        lambda s: td.NegativeBinomial(3.0, logits=s),
        lambda t, s: -3 * mpmath.log(1 - mpmath.exp(s) * mpmath.expm1(t)), 20.0, -1e-3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DIGITS)
def test_counts_keep_their_digits_in_single_precision(case: str) -> None:
    build, formula, parameter, at = DIGITS[case]
    own, t = torch.tensor([parameter, at]).unbind()
    q = build(own)
    with mpmath.workdps(60):
        exact = mpmath.mpf(own.item())
        s2, s4 = (mpmath.diff(formula, (mpmath.mpf(0), exact), (n, 0)) for n in (2, 4))
        mean, s3 = (mpmath.diff(formula, (mpmath.mpf(0), exact), (n, 0)) for n in (1, 3))
        tilted = [float(mpmath.diff(formula, (mpmath.mpf(t.item()), exact), (n, 0))) for n in range(3)]
        truth = [float(moment) for moment in (mean, s2, s3, s4 + 3 * s2**2)]
    moments, k = sg.latents.central_moments(q), sg.latents.generating_function(q)(t)
    assert [float(m) for m in (moments.mean, moments.s2, moments.s3(), moments.s4())] == pytest.approx(truth, rel=1e-6)
    assert [float(number) for number in k] == pytest.approx(tilted, rel=2e-6)
