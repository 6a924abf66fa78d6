"""Likelihoods of counts and categories where they are hard: every dispersion, large counts, and the bounds' gaps."""

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
import torch
from torch import nn

import oracles
import silentgrad as sg
from silentgrad import likelihoods
from silentgrad.likelihoods import expected_log_prob
from test_likelihoods import CASES, DOUBLE, make, require_finite, stated

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])


def with_parameters(likelihood: nn.Module, **values: float) -> nn.Module:
    with torch.no_grad():
        for name, parameter in likelihood.named_parameters():
            parameter.fill_(values[name.split(".")[-1]])
    return likelihood


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
        likelihood = likelihoods.NegativeBinomial(len(points)).to(dtype)
        with_parameters(likelihood, log_inverse_dispersion=log_r)
        x, mean, variance = (column.requires_grad_() for column in torch.tensor(points, dtype=dtype).T.clone().unbind())
        value = expected_log_prob(likelihood, x, mean, variance)
        gradients = torch.autograd.grad(value.sum(), [mean, variance, likelihood.log_inverse_dispersion])
        found = torch.stack([value.detach(), *gradients], -1).double().numpy()
        errors = (np.abs(found - truths) / np.maximum(1, np.abs(truths))).max(0)
        row = f"r = {r:g}"
        if dtype == torch.float32:
            row += ", single"
        print(row, *(f"{error:.1e}" for error in errors))
        assert (errors <= stated(row)).all(), errors


COUNTS = {
    "Poisson": likelihoods.Poisson,
    "NegativeBinomial": lambda: likelihoods.NegativeBinomial(()),
    "ZeroInflatedPoisson": lambda: likelihoods.ZeroInflatedPoisson(()),
    "ZeroInflatedNegativeBinomial": lambda: likelihoods.ZeroInflatedNegativeBinomial(()),
    "Binomial": lambda: likelihoods.Binomial(2 * 10**6),
    "Multinomial": likelihoods.Multinomial,
    "Gamma": lambda: likelihoods.Gamma(()),
}


@DTYPES
@pytest.mark.parametrize("log_size", [-9.2, 13.8])  # of an inverse dispersion or shape of 1e-4 and 1e6
@pytest.mark.parametrize("name", COUNTS)
def test_extremes_are_finite(name: str, log_size: float, dtype: torch.dtype) -> None:
    likelihood = COUNTS[name]().to(dtype)
    with_parameters(likelihood, log_inverse_dispersion=log_size, log_shape=log_size, zero_logit=-log_size)
    grid = torch.cartesian_prod(*(torch.tensor(t) for t in ([0.0, 1.0, 1e6], [-20.0, 0.0, 20.0], [0.0, 1e-12, 4.0])))
    x, mean, variance = grid.to(dtype).T
    if name == "Gamma":
        x = x.clamp(min=1e-6)
    require_finite(likelihood, x, mean, variance)


@DTYPES
def test_a_million_of_a_million_expected_keeps_its_digits(dtype: torch.dtype) -> None:
    """The most likely count has about the probability of a normal variable's centre; its terms are a million each."""
    x, mean = torch.full((1,), 1e6, dtype=dtype), torch.full((1,), math.log(1e6), dtype=dtype)
    likelihood = with_parameters(likelihoods.NegativeBinomial(()).to(dtype), log_inverse_dispersion=math.log(1e6))
    value = expected_log_prob(likelihood, x, mean, torch.zeros_like(x))
    expected = -0.5 * math.log(2 * math.pi * 2e6)  # of the variance e^u + e^2u / r
    assert value.item() == pytest.approx(expected, abs=0.2 if dtype == torch.float32 else 1e-6)


INFLATED = ("ZeroInflatedPoisson", "ZeroInflatedNegativeBinomial")
GAPS = (0.1, 0.5, 1.0, 2.0)  # deviations of u of which the page tells


def gap_at_zeros(name: str, deviation: float) -> np.ndarray:
    """How far the bound lies below the truth at a zero, for means of u in a range."""
    means, log_prob = torch.linspace(-6, 5, 45, dtype=DOUBLE), CASES[name].log_prob
    bound = expected_log_prob(make(name), 0 * means, means, torch.full_like(means, deviation**2))
    truth = [oracles.over_gaussian(lambda u: log_prob(0, u), mean.item(), deviation)[0] for mean in means]
    return np.array(truth) - bound.detach().numpy()


def gap_of_shares(deviation: float) -> np.ndarray:
    """How far the bound lies below the truth for one count in three categories, whose u are independent."""
    e, w = oracles.hermite(40)
    noise, weights = torch.cartesian_prod(e, e, e), torch.cartesian_prod(w, w, w).prod(-1)
    means = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, -2.0], [4.0, 0.0, 0.0]], dtype=DOUBLE)
    one = torch.eye(3, dtype=DOUBLE)
    bound = expected_log_prob(likelihoods.Multinomial(), one, means, torch.full_like(means, deviation**2))
    laws = likelihoods.Multinomial()(means.unsqueeze(1) + deviation * noise)
    truth = (weights * laws.log_prob(one.unsqueeze(1))).sum(-1)
    torch.testing.assert_close(  # a category is a total of one
        expected_log_prob(likelihoods.Categorical(), one, means, torch.full_like(means, deviation**2)), bound
    )
    return (truth - bound).numpy()


@pytest.mark.parametrize("deviation", GAPS)
def test_gaps_of_the_bounds_are_those_stated(deviation: float) -> None:
    gaps = [*(gap_at_zeros(name, deviation) for name in INFLATED), gap_of_shares(deviation)]
    print(deviation, *(f"{gap.max():.1e}" for gap in gaps))
    assert all(gap.min() > -1e-12 for gap in gaps)
    largest = [gap.max() for gap in gaps]
    np.testing.assert_allclose(largest, stated(f"s = {deviation:g}"), rtol=0.06)


OTHERS: list[tuple[nn.Module, str, tuple[float, ...]]] = [
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


@pytest.mark.parametrize(("likelihood", "message", "x"), [(a, b, x) for a, b, xs in OTHERS for x in xs])
def test_data_of_another_kind_are_named(likelihood: nn.Module, x: float, message: str) -> None:
    with pytest.raises(sg.DomainError, match=message):
        expected_log_prob(likelihood, torch.full((1, 2), x), torch.zeros(1, 2), torch.ones(1, 2))
