"""Likelihoods beyond the Gaussian: values and derivatives against adaptive quadrature, decoders against the oracles."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch import distributions as td

import oracles
import silentgrad as sg
from laws import (
    DF,
    SCALE,
    SHAPE,
    THRESHOLDS,
    TRIALS,
    ZEROS,
    R,
    inflated,
    log_binomial,
    log_category,
    log_gamma,
    log_negative_binomial,
    log_normal,
    log_poisson,
)
from refusals import Refusals, refusals
from silentgrad import likelihoods
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.likelihoods import expected_log_prob
from silentgrad.mathematics import quadrature

DOUBLE = torch.float64
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
    "Poisson": Case(likelihoods.Poisson, log_poisson, (0.0, 1.0, 7.0), **NARROW, bend=0.0),
    "NegativeBinomial": Case(
        lambda: likelihoods.NegativeBinomial(()), log_negative_binomial, (0.0, 1.0, 7.0), bend=math.log(R),
    ),
    "ZeroInflatedPoisson": Case(  # at a zero it is a bound
        lambda: likelihoods.ZeroInflatedPoisson(()), inflated(log_poisson), (1.0, 7.0), **NARROW, bend=0.0,
    ),
    "ZeroInflatedNegativeBinomial": Case(
        lambda: likelihoods.ZeroInflatedNegativeBinomial(()), inflated(log_negative_binomial), (1.0, 7.0),
        bend=math.log(R),
    ),
    "Binomial": Case(lambda: likelihoods.Binomial(TRIALS), log_binomial, (0.0, 4.0, 10.0), bend=0.0),
    "Ordinal": Case(
        lambda: likelihoods.Ordinal((), 4), log_category, (0.0, 1.0, 3.0), bend=0.0,
    ),
    "LogNormal": Case(
        lambda: likelihoods.LogNormal(()), log_normal, (0.3, 2.0), bend=0.0,
    ),
    "Gamma": Case(
        lambda: likelihoods.Gamma(()), log_gamma, (0.3, 2.0), **NARROW, bend=0.0,
    ),
    "Normal": Case(lambda: likelihoods.Normal(()), lambda x, u: stats.norm.logpdf(x, u, SCALE), (0.0, 0.7)),
    "Laplace": Case(lambda: likelihoods.Laplace(()), lambda x, u: -abs(x - u) / SCALE - np.log(2 * SCALE), (0.0, 0.7)),
    "StudentT": Case(
        lambda: likelihoods.StudentT((), DF), lambda x, u: stats.t.logpdf(x, DF, u, SCALE), (0.0, 0.7)
    ),
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


def make(name: str) -> torch.nn.Module:
    likelihood = CASES[name].build().double()
    with torch.no_grad():
        for parameter, value in likelihood.named_parameters():
            value.copy_(torch.tensor(START[parameter.split(".")[-1]], dtype=DOUBLE))
    return likelihood


def grid(name: str) -> tuple[list[tuple[float, float, float]], np.ndarray]:
    """All (x, mean, deviation) of a case and the truths there, a row each."""
    case = CASES[name]
    points = [(x, float(m), float(s)) for x in case.xs for m in case.means for s in case.deviations]
    bends = [x if case.bend is None else case.bend for x, _, _ in points]
    rows = [
        oracles.over_gaussian(lambda u, x=x: case.log_prob(x, u), m, s, bend)
        for (x, m, s), bend in zip(points, bends, strict=True)
    ]
    return points, np.array(rows)


def evaluate(
    likelihood: Callable[[Tensor], td.Distribution], points: list[tuple[float, float, float]], dtype: torch.dtype
) -> np.ndarray:
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
    found = [
        *errors(evaluate(make(name), points, DOUBLE), expected),
        *errors(evaluate(make(name).float(), points, torch.float32), expected),
    ]
    print(name, *(f"{error:.1e}" for error in found))
    assert len(stated(name)) == len(found)
    assert all(error <= limit for error, limit in zip(found, stated(name), strict=True)), found


@pytest.mark.parametrize("deviation", [0.5, 1, 2, 3, 5, 10])
def test_errors_of_plain_quadrature_are_those_stated(deviation: float) -> None:
    """What a likelihood of a user's own gets: the Bernoulli one given as a function, so that nothing knows it."""
    points = [(1.0, m, float(deviation)) for m in (-4.0, -0.5, 0.0, 0.3, 2.0)]
    rows = [oracles.over_gaussian(lambda u: CASES["Bernoulli"].log_prob(1.0, u), m, s, 0.0) for _, m, s in points]
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
    spread, tried = ([log(x, u) for x in counts] for log in (log_negative_binomial, log_binomial))
    np.testing.assert_allclose(spread, stats.nbinom.logpmf(counts, R, R / (R + mean)), rtol=1e-11)
    np.testing.assert_allclose(tried, stats.binom.logpmf(counts, TRIALS, p), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(log_normal(2.0, u), stats.lognorm.logpdf(2.0, SCALE, scale=mean), rtol=1e-12)
    assert sum(np.exp(log_category(x, u)) for x in range(4)) == pytest.approx(1, rel=1e-13)


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


@pytest.mark.parametrize(
    "name", ["Bernoulli", "StudentT", "Logistic", "Laplace", "Normal", "LogNormal", "Ordinal", "Binomial"]
)
def test_extremes_are_finite_in_single_precision(name: str) -> None:
    means, variances = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4]), torch.tensor([0.0, 1e-12, 1.0, 1e4])
    mean, variance = torch.cartesian_prod(means, variances).T
    require_finite(make(name).float(), torch.ones(20), mean, variance)


