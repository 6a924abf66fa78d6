"""Log-probabilities of x given u by other libraries, for u so large or small that none of them overflows."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

Log = Callable[..., np.ndarray]  # of x and u
SCALE, DF, TRIALS = 0.4, 4.0, 10
R, SHAPE, ZEROS = 2.5, 1.7, -0.8  # inverse dispersion, shape of Gamma, logit of a zero for another reason
THRESHOLDS = -0.7, -0.2, 1.0


def log_category(x: float, u: np.ndarray, thresholds: tuple[float, ...] = THRESHOLDS) -> np.ndarray:
    """The probability of lying between two thresholds, as a difference of the smaller tails."""
    below, above = (np.array([-np.inf, *thresholds, np.inf])[int(x) + i] for i in (0, 1))
    low, high, smaller = below - u, above - u, u > (below + above) / 2  # as they are
    low, high = np.where(smaller, low, -high), np.where(smaller, high, -low)
    with np.errstate(divide="ignore"):  # of a tail that is not there
        log_above = stats.logistic.logcdf(high)
        return log_above + np.log1p(-np.exp(stats.logistic.logcdf(low) - log_above))


def log_negative_binomial(x: float, u: np.ndarray, r: float = R) -> np.ndarray:
    """With the probabilities r / (r + e^u) and e^u / (r + e^u) of a failure and a success."""
    ways = special.gammaln(x + r) - special.gammaln(r) - special.gammaln(x + 1)
    log_total = np.logaddexp(math.log(r), u)
    return ways + r * (math.log(r) - log_total) + x * (u - log_total)


def log_binomial(x: float, u: np.ndarray) -> np.ndarray:
    return math.log(math.comb(TRIALS, int(x))) + x * special.log_expit(u) + (TRIALS - x) * special.log_expit(-u)


def log_normal(x: float, u: np.ndarray, scale: float = SCALE) -> np.ndarray:
    return stats.norm.logpdf(math.log(x), u, scale) - math.log(x)


def log_gamma(x: float, u: np.ndarray, shape: float = SHAPE) -> np.ndarray:
    return stats.gamma.logpdf(x, shape, scale=np.exp(u) / shape)


def inflated(log_counts: Log) -> Log:
    """With more zeros."""

    def log_prob(x: float, u: np.ndarray, logit: float = ZEROS) -> np.ndarray:
        counted = special.log_expit(-logit) + log_counts(x, u)
        if x > 0:
            return counted
        return np.logaddexp(special.log_expit(logit), counted)

    return log_prob


def log_poisson(x: float, u: np.ndarray) -> np.ndarray:
    return stats.poisson.logpmf(x, np.exp(u))
