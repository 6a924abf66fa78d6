"""Distributions of our own, and levels without noise: probabilities, draws, expectations and the bound."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch import distributions as td

import oracles
import silentgrad as sg
from refusals import Refusals, refusals, refused
from silentgrad import distributions

DOUBLE = torch.float64
SCALES = [1e-3, 0.1, 1.0, 30.0, 1e3]  # of a level


def decoder_of(scale: float, levels: int, expectation: str = "auto", latents: int = 1) -> sg.DiscretizedLogistic:
    """One output whose location is scale times the sum of the latents, in the middle of the levels."""
    decoder = sg.DiscretizedLogistic(latents, 1, levels, expectation).double()
    with torch.no_grad():
        decoder.center.fill_((levels - 1) / 2)
        decoder.log_scale.fill_(math.log(scale))
        decoder.affine.bias.zero_()
        decoder.affine.weight.fill_(1.0)
    return decoder


def log_level(x: int, u: np.ndarray, scale: float, levels: int) -> np.ndarray:
    """The probability of a level around the middle, as a difference of the smaller tails."""
    center = (levels - 1) / 2
    low = (x - 0.5 - center) / scale - u if x > 0 else -np.inf
    high = (x + 0.5 - center) / scale - u if x < levels - 1 else np.inf
    tails = (stats.logistic.logcdf, high, low), (stats.logistic.logsf, low, high)
    with np.errstate(divide="ignore"):  # in the tail that is not taken
        below, above = (log(far) + np.log1p(-np.exp(log(near) - log(far))) for log, far, near in tails)
    return np.where(u > (x - center) / scale, below, above)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("levels", [2, 3, 256])
def test_probabilities_of_all_levels_sum_to_one(scale: float, levels: int) -> None:
    p = decoder_of(scale, levels)(torch.linspace(-20, 20, 41, dtype=DOUBLE).unsqueeze(1))
    every = torch.arange(levels, dtype=DOUBLE).reshape(-1, 1, 1)
    torch.testing.assert_close(p.log_prob(every).exp().sum(0), torch.ones(41, dtype=DOUBLE))


def test_two_levels_are_a_bernoulli() -> None:
    z = torch.linspace(-8, 8, 17, dtype=DOUBLE).unsqueeze(1)
    decoder = decoder_of(0.7, 2)
    ones = decoder(z).log_prob(torch.ones(17, 1, dtype=DOUBLE))
    torch.testing.assert_close(ones, td.Bernoulli(logits=z.squeeze(1)).log_prob(torch.ones(17, dtype=DOUBLE)))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("x", [0, 1, 127, 128, 254, 255])
def test_exact_expectation_and_gradient_by_quadrature(scale: float, x: int) -> None:
    decoder = decoder_of(scale, 256)
    for mean, deviation in itertools.product([-3.0, 0.0, 0.4], [1e-4, 0.5, 3.0]):
        loc = torch.tensor([[mean]], dtype=DOUBLE, requires_grad=True)
        value = decoder.expected_log_prob(torch.tensor([[float(x)]], dtype=DOUBLE), td.Normal(loc, deviation))
        bend = (x - 127.5) / scale
        truth = oracles.over_gaussian(lambda u: log_level(x, u, scale, 256), mean, deviation, bend)
        assert value.item() == pytest.approx(truth[0], rel=1e-8, abs=1e-8)
        (slope,) = torch.autograd.grad(value.sum(), loc)
        assert slope.item() == pytest.approx(truth[1], rel=1e-5, abs=1e-5)


def test_derivatives_of_both_expectations() -> None:
    loc, log_scale = (torch.randn(3, 2, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0], [3.0, 0.0]], dtype=DOUBLE)
    for expectation in ("exact", "bound"):
        decoder = sg.DiscretizedLogistic(2, 2, 4, expectation).double()

        def value(loc: Tensor, log_scale: Tensor, decoder: sg.DiscretizedLogistic = decoder) -> Tensor:
            return decoder.expected_log_prob(x, td.Normal(loc, log_scale.exp()))

        assert torch.autograd.gradcheck(value, (loc, log_scale), fast_mode=True)
        assert torch.autograd.gradgradcheck(value, (loc, log_scale), rtol=1e-2, fast_mode=True)


@pytest.mark.parametrize("scale", SCALES)
def test_bound_of_bits_is_below_enumeration_and_exact_without_variance(scale: float) -> None:
    torch.manual_seed(0)
    decoder = decoder_of(scale, 8, latents=3)
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=DOUBLE)
    x = torch.arange(8, dtype=DOUBLE).unsqueeze(1)
    of_states = torch.stack([decoder(state.expand(8, 3)).log_prob(x) for state in states])
    for probs in (torch.rand(3, dtype=DOUBLE), torch.tensor([0.0, 1.0, 1.0], dtype=DOUBLE)):
        q = td.Bernoulli(probs.expand(8, 3))
        chances = (probs * states + (1 - probs) * (1 - states)).prod(-1)
        truth = (chances.unsqueeze(1) * of_states).sum(0)
        bound = decoder.expected_log_prob(x, q)
        assert (bound <= truth + 1e-9 * (1 + truth.abs())).all()
        if probs[0] == 0:
            torch.testing.assert_close(bound, truth, rtol=1e-8, atol=1e-8)
        else:
            assert (bound >= truth - 0.3).all()
    assert decoder.exactness(q) is sg.Exactness.LOWER_BOUND


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("expectation", ["exact", "bound"])
def test_single_precision(scale: float, expectation: str) -> None:
    decoder, x = decoder_of(scale, 256, expectation), torch.arange(256.0).unsqueeze(1)
    q = td.Normal(torch.full((256, 1), 0.3), 0.5)
    wide = decoder.expected_log_prob(x.double(), td.Normal(q.loc.double(), 0.5))
    torch.testing.assert_close(decoder.float().expected_log_prob(x, q).double(), wide, rtol=1e-4, atol=1e-4)


def test_a_decoder_starts_from_levels_and_a_circuit_of_them_learns() -> None:
    torch.manual_seed(0)
    x = torch.randint(4, (200, 1)) + torch.randint(2, (200, 6)).float() * 10
    q = td.Normal(torch.zeros(200, 2), 0.1)
    decoder = sg.DiscretizedLogistic(2, 6, 16)
    before = decoder.expected_log_prob(x, q).mean()
    decoder.init_from_data(x)
    assert decoder.expected_log_prob(x, q).mean() > before + 20
    circuit = sg.Circuit(2, 6, 3, leaves=sg.DiscretizedLogistic(2, (6, 3), 16, "bound"))
    circuit.init_from_data(x)
    assert circuit.expected_log_prob(x, q).mean() > decoder.expected_log_prob(x, q).mean() + 1
    draws = circuit(torch.zeros(1, 2)).sample((50,))
    assert (draws == draws.round()).all()


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
    values = torch.arange(6, dtype=DOUBLE).unsqueeze(-1)
    probabilities = p.log_prob(values).exp()
    require_moments(p, values, probabilities)
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
    require_moments(p, values, probabilities)
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
    require_moments(p, values, probabilities)


def require_moments(p: td.Distribution, values: Tensor, probabilities: Tensor) -> None:
    """They add up, the mean and variance are theirs, and draws have their frequencies, to four deviations."""
    torch.testing.assert_close(probabilities.sum(0), torch.ones_like(probabilities[0]))
    mean = (values * probabilities).sum(0)
    torch.testing.assert_close(p.mean, mean)
    torch.testing.assert_close(p.variance, ((values - mean).square() * probabilities).sum(0), rtol=1e-6, atol=1e-12)
    torch.manual_seed(0)
    draws = 20_000
    frequencies = (p.sample((draws,)) == values.unsqueeze(1)).double().mean(1)
    assert ((frequencies - probabilities).abs() <= 4 * (probabilities / draws).sqrt() + 1 / draws).all()


@pytest.mark.parametrize("build", [lambda: ordinal(validate_args=True), lambda: inflated(validate_args=True)])
def test_values_outside_the_support_are_refused(build: Callable[[], td.Distribution]) -> None:
    refused(ValueError, "support", lambda: build().log_prob(torch.full((4,), 0.5, dtype=DOUBLE)))


def test_a_category_that_was_not_observed_counts_for_nothing() -> None:
    p = distributions.OneHotCategorical(logits=torch.tensor([[0.3, -1.0, 2.0]] * 2), validate_args=False)
    seen = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    other = td.OneHotCategorical(logits=p.logits).log_prob(seen[:1])
    torch.testing.assert_close(p.log_prob(seen), torch.tensor([other[0].item(), 0.0]))
    assert math.isclose(p.mean.sum().item(), 2, rel_tol=1e-6)