@pytest.mark.parametrize("name", ["Bernoulli", "StudentT", "a function"])
def test_not_keeping_the_nodes_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood = (lambda u: td.Laplace(u, 0.5)) if name == "a function" else make(name)
    results = []
    for large in (quadrature.LARGE, 0):
        monkeypatch.setattr(quadrature, "LARGE", large)
        mean, variance = (torch.tensor([v, 1.0], dtype=DOUBLE, requires_grad=True) for v in (0.3, 0.6))
        value = expected_log_prob(likelihood, torch.ones(2, dtype=DOUBLE), mean, variance)
        first = torch.autograd.grad(value.sum(), [mean, variance], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [mean, variance])
        results.append([value, *first, *second])
    torch.testing.assert_close(*results, rtol=1e-14, atol=1e-14)


@refusals
def test_bad_input_is_named() -> Refusals:
    one, bits = torch.ones(2, 3), likelihoods.Bernoulli()
    normal, coin = td.Normal(torch.zeros(2, 2), torch.ones(2, 2)), td.Bernoulli(torch.full((2, 2), 0.5))
    laplace = LinearLikelihood(2, 3, likelihoods.Laplace(3))
    decoder, unknown = LinearLikelihood(2, 3, bits), LinearLikelihood(2, 3, lambda u: td.Normal(u, 1.0))
    return {
        "another shape": (sg.ShapeError, "one shape", lambda: expected_log_prob(bits, one, one, one[:1])),
        "negative variance": (sg.DomainError, "negative", lambda: expected_log_prob(bits, one, one, -one)),
        "bytes": (sg.DomainError, "between 0 and 1", lambda: expected_log_prob(bits, 255 * one, one, one)),
        "no degrees of freedom": (sg.DomainError, "df", lambda: likelihoods.StudentT(3, 0.0)),
        "no trials": (sg.DomainError, "trials", lambda: likelihoods.Binomial(0)),
        "half a trial": (sg.DomainError, "trials", lambda: likelihoods.Binomial(torch.tensor([2.0, 2.5]))),
        "one category": (sg.DomainError, "two categories", lambda: likelihoods.Ordinal(3, 1)),
        "no nodes": (sg.DomainError, "node", lambda: quadrature.gauss_hermite(torch.exp, one, one, 0)),
        "NaN": (sg.DomainError, "not finite: x", lambda: laplace.expected_log_prob(one * float("nan"), normal)),
        "no u_at_mean": (sg.IntractableError, "u_at_mean", lambda: unknown.init_from_data(one)),
        "coins": (sg.IntractableError, "for Bernoulli latents", lambda: decoder.expected_log_prob(one, coin)),
    }


@pytest.mark.parametrize(("rule", "bound"), [(quadrature.LOGISTIC, 3e-9), (quadrature.LOGISTIC_FINE, 1e-12)])
def test_mixture_is_as_close_to_softplus_as_stated(rule: quadrature.Rule, bound: float) -> None:
    u = np.linspace(-60, 60, 5001)
    deviations, weights = np.sqrt([c for c, _ in rule]), np.array([w for _, w in rule])
    at = u[:, None] / deviations
    smoothed = deviations * (at * stats.norm.cdf(at) + stats.norm.pdf(at))
    assert abs(smoothed @ weights - np.logaddexp(0, u)).max() < bound
