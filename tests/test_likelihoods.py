"""Likelihoods beyond the Gaussian: values and derivatives against adaptive quadrature, decoders against the oracles."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch import distributions as td

import laws
import oracles
import silentgrad as sg
from laws import DF, SCALE, SHAPE, THRESHOLDS, TRIALS, ZEROS, R
from refusals import Refusals, refusals
from silentgrad import likelihoods
from silentgrad.likelihoods import expected_log_prob
from silentgrad.mathematics import quadrature

DOUBLE = torch.float64
Point = tuple[float, float, float]  # x, mean and deviation
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
PAGE = (Path(__file__).parents[1] / "docs" / "likelihoods.md").read_text()


@dataclass(frozen=True)
class Case:
    """A likelihood, its log-probability by another library, and where it is tried."""

    build: Callable[[], torch.nn.Module]
    log_prob: Callable[[float, np.ndarray], np.ndarray]
    xs: tuple[float, ...]
    deviations: tuple[float, ...] = (0.01, 0.1, 0.5, 1, 3, 10, 100)
    means: tuple[float, ...] = (-30, -4, -0.5, 0, 0.3, 2, 12)
    bend: float | None = None  # where it bends in u; at x if None


NARROW = {"deviations": (0.01, 0.1, 0.5, 1, 3), "means": (-4, -0.5, 0, 0.3, 2)}  # where exponentials are numbers
CASES = {
    "Bernoulli": Case(likelihoods.Bernoulli, lambda x, u: x * u - np.logaddexp(0, u), (0.0, 0.3, 1.0), bend=0.0),
    "Poisson": Case(likelihoods.Poisson, laws.log_poisson, (0.0, 1.0, 7.0), **NARROW, bend=0.0),
    "NegativeBinomial": Case(lambda: likelihoods.NegativeBinomial(()), laws.log_negative_binomial, (0.0, 1.0, 7.0),
                             bend=math.log(R)),
    "ZeroInflatedPoisson": Case(lambda: likelihoods.ZeroInflatedPoisson(()), laws.inflated(laws.log_poisson),
                                (1.0, 7.0), **NARROW, bend=0.0),  # at a zero it is a bound
    "ZeroInflatedNegativeBinomial": Case(lambda: likelihoods.ZeroInflatedNegativeBinomial(()),
                                         laws.inflated(laws.log_negative_binomial), (1.0, 7.0), bend=math.log(R)),
    "Binomial": Case(lambda: likelihoods.Binomial(TRIALS), laws.log_binomial, (0.0, 4.0, 10.0), bend=0.0),
    "Ordinal": Case(lambda: likelihoods.Ordinal((), 4), laws.log_category, (0.0, 1.0, 3.0), bend=0.0),
    "LogNormal": Case(lambda: likelihoods.LogNormal(()), laws.log_normal, (0.3, 2.0), bend=0.0),
    "Gamma": Case(lambda: likelihoods.Gamma(()), laws.log_gamma, (0.3, 2.0), **NARROW, bend=0.0),
    "Normal": Case(lambda: likelihoods.Normal(()), lambda x, u: stats.norm.logpdf(x, u, SCALE), (0.0, 0.7)),
    "Laplace": Case(lambda: likelihoods.Laplace(()), lambda x, u: -abs(x - u) / SCALE - np.log(2 * SCALE), (0.0, 0.7)),
    "StudentT": Case(lambda: likelihoods.StudentT((), DF), lambda x, u: stats.t.logpdf(x, DF, u, SCALE), (0.0, 0.7)),
    "Logistic": Case(lambda: likelihoods.Logistic(()), lambda x, u: stats.logistic.logpdf(x, u, SCALE), (0.0, 0.7)),
}  # fmt: skip
EACH_CASE = pytest.mark.parametrize("name", CASES)


START = {
    "log_scale": math.log(SCALE),
    "log_inverse_dispersion": math.log(R),
    "log_shape": math.log(SHAPE),
    "zero_logit": ZEROS,
    "first": THRESHOLDS[0],
    "log_gaps": np.log(np.diff(THRESHOLDS)).tolist(),
}


def with_parameters(likelihood: torch.nn.Module, **values: float | list[float]) -> torch.nn.Module:
    """In double precision, with numbers for all that it learns."""
    with torch.no_grad():
        for name, parameter in likelihood.double().named_parameters():
            parameter.copy_(torch.tensor((START | values)[name.split(".")[-1]], dtype=DOUBLE))
    return likelihood


def make(name: str) -> torch.nn.Module:
    return with_parameters(CASES[name].build())


def grid(name: str) -> tuple[list[Point], np.ndarray]:
    """All points of a case and the truths there, a row each."""
    case = CASES[name]
    points = [(x, float(m), float(s)) for x in case.xs for m in case.means for s in case.deviations]
    bends = [x if case.bend is None else case.bend for x, _, _ in points]
    laws = [partial(case.log_prob, x) for x, _, _ in points]
    rows = [oracles.over_gaussian(law, *at, bend) for law, (_, *at), bend in zip(laws, points, bends, strict=True)]
    return points, np.array(rows)


def evaluate(likelihood: Callable[[Tensor], td.Distribution], points: list[Point], dtype: torch.dtype) -> np.ndarray:
    """Value and derivatives in mean and variance at all points, a row each."""
    x, mean, deviation = torch.tensor(points, dtype=DOUBLE).to(dtype).T
    mean, variance = mean.clone().requires_grad_(), deviation.square().requires_grad_()
    value = expected_log_prob(likelihood, x, mean, variance)
    gradients = torch.autograd.grad(value.sum(), [mean, variance])
    return torch.stack([value.detach(), *gradients], -1).double().numpy()


def errors(actual: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The largest error of the value and of the derivatives, relative to the truth where that is above 1."""
    error = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
    return float(error[:, 0].max()), float(error[:, 1:].max())


