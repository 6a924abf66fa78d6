"""Fits the Gaussian mixture that `silentgrad.mathematics.quadrature` takes for softplus in single precision.

    python tools/fit_logistic.py 8        # under a minute; needs SciPy

The logistic distribution is a mixture of centred Gaussians, so its distribution function, the sigmoid, is one of
Gaussian distribution functions, and softplus, the integral of that, one of smoothed ramps. A few Gaussians do, if their
variances and weights are chosen for the smallest maximal error (Monahan and Stefanski 1992, for the sigmoid). Here the
errors of both are made small together, by least squares with Lawson's weights.
"""

import sys

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit, log_expit, ndtr

ROUNDS = 40
U = np.concatenate([np.linspace(0, 6, 400), np.linspace(6.05, 45, 400)])  # the errors are odd and even in u
EXACT = np.concatenate([expit(-U), -log_expit(U)])


def parts(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variances and weights, which sum to one, from their unconstrained logarithms."""
    log_variances, log_weights = np.split(parameters, 2)
    weights = np.exp(log_weights - log_weights.max())
    return np.exp(log_variances), weights / weights.sum()


def error(parameters: np.ndarray) -> np.ndarray:
    """Of the sigmoid and of softplus, at -U."""
    variances, weights = parts(parameters)
    ratio = -U[:, None] / np.sqrt(variances)
    slope, density = ndtr(ratio), np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
    ramp = -U[:, None] * slope + np.sqrt(variances) * density
    return np.concatenate([slope @ weights, ramp @ weights]) - EXACT


def start(count: int) -> np.ndarray:
    """Evenly spaced in the logarithm, over the range that Kolmogorov's distribution has weight in."""
    reach = 0.21 * count
    log_variances = np.log(3.14) + np.linspace(-reach, reach, count)
    return np.concatenate([log_variances, -((log_variances - np.log(2.8)) ** 2) * 1.5])


def fit(count: int) -> tuple[float, np.ndarray]:
    """The smallest maximal error that was met, and the parameters that had it."""
    parameters, weights, best = start(count), np.ones(len(EXACT)), (np.inf, start(count))
    for _ in range(ROUNDS):
        scale = 1e6 * np.sqrt(weights)
        solution = least_squares(lambda p, s=scale: s * error(p), parameters, x_scale="jac", ftol=1e-15, xtol=1e-15)
        parameters = solution.x
        errors = np.abs(error(parameters))
        best = min(best, (float(errors.max()), parameters), key=lambda found: found[0])
        weights *= errors / errors.max() + 1e-3
        weights /= weights.mean()
    return best


if __name__ == "__main__":
    largest, found = fit(int(sys.argv[1]))
    print(f"# largest error {largest:.2g}")
    for variance, weight in sorted(zip(*parts(found), strict=True)):
        print(f"    ({variance:.16g}, {weight:.16g}),")
