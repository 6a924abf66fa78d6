r"""Cumulant generating functions of latents, for decoders that are exponential in z.

With :math:`k(t) = \log E[e^{t z}]`, the distribution tilted by :math:`e^{t z}` has mean :math:`k'(t)` and variance
:math:`k''(t)`. That is all the exponential precision link needs: :math:`E[e^{tz} f(z)] = e^{k(t)} E_t[f(z)]`.

:func:`silentgrad.latents.generating_function` is a registry like :func:`silentgrad.latents.central_moments`. A family
joins it with a formula and the parameters that the formula takes::

    @silentgrad.latents.generating_function.register(MyDistribution)
    def _(q: MyDistribution) -> silentgrad.latents.GeneratingFunction:
        # my_formula(t, loc, scale) -> Cumulants
        return silentgrad.latents.GeneratingFunction(my_formula, (q.loc, q.scale))

Where :math:`E[e^{tz}]` is infinite the answer is a :class:`~silentgrad.DomainError`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import UnregisteredLatentError
from silentgrad.latents.moments import (
    AnyMoments,
    Moments,
    both_probabilities,
    central_moments,
    odds_of_failure,
    odds_of_one_more,
    required,
    unregistered,
)

FRACTION = 60  # terms of the half-normal's continued fraction: enough for the last digit from where it is used on


class Cumulants(NamedTuple):
    """k(t), k'(t) and k''(t)."""

    value: Tensor
    mean: Tensor
    variance: Tensor


Formula = Callable[..., Cumulants]


@dataclass(frozen=True)
class GeneratingFunction:
    """k as a function of t: `formula(t, *parameters)`, where `t` broadcasts against the parameters.

    The parameters are listed so that the formula can be evaluated piece by piece and differentiated in them.
    """

    formula: Formula
    parameters: tuple[Tensor, ...]

    def __call__(self, t: Tensor) -> Cumulants:
        return self.formula(t, *self.parameters)


@singledispatch
def generating_function(q: td.Distribution) -> GeneratingFunction:
    """Return the cumulant generating function of each latent, with its first two derivatives.

    Args:
        q: A latent with independent components, of a registered family. `Independent` is looked through.

    Raises:
        UnregisteredLatentError: The family has no formula; the message says what to use, or how to add one.

    Example:
        >>> generating_function(td.Poisson(torch.tensor(2.0)))(torch.tensor(0.0)).mean
        tensor(2.)
    """
    raise UnregisteredLatentError(unregistered(q, generating_function.registry, _how_to_register(q)))


def _how_to_register(q: object) -> str:
    """Return what to do for a latent without a formula; torch's own distributions that are not registered have none."""
    fewer = " Decoders whose variance does not depend on z, as LinearGaussian, need its mean and variance only."
    name = type(q).__name__
    if type(q).__module__.startswith("torch."):
        return fewer
    return (
        f"{fewer} If E[exp(tz)] is finite and a formula, register its logarithm:\n"
        f"    @silentgrad.latents.generating_function.register({name})\n"
        "    def _(q): return silentgrad.latents.GeneratingFunction(formula, parameters)"
    )


def moments_of(q: td.Distribution) -> AnyMoments:
    """Return moments of a latent: those of `central_moments`, or k'(0) and k''(0) of a family without them."""
    try:
        return central_moments(q)
    except UnregisteredLatentError as unregistered_moments:
        try:
            k = generating_function(q)
        except UnregisteredLatentError:
            raise unregistered_moments from None
    at_zero = k(k.parameters[0].new_zeros(()))
    return Moments(at_zero.mean, at_zero.variance)


@generating_function.register(td.Independent)
def _(q: td.Independent) -> GeneratingFunction:
    return generating_function(q.base_dist)


def formula_of(
    kind: type[td.Distribution], parameters: Callable[[Any], tuple[Tensor, ...]]
) -> Callable[[Formula], Formula]:
    """Register a formula as that of a family, with the parameters that it takes of a latent."""

    def registered(formula: Formula) -> Formula:
        generating_function.register(kind, lambda q: GeneratingFunction(formula, parameters(q)))
        return formula

    return registered