def stated(row: str) -> list[float]:
    """The figures of a row of the page's tables."""
    (cells,) = re.findall(rf"^\| `?{re.escape(row)}`? \|(.*)\|$", PAGE, re.MULTILINE)
    return [float(cell) for cell in cells.split("|") if re.fullmatch(r" *[\d.]+(e-\d+)? *", cell)]


@EACH_CASE
def test_errors_are_those_stated(name: str) -> None:
    points, expected = grid(name)
    double, single = evaluate(make(name), points, DOUBLE), evaluate(make(name).float(), points, torch.float32)
    found = [*errors(double, expected), *errors(single, expected)]
    print(name, *(f"{error:.1e}" for error in found))
    assert all(error <= limit for error, limit in zip(found, stated(name), strict=True)), found


@pytest.mark.parametrize("deviation", [0.5, 1, 2, 3, 5, 10])
def test_errors_of_plain_quadrature_are_those_stated(deviation: float) -> None:
    """What a likelihood of a user's own gets: the Bernoulli one given as a function, so that nothing knows it."""
    points = [(1.0, m, float(deviation)) for m in (-4.0, -0.5, 0.0, 0.3, 2.0)]
    rows = [oracles.over_gaussian(partial(CASES["Bernoulli"].log_prob, 1.0), m, s, 0.0) for _, m, s in points]
    found = errors(evaluate(lambda u: td.Bernoulli(logits=u), points, DOUBLE), np.array(rows))
    print(deviation, *(f"{error:.1e}" for error in found))
    assert all(error <= limit for error, limit in zip(found, stated(f"{deviation}"), strict=True)), found


@EACH_CASE
def test_the_law_itself_is_that_of_the_other_library(name: str) -> None:
    case = CASES[name]
    u = torch.linspace(-5, 5, 41, dtype=DOUBLE)
    for x in case.xs:
        log_prob = make(name)(u).log_prob(torch.full_like(u, x))
        np.testing.assert_allclose(log_prob.detach(), case.log_prob(x, u.numpy()), rtol=1e-10)


