"""Decoders of Gaussians: schedules, families of a user's own, digits, and wrong input."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import oracles
import silentgrad as sg
from members import ALL_DECODERS, ALL_LATENTS, BATCH, OUTPUTS, Latent, reals
from refusals import Refusals, refusals, refused
from silentgrad.decoders import precision, projection

CHUNKED = ("Bernoulli", "MultivariateNormal", "OneHotCategorical")


def make(name: str, latents: int = 2) -> torch.nn.Module:
    (decoder,) = (decoder for decoder in ALL_DECODERS if decoder.name == name)
    return decoder.make(latents)


def test_edgeworth_is_ten_times_closer_to_enumeration_than_taylor() -> None:
    generator, errors = torch.Generator().manual_seed(0), {"edgeworth": [], "taylor": []}
    for _ in range(300):
        p = torch.rand(12, dtype=torch.float64, generator=generator)
        a = torch.randn(12, dtype=torch.float64, generator=generator) / 12**0.5
        c = 2 * torch.randn((), dtype=torch.float64, generator=generator)
        over_bits = oracles.on_grid(oracles.bits)(td.Bernoulli(p.unsqueeze(0)))
        truth = over_bits(lambda z, a=a, c=c: (z @ a + c).square().log())
        s2 = p * (1 - p)
        cumulants = (s2 * (1 - 2 * p)) @ a**3, (s2 * (1 - 6 * s2)) @ a**4
        for name, found in errors.items():
            found.append((getattr(precision, name)(p @ a + c, s2 @ a**2, *cumulants) - truth).abs().item())
    median = {name: torch.tensor(found).median().item() for name, found in errors.items()}
    assert median["edgeworth"] <= median["taylor"] / 10, median


@pytest.mark.parametrize("latent", [m for m in ALL_LATENTS if m.name in CHUNKED], ids=lambda m: m.name)
def test_chunks_change_nothing(latent: Latent, monkeypatch: pytest.MonkeyPatch) -> None:
    model, parameters, x, results = make("exponential link", latent.latents), latent.draw(), reals(BATCH, OUTPUTS), []
    for chunk in (projection.CHUNK, 2 * BATCH * latent.latents):
        monkeypatch.setattr(projection, "CHUNK", chunk)
        leaves = [*parameters, *model.parameters()]
        value = model.expected_log_prob(x, latent.build(*parameters))
        plain = torch.autograd.grad(value.sum(), leaves, retain_graph=True)
        results.append([*oracles.derivatives(value, leaves), *plain])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)


def test_a_schedule_changes_the_variance() -> None:
    decoder = sg.LinearGaussian(2, 3, variance=0.3)
    q, x = td.Normal(torch.zeros(1, 2), torch.ones(1, 2)), torch.ones(1, 3)
    before = decoder.expected_log_prob(x, q)
    decoder.set_variance(0.01)
    assert before != decoder.expected_log_prob(x, q)
    refused(sg.DomainError, "positive", lambda: decoder.set_variance(-1.0))  # which changes nothing
    torch.testing.assert_close(decoder(torch.zeros(1, 2)).stddev, torch.full((1, 3), 0.1))
    refused(sg.ShapeError, "one variance for all outputs, got one", lambda: decoder.set_variance(torch.ones(3)))
    each = sg.LinearGaussian(2, 3, torch.ones(3))
    each.set_variance(0.1)
    assert torch.equal(each.variance, torch.full((3,), 0.1))


def test_a_user_adds_a_family() -> None:
    class Own(td.Weibull):
        """A family whose moments are not registered."""

    decoder = sg.LinearGaussian(2, 1)
    q, x = Own(torch.ones(1, 2), 2.0), torch.zeros(1, 1)
    missing = sg.errors.UnregisteredLatentError
    refused(missing, r"Own[\s\S]*central_moments.register\(Own\)", lambda: decoder.expected_log_prob(x, q))

    @sg.latents.central_moments.register(Own)
    def _(q: Own) -> sg.latents.Moments:
        return sg.latents.Moments(q.mean, q.variance)

    same = td.Normal(q.mean, q.stddev)
    torch.testing.assert_close(decoder.expected_log_prob(x, q), decoder.expected_log_prob(x, same))
    with pytest.raises(missing, match=r"generating_function.register\(Own\)"):
        sg.LinearPrecisionGaussian(2, 1, link="exp").expected_log_prob(x, q)


@pytest.mark.parametrize("name", ["fixed variance", "Normal", "KnownNoise"])
def test_two_moments_are_enough(name: str) -> None:
    """The variance of StudentT(3) is 3, its fourth moment infinite."""
    decoder, x, loc = make(name).float(), torch.rand(4, OUTPUTS), torch.rand(4, 2)
    value = decoder.expected_log_prob(x, td.StudentT(torch.tensor(3.0), loc))
    torch.testing.assert_close(value, decoder.expected_log_prob(x, td.Normal(loc, 3**0.5)))


class Tilting(td.Distribution):
    """Bits of which only the generating function is known."""

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs
        super().__init__(probs.shape, validate_args=False)


@sg.latents.generating_function.register(Tilting)
def _(q: Tilting) -> sg.latents.GeneratingFunction:
    return sg.latents.generating_function(td.Bernoulli(q.probs))


def test_a_generating_function_alone_is_enough_but_for_the_linear_link() -> None:
    probs, x, linear = torch.rand(5, 2), torch.rand(5, 4), sg.LinearPrecisionGaussian(2, 4)
    for decoder in (sg.LinearGaussian(2, 4), sg.LinearPrecisionGaussian(2, 4, link="exp")):
        value = decoder.expected_log_prob(x, td.Independent(Tilting(probs), 1))
        torch.testing.assert_close(value, decoder.expected_log_prob(x, td.Bernoulli(probs)))
    missing = r"third and fourth central moments.*link='exp' or LinearGaussian"
    refused(sg.IntractableError, missing, lambda: linear.expected_log_prob(x, Tilting(probs)))


@refusals
def test_bad_input_is_named() -> Refusals:
    q, x, nan = td.Normal(torch.zeros(2, 3), torch.ones(2, 3)), torch.zeros(2, 2, 2), float("nan")
    decoder, linear = sg.LinearGaussian(3, (2, 2)), sg.LinearPrecisionGaussian(3, (2, 2))
    precise, wide = sg.LinearPrecisionGaussian(3, (2, 2), link="exp"), td.Laplace(q.loc, 1e4)
    torch.nn.init.constant_(precise.precision_affine.weight, 0.1)
    return {
        "x of another shape": (sg.ShapeError, r"\(2, 4\).*\(2, 2, 2\)", lambda: decoder.expected_log_prob(torch.zeros(2, 4), q)),
        "another batch": (sg.ShapeError, "x has shape", lambda: decoder.expected_log_prob(torch.zeros(5, 2, 2), q)),
        "another number of latents": (sg.ShapeError, "3 latents", lambda: decoder(torch.zeros(2, 4))),
        "NaN in x": (sg.DomainError, "not finite: x", lambda: decoder.expected_log_prob(nan * x, q)),
        "integers": (sg.DomainError, "dequantize", lambda: decoder.expected_log_prob(x.byte(), q)),
        "NaN in the latent": (sg.DomainError, "the latent", lambda: decoder.expected_log_prob(x, td.Normal(nan * q.loc, 1.0, validate_args=False))),
        "no distribution": (sg.errors.UnregisteredLatentError, "got Tensor", lambda: decoder.expected_log_prob(x, q.loc)),
        "variance of zero": (sg.DomainError, "positive", lambda: sg.LinearGaussian(3, 2, variance=0.0)),
        "variance of NaN": (sg.DomainError, "positive", lambda: sg.LinearGaussian(3, 2, variance=nan)),
        "variances of another shape": (sg.ShapeError, "variance", lambda: sg.LinearGaussian(3, 2, variance=torch.ones(3))),
        "no latents": (sg.ShapeError, "positive", lambda: sg.LinearGaussian(0, 2)),
        "unknown link": (sg.DomainError, "linear, exp; got 'cubic'", lambda: sg.LinearPrecisionGaussian(3, 2, link="cubic")),
        "unknown log term": (sg.DomainError, "log_term", lambda: sg.LinearPrecisionGaussian(3, 2, log_term="none")),
        "outside the domain": (sg.DomainError, r"\|t\| < 1/b", lambda: precise.expected_log_prob(x, wide)),
        "unknown method": (sg.DomainError, "ppca", lambda: decoder.init_from_data(torch.zeros(5, 2, 2), "pca")),
        "data of another shape": (sg.ShapeError, "examples", lambda: decoder.init_from_data(torch.zeros(5, 3))),
        "heavy tails": (sg.DomainError, "df > 2", lambda: sg.latents.central_moments(td.StudentT(torch.tensor([2.0])))),
        "tails too heavy for the link": (sg.DomainError, "df > 4.*LinearGaussian", lambda: linear.expected_log_prob(x, td.StudentT(q.scale + 2))),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own doing
def test_forward_derivatives_and_a_nan_under_vmap() -> None:
    decoder = sg.LinearPrecisionGaussian(3, 4)
    torch.nn.init.normal_(decoder.precision_affine.weight, std=0.05)
    q, x = td.Normal(torch.zeros(2, 3), 1.0), torch.rand(2, 4)
    transforms = torch.func.jacfwd, torch.func.jacrev
    torch.testing.assert_close(*(jacobian(lambda x: decoder.expected_log_prob(x, q))(x) for jacobian in transforms))
    x[1, 1], one = float("nan"), td.Normal(torch.zeros(3), 1.0)
    refused(sg.DomainError, r"not finite: x$", lambda: torch.vmap(lambda x: decoder.expected_log_prob(x, one))(x))


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
    sides = [decoder.double()(torch.full((1, 1), bit, dtype=torch.float64)).log_prob(x.double()) for bit in (0.0, 1.0)]
    torch.testing.assert_close(value.double(), 0.7 * sides[0] + 0.3 * sides[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("exponent", "dtype"),
    [(45.0, torch.float32), (80.0, torch.float32), (330.0, torch.float64), (600.0, torch.float64)],
)
def test_a_large_precision_is_not_cut(exponent: float, dtype: torch.dtype) -> None:
    decoder, x = sg.LinearPrecisionGaussian(1, 1, link="exp").to(dtype), torch.ones(1, 1, dtype=dtype)
    for parameter in decoder.parameters():
        nn.init.zeros_(parameter)
    nn.init.constant_(decoder.precision_affine.bias, exponent)
    truth = (exponent - math.exp(exponent) - math.log(2 * math.pi)) / 2
    rounding = 1e-12 if dtype == torch.float64 else 1e-5
    assert decoder.expected_log_prob(x, td.Normal(0 * x, x)).item() == pytest.approx(truth, rel=rounding)
    nn.init.constant_(decoder.precision_affine.bias, 95.0 if dtype == torch.float32 else 720.0)  # beyond the numbers
    refused(sg.DomainError, "overflow", lambda: decoder.expected_log_prob(x, td.Normal(0 * x, x)))


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

    refused(sg.DomainError, r".", lambda: closed_form(x, *own))
    assert torch.compile(closed_form, backend="eager", fullgraph=True)(x, *own).isnan().all()