@formula_of(td.Normal, lambda q: (q.loc, q.scale))
def _normal(t: Tensor, loc: Tensor, scale: Tensor) -> Cumulants:
    s2 = scale.square()
    return Cumulants(loc * t + s2 * t.square() / 2, loc + s2 * t, s2.expand_as(loc + t))


@formula_of(td.Bernoulli, both_probabilities)
def _bernoulli(t: Tensor, p: Tensor, rest: Tensor) -> Cumulants:
    """Return log(rest + p e^t), where rest is 1 - p; nothing cancels or overflows, at p = 0 and p = 1 either."""
    # The larger term's exponent: both are divided by it, and the sum is between 1 and 2. A mere unit, it has no slope.
    unit = torch.maximum(t + p.log(), rest.log()).detach()
    one, zero = p * finite_exp(t - unit), rest * finite_exp(-unit)
    total = one + zero
    limit = 0.45 * math.log(torch.finfo(t.dtype).max)  # so that second derivatives, squares, stay in range
    change = p * torch.expm1(t.clamp(max=limit))
    near = (change > -0.5) & (t < limit)
    value = torch.where(near, torch.log1p(torch.where(near, change, 0)), unit + total.log())
    mean = one / total
    return Cumulants(value, mean, mean * (zero / total))


def finite_exp(t: Tensor) -> Tensor:
    """Return e^t, at most near the largest number: what multiplies it where it would be larger is zero."""
    return torch.exp(t.clamp(max=math.log(torch.finfo(t.dtype).max) - 1))


@formula_of(td.Binomial, lambda q: (q.total_count, *both_probabilities(q)))
def _binomial(t: Tensor, n: Tensor, p: Tensor, rest: Tensor) -> Cumulants:
    value, mean, variance = _bernoulli(t, p, rest)
    return Cumulants(n * value, n * mean, n * variance)


@formula_of(td.Laplace, lambda q: (q.loc, q.scale))
def _laplace(t: Tensor, loc: Tensor, scale: Tensor) -> Cumulants:
    b2, y = scale.square(), (scale * t).square()
    y = required(y, y < 1, "the exponential moment of Laplace(m, b) exists only for |t| < 1/b")
    return Cumulants(loc * t - torch.log1p(-y), loc + 2 * b2 * t / (1 - y), 2 * b2 * (1 + y) / (1 - y).square())


@formula_of(td.Uniform, lambda q: (q.low, q.high))
def _uniform(t: Tensor, low: Tensor, high: Tensor) -> Cumulants:
    center, half = (low + high) / 2, (high - low) / 2
    value, first, second = _log_sinhc(half * t)
    return Cumulants(center * t + value, center + half * first, half.square() * second)


# log(sinh(y)/y) = sum_n c_n y^(2n) with c_n = 2^(2n) B_2n / (2n (2n)!); twelve terms reach 1e-17 at |y| = 1/2.
_LOG_SINHC = (
    1 / 6, -1 / 180, 1 / 2835, -1 / 37800, 1 / 467775, -691 / 3831077250, 2 / 127702575, -3617 / 2605132530000,
    43867 / 350813659321125, -174611 / 15313294652906250, 155366 / 147926426347074375,
    -236364091 / 2423034863565078262500,
)  # fmt: skip