@pytest.mark.parametrize("mean", [1e-3, 0.4, 30.0])
def test_references_are_those_of_scipy(mean: float) -> None:
    u, counts = math.log(mean), np.arange(0, TRIALS + 1)
    p = mean / (1 + mean)
    spread, tried = ([log(x, u) for x in counts] for log in (laws.log_negative_binomial, laws.log_binomial))
    np.testing.assert_allclose(spread, stats.nbinom.logpmf(counts, R, R / (R + mean)), rtol=1e-11)
    np.testing.assert_allclose(tried, stats.binom.logpmf(counts, TRIALS, p), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(laws.log_normal(2.0, u), stats.lognorm.logpdf(2.0, SCALE, scale=mean), rtol=1e-12)
    assert sum(np.exp(laws.log_category(x, u)) for x in range(4)) == pytest.approx(1, rel=1e-13)


@pytest.mark.parametrize("name", [*CASES, "a function"])
def test_no_variance_is_the_log_probability_itself(name: str) -> None:
    """At V = 0 the derivative in V is half the second derivative in u, by the heat equation."""
    law = (lambda u: td.Bernoulli(logits=u, validate_args=False)) if name == "a function" else make(name)
    xs = torch.tensor(CASES[name].xs if name in CASES else (0.0, 0.5, 1.0), dtype=DOUBLE)
    x, mean = torch.cartesian_prod(xs, torch.cat([torch.tensor([-2.0, -0.8, 0.0, 0.3, 3.0]), xs])).T
    mean, variance = mean.clone().requires_grad_(), torch.zeros_like(mean, requires_grad=True)
    value, truth = expected_log_prob(law, x, mean, variance), law(mean).log_prob(x)
    torch.testing.assert_close(value, truth, rtol=1e-8, atol=1e-8)
    if name in CASES:
        single = require_finite(make(name).float(), x.float(), mean.detach().float(), 0 * x.float())
        torch.testing.assert_close(single, truth.float(), rtol=1e-6, atol=1e-6)
    in_mean, in_variance = torch.autograd.grad(value.sum(), (mean, variance), create_graph=True)
    (slope,) = torch.autograd.grad(truth.sum(), mean, create_graph=True)
    bends = [torch.autograd.grad(first.sum(), mean, materialize_grads=True)[0] for first in (in_mean, slope)]
    smooth = (x != mean) | (name != "Laplace")
    smooth &= (mean != 0) | (name != "Binomial")  # torch's has |logits|, whose bend autograd takes for none at 0
    for found, expected in ((in_mean, slope), (in_variance, bends[1] / 2), bends):
        assert found.isfinite().all()
        torch.testing.assert_close(found[smooth], expected[smooth], rtol=1e-7, atol=1e-7)


def require_finite(likelihood: torch.nn.Module, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The value, which is finite with all its derivatives."""
    mean, variance = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    value = expected_log_prob(likelihood, x, mean, variance)
    for result in (value, *torch.autograd.grad(value.sum(), [mean, variance, *likelihood.parameters()])):
        assert result.isfinite().all()
    return value


FURTHER = {"Binomial": lambda: likelihoods.Binomial(2 * 10**6), "Multinomial": likelihoods.Multinomial}
EXPONENTIAL = ("Poisson", "ZeroInflatedPoisson", "Gamma", "Multinomial")  # in u
LARGEST, SMALLEST = {"Bernoulli": 1.0, "Ordinal": 3.0}, {"Gamma": 1e-6, "LogNormal": 1e-6}  # of x


@DTYPES
@pytest.mark.parametrize("log_size", [-9.2, 0.0, 13.8])  # of inverse dispersions and shapes: 1e-4, 1 and 1e6
@pytest.mark.parametrize("name", CASES | FURTHER)
def test_extremes_are_finite(name: str, log_size: float, dtype: torch.dtype) -> None:
    likelihood = (FURTHER.get(name) or CASES[name].build)()
    with_parameters(likelihood, log_inverse_dispersion=log_size, log_shape=log_size, zero_logit=-log_size).to(dtype)
    means, variances = ([-20.0, 0.0, 20.0], [4.0]) if name in EXPONENTIAL else ([-1e4, -1.0, 0.0, 1.0, 1e4], [1.0, 1e4])
    grid = torch.cartesian_prod(*(torch.tensor(t) for t in ([0.0, 1.0, 1e6], means, [0.0, 1e-12, *variances])))
    x, mean, variance = grid.to(dtype).T
    require_finite(likelihood, x.clamp(SMALLEST.get(name, 0), LARGEST.get(name)), mean, variance)


@pytest.mark.parametrize("name", ["Bernoulli", "StudentT", "a function"])
def test_not_keeping_the_nodes_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood = (lambda u: td.Laplace(u, 0.5)) if name == "a function" else make(name)
    results = []
    for large in (quadrature.LARGE, 0):
        monkeypatch.setattr(quadrature, "LARGE", large)
        leaves = [torch.tensor([v, 1.0], dtype=DOUBLE, requires_grad=True) for v in (0.3, 0.6)]
        value = expected_log_prob(likelihood, torch.ones(2, dtype=DOUBLE), *leaves)
        results.append(oracles.derivatives(value, leaves))
    torch.testing.assert_close(*results, rtol=1e-14, atol=1e-14)


def test_half_precision_is_widened() -> None:
    """E|u| at the smallest variance was 0.288 in half precision: an offset meant not to be noticed was 0.02."""
    zero, tenth = torch.zeros(1, dtype=torch.float16), torch.full((1,), 0.1, dtype=torch.float16)
    likelihood = likelihoods.Laplace(1)
    narrow = expected_log_prob(likelihood, tenth, zero, zero)
    torch.testing.assert_close(narrow, likelihood(zero.float()).log_prob(tenth.float()))


OTHERS: list[tuple[torch.nn.Module, str, tuple[float, ...]]] = [  # data of another kind
    (likelihoods.Poisson(), "takes counts", (-1.0, 0.5)),
    (likelihoods.NegativeBinomial(()), "takes counts", (-1.0, 1.5, math.nan)),
    (likelihoods.ZeroInflatedPoisson(()), "takes counts", (0.5,)),
    (likelihoods.ZeroInflatedNegativeBinomial(()), "takes counts", (-2.0,)),
    (likelihoods.Binomial(4), "as many successes as there are trials", (5.0,)),
    (likelihoods.Binomial(4), "takes counts", (0.5,)),
    (likelihoods.Ordinal((), 3), "categories from 0 to 2", (3.0,)),
    (likelihoods.Ordinal((), 3), "takes counts", (0.5,)),
    (likelihoods.Multinomial(), "takes counts", (-1.0,)),
    (likelihoods.Categorical(), "one-hot", (1.0,)),
    (likelihoods.LogNormal(()), "above zero", (0.0,)),
    (likelihoods.Gamma(()), "above zero", (-1.0,)),
]


@refusals
def test_bad_input_is_named() -> Refusals:
    def call(likelihood: torch.nn.Module, x: float) -> Tensor:
        return expected_log_prob(likelihood, torch.full((1, 2), x), torch.zeros(1, 2), torch.ones(1, 2))

    others = {
        f"{likelihood} of {x}": (sg.DomainError, message, partial(call, likelihood, x))
        for likelihood, message, xs in OTHERS
        for x in xs
    }
    one, bits = torch.ones(2, 3), likelihoods.Bernoulli()
    normal, coin = td.Normal(torch.zeros(2, 2), torch.ones(2, 2)), td.Bernoulli(torch.full((2, 2), 0.5))
    decoder, laplace = (sg.LinearLikelihood(2, 3, likelihood) for likelihood in (bits, likelihoods.Laplace(3)))
    poisson, x = sg.LinearLikelihood(2, 3, likelihoods.Poisson()).init_from_data, torch.ones(8, 3)
    return others | {
        "another shape": (sg.ShapeError, "one shape", lambda: expected_log_prob(bits, one, one, one[:1])),
        "negative variance": (sg.DomainError, "negative", lambda: expected_log_prob(bits, one, one, -one)),
        "bytes": (sg.DomainError, "between 0 and 1", lambda: expected_log_prob(bits, 255 * one, one, one)),
        "no degrees of freedom": (sg.DomainError, "df", lambda: likelihoods.StudentT(3, 0.0)),
        "no trials": (sg.DomainError, "trials", lambda: likelihoods.Binomial(0)),
        "half a trial": (sg.DomainError, "trials", lambda: likelihoods.Binomial(torch.tensor([2.0, 2.5]))),
        "one category": (sg.DomainError, "two categories", lambda: likelihoods.Ordinal(3, 1)),
        "no nodes": (sg.DomainError, "node", lambda: quadrature.gauss_hermite(torch.exp, one, one, 0)),
        "NaN": (sg.DomainError, "not finite: x", lambda: laplace.expected_log_prob(one * float("nan"), normal)),
        "a start with an offset": (sg.IntractableError, "with an offset", partial(laplace.init_from_data, x, offset=x)),
        "a start's offset": (sg.ShapeError, "offset has shape", lambda: poisson(x, offset=x[:2])),
        "a start's mask": (sg.DomainError, "mask has to be bool", lambda: poisson(x, mask=x)),
        "coins": (sg.IntractableError, "for Bernoulli latents.*`needs`", lambda: decoder.expected_log_prob(one, coin)),
    }


@pytest.mark.parametrize(("rule", "bound"), [(quadrature.LOGISTIC, 3e-9), (quadrature.LOGISTIC_FINE, 1e-12)])
def test_mixture_is_as_close_to_softplus_as_stated(rule: quadrature.Rule, bound: float) -> None:
    u = np.linspace(-60, 60, 5001)
    deviations, weights = np.sqrt([c for c, _ in rule]), np.array([w for _, w in rule])
    at = u[:, None] / deviations
    smoothed = deviations * (at * stats.norm.cdf(at) + stats.norm.pdf(at))
    assert abs(smoothed @ weights - np.logaddexp(0, u)).max() < bound


def negative_binomial(x: int, mean: float, variance: float, r: float) -> list[float]:
    """The expectation and its derivatives in mean, variance and log r by mpmath, term by term of their definitions."""
    with mp.workdps(25):
        r, deviation, panels = mp.mpf(r), mp.sqrt(variance), mp.linspace(-9, 9, 5)

        def expected(f: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
            return mp.quad(lambda e: f(mean + deviation * e) * mp.npdf(e), panels)

        ways = mp.loggamma(x + r) - mp.loggamma(r) - mp.loggamma(x + 1)
        log_total = expected(lambda u: mp.log(r + mp.exp(u)))
        successes = expected(lambda u: mp.exp(u) / (r + mp.exp(u)))
        bend = expected(lambda u: r * mp.exp(u) / (r + mp.exp(u)) ** 2)
        value = ways + r * mp.log(r) + x * mp.mpf(mean) - (x + r) * log_total
        in_r = mp.digamma(x + r) - mp.digamma(r) + mp.log(r) + 1 - log_total - (x + r) * (1 - successes) / r
        return [float(n) for n in (value, x - (x + r) * successes, -(x + r) * bend / 2, r * in_r)]


@pytest.mark.parametrize("r", [1e-4, 1.0, 1e6])
def test_negative_binomial_of_every_dispersion(r: float) -> None:
    log_r = float(torch.tensor(math.log(r)))  # a number in both precisions
    points = [(0, -7.0, 0.25), (1, -7.0, 0.25), (3, 0.0, 1.0), (1000, 7.0, 0.0625), (0, 7.0, 1.0)]
    truths = np.array([negative_binomial(*point, math.exp(log_r)) for point in points])
    for dtype in (DOUBLE, torch.float32):
        likelihood = likelihoods.NegativeBinomial(len(points))
        with_parameters(likelihood, log_inverse_dispersion=[log_r] * len(points)).to(dtype)
        x, mean, variance = (column.requires_grad_() for column in torch.tensor(points, dtype=dtype).T.clone().unbind())
        value = expected_log_prob(likelihood, x, mean, variance)
        gradients = torch.autograd.grad(value.sum(), [mean, variance, likelihood.log_inverse_dispersion])
        found = torch.stack([value.detach(), *gradients], -1).double().numpy()
        errors = (np.abs(found - truths) / np.maximum(1, np.abs(truths))).max(0)
        row = f"r = {r:g}" if dtype == DOUBLE else f"r = {r:g}, single"
        print(row, *(f"{error:.1e}" for error in errors))
        assert (errors <= stated(row)).all(), errors


@DTYPES
def test_a_million_of_a_million_expected_keeps_its_digits(dtype: torch.dtype) -> None:
    """The most likely count has about the probability of a normal variable's centre; its terms are a million each."""
    x, mean = torch.full((1,), 1e6, dtype=dtype), torch.full((1,), math.log(1e6), dtype=dtype)
    likelihood = with_parameters(likelihoods.NegativeBinomial(()), log_inverse_dispersion=math.log(1e6)).to(dtype)
    value = expected_log_prob(likelihood, x, mean, torch.zeros_like(x))
    expected = -0.5 * math.log(2 * math.pi * 2e6)  # of the variance e^u + e^2u / r
    assert value.item() == pytest.approx(expected, abs=0.2 if dtype == torch.float32 else 1e-6)


def gap_at_zeros(name: str, deviation: float) -> np.ndarray:
    """How far the bound lies below the truth at a zero, for means of u in a range."""
    means, log_prob = torch.linspace(-6, 5, 45, dtype=DOUBLE), CASES[name].log_prob
    bound = expected_log_prob(make(name), 0 * means, means, torch.full_like(means, deviation**2))
    truth = [oracles.over_gaussian(lambda u: log_prob(0, u), mean.item(), deviation)[0] for mean in means]
    return np.array(truth) - bound.detach().numpy()


def gap_of_shares(deviation: float) -> np.ndarray:
    """How far the bound lies below the truth for one count in three categories, whose u are independent."""
    means, one = torch.tensor([[0, 0, 0], [1, 0, -2], [4, 0, 0]], dtype=DOUBLE), torch.eye(3, dtype=DOUBLE)
    q, rule = td.Normal(means, deviation), oracles.standard_normal(lambda q, e: q.loc + q.scale * e, order=40)
    truth = oracles.on_grid(rule)(q)(lambda u: likelihoods.Multinomial()(u).log_prob(one))
    both = likelihoods.Multinomial(), likelihoods.Categorical()
    bound, of_categories = (expected_log_prob(likelihood, one, means, q.variance) for likelihood in both)
    torch.testing.assert_close(of_categories, bound)  # a category is a total of one
    return (truth - bound).numpy()


@pytest.mark.parametrize("deviation", [0.1, 0.5, 1.0, 2.0])
def test_gaps_of_the_bounds_are_those_stated(deviation: float) -> None:
    gaps = [*(gap_at_zeros(name, deviation) for name in CASES if "Inflated" in name), gap_of_shares(deviation)]
    print(deviation, *(f"{gap.max():.1e}" for gap in gaps))
    assert all(gap.min() > -1e-12 for gap in gaps)
    np.testing.assert_allclose([gap.max() for gap in gaps], stated(f"s = {deviation:g}"), rtol=0.06)
