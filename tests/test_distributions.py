"""Distributions of our own: their probabilities, draws and moments."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch import distributions as td

from silentgrad import distributions

DOUBLE = torch.float64


def test_levels_are_a_distribution() -> None:
    loc, scale = torch.tensor([-3.0, 0.1, 0.5, 0.97, 30.0], dtype=DOUBLE), torch.tensor(0.05, dtype=DOUBLE)
    p = distributions.DiscretisedLogistic(loc, scale, 6)
    values = torch.arange(6, dtype=DOUBLE).unsqueeze(-1) / 5
    probabilities = p.log_prob(values).exp()
    torch.testing.assert_close(probabilities.sum(0), torch.ones(5, dtype=DOUBLE))
    torch.testing.assert_close(p.mean, (values * probabilities).sum(0))
    assert p.log_prob(torch.zeros(5, dtype=DOUBLE))[-1] == pytest.approx(-(30 - 0.1) / 0.05)  # no tail underflows
    torch.manual_seed(0)
    draws = p.sample((4000,))
    frequencies = (draws == values.unsqueeze(1)).double().mean(1)
    torch.testing.assert_close(frequencies, probabilities, rtol=0, atol=0.04)


def test_logistic_draws_have_its_moments() -> None:
    torch.manual_seed(0)
    p = distributions.Logistic(torch.tensor(2.0), torch.tensor(0.5))
    draws = p.rsample((100_000,))
    torch.testing.assert_close(draws.mean(), p.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(draws.var(), p.variance, rtol=0.03, atol=0)


def ordinal(categories: int = 4) -> distributions.Ordinal:
    loc = torch.tensor([-30.0, -0.3, 0.5, 2.0], dtype=DOUBLE)
    return distributions.Ordinal(loc, torch.tensor([-0.7, -0.2, 1.0], dtype=DOUBLE)[: categories - 1])


@pytest.mark.parametrize("categories", [2, 4])
def test_ordered_categories_are_a_distribution(categories: int) -> None:
    p, values = ordinal(categories), torch.arange(float(categories), dtype=DOUBLE).unsqueeze(-1)
    probabilities = p.log_prob(values).exp()
    torch.testing.assert_close(probabilities.sum(0), torch.ones(4, dtype=DOUBLE))
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


def inflated() -> distributions.ZeroInflated:
    rate, logits = torch.tensor([0.1, 2.0, 3.0, 5.0], dtype=DOUBLE), torch.tensor([-1.0, 0.0, 2.0, -30], dtype=DOUBLE)
    return distributions.ZeroInflated(td.Poisson(rate), logits)


def test_counts_with_more_zeros_are_a_distribution() -> None:
    p, values = inflated(), torch.arange(60.0, dtype=DOUBLE).unsqueeze(-1)
    probabilities = p.log_prob(values).exp()
    torch.testing.assert_close(probabilities.sum(0), torch.ones(4, dtype=DOUBLE))
    extra = 1 / (1 + np.exp(-p.logits.numpy()))
    truth = (1 - extra) * stats.poisson.pmf(values.numpy(), p.counts.rate.numpy()) + extra * (values.numpy() == 0)
    np.testing.assert_allclose(probabilities, truth, rtol=1e-9)
    require_moments(p, values, probabilities)


def require_moments(p: td.Distribution, values: Tensor, probabilities: Tensor) -> None:
    """The mean and variance are those of the probabilities, and draws have their frequencies, to four deviations."""
    mean = (values * probabilities).sum(0)
    torch.testing.assert_close(p.mean, mean)
    torch.testing.assert_close(p.variance, ((values - mean).square() * probabilities).sum(0), rtol=1e-6, atol=1e-12)
    torch.manual_seed(0)
    draws = 20_000
    frequencies = (p.sample((draws,)) == values.unsqueeze(1)).double().mean(1)
    assert ((frequencies - probabilities).abs() <= 4 * (probabilities / draws).sqrt() + 1 / draws).all()


def test_values_outside_the_support_are_refused() -> None:
    half = torch.full((4,), 0.5, dtype=DOUBLE)
    checked = (
        distributions.Ordinal(ordinal().loc, ordinal().thresholds, validate_args=True),
        distributions.ZeroInflated(inflated().counts, inflated().logits, validate_args=True),
    )
    for p in checked:
        with pytest.raises(ValueError, match="support"):
            p.log_prob(half)


def test_a_category_that_was_not_observed_counts_for_nothing() -> None:
    p = distributions.OneHotCategorical(logits=torch.tensor([[0.3, -1.0, 2.0]] * 2), validate_args=False)
    seen = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    other = td.OneHotCategorical(logits=p.logits).log_prob(seen[:1])
    torch.testing.assert_close(p.log_prob(seen), torch.tensor([other[0].item(), 0.0]))
    assert math.isclose(p.mean.sum().item(), 2, rel_tol=1e-6)