def _log_sinhc(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log(sinh(y)/y), Langevin's function coth(y) - 1/y and its derivative, smooth through y = 0."""
    small = y.abs() < 0.5
    near, far = torch.where(small, y, 0), torch.where(small, 1, y)
    value, first, second = (torch.zeros_like(y) for _ in range(3))
    for n, c in reversed(list(enumerate(_LOG_SINHC, start=1))):
        square = near.square()
        value, first, second = value * square + c, first * square + 2 * n * c, second * square + 2 * n * (2 * n - 1) * c
    size, decay = far.abs(), torch.exp(-2 * far.abs())
    return (
        torch.where(small, value * near.square(), size + torch.log1p(-decay) - torch.log(2 * size)),
        torch.where(small, first * near, far.sign() * (1 + decay) / (1 - decay) - 1 / far),
        torch.where(small, second, far.square().reciprocal() - 4 * decay / (1 - decay).square()),
    )


@formula_of(td.Poisson, lambda q: (q.rate,))
def _poisson(t: Tensor, rate: Tensor) -> Cumulants:
    tilted = rate * t.exp()
    return Cumulants(rate * t.expm1(), tilted, tilted)


@formula_of(td.Gamma, lambda q: (q.concentration, q.rate))
@formula_of(td.Exponential, lambda q: (torch.ones_like(q.rate), q.rate))
def _gamma(t: Tensor, a: Tensor, rate: Tensor) -> Cumulants:
    t = required(t, t < rate, "the exponential moment of a gamma family with rate r exists only for t < r")
    return Cumulants(-a * torch.log1p(-t / rate), a / (rate - t), a / (rate - t).square())


@formula_of(td.Geometric, lambda q: (torch.ones_like(odds_of_failure(q)), odds_of_failure(q)))
@formula_of(td.NegativeBinomial, lambda q: (q.total_count, odds_of_one_more(q)))
def _negative_binomial(t: Tensor, r: Tensor, odds: Tensor) -> Cumulants:
    """Return -r log((1 - p e^t) / (1 - p)), in the odds p / (1 - p) of one more count so that nothing cancels."""
    growth = odds * t.expm1()
    growth = required(growth, growth < 1, "the exponential moment of a negative binomial exists while p exp(t) < 1")
    one = odds * t.exp() / (1 - growth)  # the mean of one failure's counts after tilting
    return Cumulants(-r * torch.log1p(-growth), r * one, r * one * (1 + one))


@formula_of(td.Gumbel, lambda q: (q.loc, q.scale))
def _gumbel(t: Tensor, loc: Tensor, scale: Tensor) -> Cumulants:
    y = 1 - scale * t
    y = required(y, y > 0, "the exponential moment of Gumbel(m, b) exists only for t < 1/b")
    # torch's trigamma is good to ten digits only near 1, to all of them beyond 8: step there by the recurrence.
    steps = [y + k for k in range(8)]
    digamma = torch.digamma(y + 8) - sum(1 / step for step in steps)
    trigamma = torch.polygamma(1, y + 8) + sum(1 / step.square() for step in steps)
    return Cumulants(loc * t + torch.lgamma(y), loc - scale * digamma, scale.square() * trigamma)


@formula_of(td.HalfNormal, lambda q: (q.scale,))
def _half_normal(t: Tensor, scale: Tensor) -> Cumulants:
    """Return log(2 e^{y^2/2} Phi(y)) with y = scale t; far below zero everything cancels but the continued fraction."""
    y = scale * t
    start = 2  # of the continued fraction
    if y.dtype == torch.float64:
        start = 3
    far = y < -start
    near_value, near_mean, near_variance = _half_normal_near(torch.where(far, 0, y))
    far_value, far_mean, far_variance = _half_normal_far(torch.where(far, -y, start))
    return Cumulants(
        torch.where(far, far_value, near_value),
        scale * torch.where(far, far_mean, near_mean),
        scale.square() * torch.where(far, far_variance, near_variance),
    )


def _half_normal_near(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_cdf = torch.special.log_ndtr(y)
    hazard = torch.exp(-y.square() / 2 - log_cdf) / math.sqrt(2 * math.pi)
    mean = y + hazard
    return y.square() / 2 + log_cdf + math.log(2), mean, 1 - hazard * mean


def _half_normal_far(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same for y = -x: the hazard is x + 1 / (x + r), r = 2 / (x + 3 / (x + 4 / ...)) (Laplace)."""
    r = torch.zeros_like(x)
    for n in range(FRACTION, 1, -1):
        r = n / (x + r)
    mean = 1 / (x + r)
    return math.log(2 / math.pi) / 2 - torch.log(x + mean), mean, (r * (x + r) - 1) * mean.square()
