"""Distributions of our own, and levels without noise: probabilities, draws, expectations and the bound."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import oracles
import silentgrad as sg
from laws import log_category
from refusals import Refusals, refusals, refused
from silentgrad import distributions

DOUBLE = torch.float64
SCALES = [1e-3, 0.1, 1.0, 30.0, 1e3]  # of a level


def decoder_of(scale: float, levels: int, expectation: str = "auto") -> sg.DiscretizedLogistic:
    """One output whose location is scale times the latent, in the middle of the levels."""
    decoder = sg.DiscretizedLogistic(1, 1, levels, expectation).double()
    with torch.no_grad():
        decoder.center.fill_((levels - 1) / 2)
        decoder.log_scale.fill_(math.log(scale))
        decoder.affine.bias.zero_()
        decoder.affine.weight.fill_(1.0)
    return decoder


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("x", [0, 1, 127, 128, 254, 255])
def test_exact_expectation_and_gradient_by_quadrature(scale: float, x: int) -> None:
    decoder, borders = decoder_of(scale, 256), tuple((level - 127) / scale for level in range(255))
    for mean, deviation in itertools.product([-3.0, 0.0, 0.4], [1e-4, 0.5, 3.0]):
        loc = torch.tensor([[mean]], dtype=DOUBLE, requires_grad=True)
        value = decoder.expected_log_prob(torch.tensor([[float(x)]], dtype=DOUBLE), td.Normal(loc, deviation))
        truth = oracles.over_gaussian(lambda u: log_category(x, u, borders), mean, deviation, (x - 127.5) / scale)
        assert value.item() == pytest.approx(truth[0], rel=1e-8, abs=1e-8)
        (slope,) = torch.autograd.grad(value.sum(), loc)
        assert slope.item() == pytest.approx(truth[1], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("expectation", ["exact", "bound"])
def test_single_precision(scale: float, expectation: str) -> None:
    decoder, x = decoder_of(scale, 256, expectation), torch.arange(256.0).unsqueeze(1)
    q = td.Normal(torch.full((256, 1), 0.3), 0.5)
    wide = decoder.expected_log_prob(x.double(), td.Normal(q.loc.double(), 0.5))
    torch.testing.assert_close(decoder.float().expected_log_prob(x, q).double(), wide, rtol=1e-4, atol=1e-4)


@refusals
def test_bad_input_is_named() -> Refusals:
    decoder, normal, one = sg.DiscretizedLogistic(2, 3, 5), td.Normal(torch.zeros(2, 2), 1.0), torch.ones(2, 3)
    coins, exact = td.Bernoulli(torch.full((2, 2), 0.5)), sg.DiscretizedLogistic(2, 3, 5, "exact")
    whole, bits = "whole levels from 0 to 4", "Bernoulli latents have no exact expectation"
    return {
        "between levels": (sg.DomainError, whole, lambda: decoder.expected_log_prob(0.3 * one, normal)),
        "beyond them": (sg.DomainError, whole, lambda: decoder.expected_log_prob(5 * one, normal)),
        "one level": (sg.DomainError, "two levels", lambda: sg.DiscretizedLogistic(2, 3, 1)),
        "no such rule": (sg.DomainError, "'auto', 'exact' or", lambda: sg.DiscretizedLogistic(2, 3, 5, "fast")),
        "bits": (sg.IntractableError, bits, lambda: exact.expected_log_prob(one, coins)),
        "offset": (sg.SilentgradError, "offset", lambda: decoder.expected_log_prob(one, normal, offset=one[:, 0])),
    }


def test_levels_are_a_distribution() -> None:
    loc, scale = torch.tensor([-15.0, 0.5, 2.5, 4.85, 150.0], dtype=DOUBLE), torch.tensor(0.25, dtype=DOUBLE)
    p = distributions.DiscretizedLogistic(loc, scale, 6)
    oracles.require_distribution(p, torch.arange(6, dtype=DOUBLE))
    assert p.log_prob(torch.zeros(5, dtype=DOUBLE))[-1] == pytest.approx(-(150 - 0.5) / 0.25)  # no tail underflows


def test_logistic_draws_have_its_moments() -> None:
    torch.manual_seed(0)
    p = distributions.Logistic(torch.tensor(2.0), torch.tensor(0.5))
    draws = p.rsample((100_000,))
    torch.testing.assert_close(draws.mean(), p.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(draws.var(), p.variance, rtol=0.03, atol=0)


def ordinal(categories: int = 4, validate_args: bool | None = None) -> distributions.Ordinal:
    loc = torch.tensor([-30.0, -0.3, 0.5, 2.0], dtype=DOUBLE)
    thresholds = torch.tensor([-0.7, -0.2, 1.0], dtype=DOUBLE)[: categories - 1]
    return distributions.Ordinal(loc, thresholds, validate_args)


@pytest.mark.parametrize("categories", [2, 4])
def test_ordered_categories_are_a_distribution(categories: int) -> None:
    p, values = ordinal(categories), torch.arange(float(categories), dtype=DOUBLE).unsqueeze(-1)
    probabilities = p.log_prob(values).exp()
    borders = np.array([-np.inf, *p.thresholds, np.inf])
    truth = np.diff(stats.logistic.cdf(borders[:, None] - p.loc.numpy()), axis=0)
    np.testing.assert_allclose(probabilities, truth, rtol=1e-9, atol=1e-15)
    oracles.require_distribution(p, values)
    assert p.log_prob(torch.full((4,), categories - 1.0, dtype=DOUBLE))[0] < -29  # no tail underflows


def test_ordered_categories_have_thresholds_of_each_output() -> None:
    loc, x = torch.randn(5, 2, 3, dtype=DOUBLE), torch.randint(0, 3, (2, 3)).to(DOUBLE)
    thresholds = torch.randn(2, 3, 2, dtype=DOUBLE).sort(-1).values
    together = distributions.Ordinal(loc, thresholds).log_prob(x)  # with a dimension of samples
    for row, column in np.ndindex(2, 3):
        alone = distributions.Ordinal(loc[:, row, column], thresholds[row, column]).log_prob(x[row, column].expand(5))
        torch.testing.assert_close(together[:, row, column], alone)


def inflated(validate_args: bool | None = None) -> distributions.ZeroInflated:
    rate, logits = torch.tensor([0.1, 2.0, 3.0, 5.0], dtype=DOUBLE), torch.tensor([-1.0, 0.0, 2.0, -30], dtype=DOUBLE)
    return distributions.ZeroInflated(td.Poisson(rate), logits, validate_args)


def test_counts_with_more_zeros_are_a_distribution() -> None:
    p, values = inflated(), torch.arange(60.0, dtype=DOUBLE).unsqueeze(-1)
    probabilities = p.log_prob(values).exp()
    extra = 1 / (1 + np.exp(-p.logits.numpy()))
    truth = (1 - extra) * stats.poisson.pmf(values.numpy(), p.counts.rate.numpy()) + extra * (values.numpy() == 0)
    np.testing.assert_allclose(probabilities, truth, rtol=1e-9)
    oracles.require_distribution(p, values)


@pytest.mark.parametrize("build", [lambda: ordinal(validate_args=True), lambda: inflated(validate_args=True)])
def test_values_outside_the_support_are_refused(build: Callable[[], td.Distribution]) -> None:
    refused(ValueError, "support", lambda: build().log_prob(torch.full((4,), 0.5, dtype=DOUBLE)))


def test_a_category_that_was_not_observed_counts_for_nothing() -> None:
    p = distributions.OneHotCategorical(logits=torch.tensor([[0.3, -1.0, 2.0]] * 2), validate_args=False)
    seen = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    other = td.OneHotCategorical(logits=p.logits).log_prob(seen[:1])
    torch.testing.assert_close(p.log_prob(seen), torch.tensor([other[0].item(), 0.0]))
    assert math.isclose(p.mean.sum().item(), 2, rel_tol=1e-6)
