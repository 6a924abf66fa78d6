r"""Gaussian expectations of functions of one number, u ~ N(m, V): deterministic, smooth in m and V, with known errors.

:func:`gauss_hermite` takes any function and is exact for polynomials, but poor for one that bends on a much smaller
scale than the deviation of u. The functions that likelihoods are made of have better rules, good for every m and V:
each is a mixture of functions whose Gaussian expectation is closed, and since averaging over u cannot enlarge an
error, the error of the mixture at V = 0 bounds it everywhere.

**Softplus** is :math:`\max(0, u)` smoothed by a logistic variable, and that is a Gaussian one whose deviation is twice
a Kolmogorov variable k (Stefanski 1991). With :math:`S_c(m) = m \Phi(m/c) + c\, \varphi(m/c) = E[\max(0, N(m, c^2))]`

.. math:: E[\log(1 + e^u)] = \int S_{\sqrt{4 k^2 + V}}(m)\, f(k)\, dk,

where f vanishes doubly exponentially in log k at both ends: the trapezoidal rule in log k converges at once. In single
precision eight Gaussians do, chosen for the smallest maximal error (Monahan and Stefanski 1992) by
`tools/fit_logistic.py`. The derivatives in m and V, :math:`\Phi(m/c)` and :math:`\varphi(m/c) / 2c` of each Gaussian,
are found with the value.

**The logarithm of a square**, with :math:`a = E u^2`, by Frullani's integral,

.. math::
    E[\log(1 + u^2)] = \log(1 + a) + \int_0^\infty \Bigl( e^{-a t} - \frac{e^{-m^2 t / (1 + 2 V t)}}{\sqrt{1 + 2 V t}}
    \Bigr) e^{-t} \frac{dt}{t},

again by the trapezoidal rule in log t.

References:
    Stefanski (1991), A normal scale mixture representation of the logistic distribution,
    Statistics and Probability Letters 11(1).
    Monahan and Stefanski (1992), Normal scale mixture approximations to F*(z) and computation of the logistic-normal
    integral, in Handbook of the Logistic Distribution.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from silentgrad.errors import DomainError
from silentgrad.tracing import transformed, underlying, widened

Rule = Sequence[tuple[float, float]]

LARGE = 2**22  # numbers over all nodes beyond which the backward pass computes each node again instead of keeping it


def gauss_hermite(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, nodes: int = 32) -> Tensor:
    """Return E[function(u)] for u ~ N(mean, variance), elementwise, by Gauss-Hermite quadrature.

    Exact for polynomials of degree below 2 `nodes`. The derivative in `variance` is that in the deviation divided by
    twice the deviation, so its rounding error grows as the deviation falls; that in the deviation itself is accurate.
    At a variance of exactly zero it is half the function's second derivative, as the heat equation has it.

    Example:
        >>> gauss_hermite(torch.square, torch.tensor(3.0), torch.tensor(4.0))
        tensor(13.0000)
    """
    if nodes < 1:
        raise DomainError(f"quadrature needs at least one node, got {nodes}")
    mean, variance = widened(mean), widened(variance)
    certain = variance == 0
    deviation = torch.where(certain, 1, variance).sqrt()

    def term(node: float, weight: float) -> Tensor:
        return weight * function(mean + node * deviation)

    spread = _sum(term, _hermite(nodes), mean.numel())
    if not torch.compiler.is_compiling() and not underlying(certain).any():
        return spread
    return torch.where(certain, function(mean) + variance / 2 * _second_derivative(function, mean), spread)


def _second_derivative(function: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    slope = torch.func.grad(lambda u: function(u).sum())
    result: Tensor = torch.func.grad(lambda u: slope(u).sum())(u)
    return result


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E[log(1 + e^u)] for u ~ N(mean, variance).

    The rule's error is below 3e-9 for single precision and 1e-12 for double, for all arguments; rounding adds to it.

    Example:
        >>> expected_softplus(torch.tensor(0.0), torch.tensor(0.0))
        tensor(0.6931)
    """
    mean, variance = widened(mean), widened(variance)
    rule = LOGISTIC
    if mean.dtype == torch.float64:
        rule = LOGISTIC_FINE
    if torch.compiler.is_compiling() or transformed():  # a compiler fuses the plain sum
        return _plain_softplus(mean, variance, rule)
    value: Tensor = _ExpectedSoftplus.apply(mean, variance, rule)[0]
    return value


def _plain_softplus(mean: Tensor, variance: Tensor, rule: Rule) -> Tensor:
    return _sum(lambda c, w: w * _expected_relu(mean, (variance + c).sqrt()), rule, mean.numel())


class _ExpectedSoftplus(torch.autograd.Function):
    """The sum over the mixture, with its derivatives in mean and variance found along the way."""

    @staticmethod
    def forward(mean: Tensor, variance: Tensor, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
        slope, density, spread = mean.new_zeros(3, *torch.broadcast_shapes(mean.shape, variance.shape))
        for mixing_variance, weight in rule:
            inverse = (variance + mixing_variance).rsqrt_()
            ratio = mean * inverse
            slope.add_(torch.special.ndtr(ratio), alpha=weight)
            term = ratio.mul_(ratio).div_(-2).exp_().mul_(inverse)
            density.add_(term, alpha=weight / math.sqrt(2 * math.pi))
            spread.add_(term, alpha=mixing_variance * weight / math.sqrt(2 * math.pi))
        return mean * slope + variance * density + spread, slope, density

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Rule], output: tuple[Tensor, Tensor, Tensor]) -> None:
        mean, variance, ctx.rule = inputs
        _, slope, density = output
        ctx.mark_non_differentiable(slope, density)
        ctx.save_for_backward(mean, variance, slope, density)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None]:
        mean, variance, slope, density = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone differentiates the derivatives
            return *torch.func.vjp(partial(_plain_softplus, rule=ctx.rule), mean, variance)[1](grad), None
        return grad * slope, grad * density / 2, None


def expected_log1p_square(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E[log(1 + u^2)] for u ~ N(mean, variance).

    Example:
        >>> expected_log1p_square(torch.tensor(1.0), torch.tensor(0.0))
        tensor(0.6931)
    """
    mean, variance = widened(mean), widened(variance)
    nodes, low, high = 40, -9.0, 3.0
    if mean.dtype == torch.float64:
        nodes, low, high = 72, -12.5, 3.5
    square = mean.square()
    log1p_a = torch.log1p(square + variance)
    unit = log1p_a.detach()  # between t = 1 / (1 + a) and t = 1 the integrand falls slowly: the nodes have to span both
    step = (high - low + unit) / nodes

    def term(position: float) -> Tensor:
        t = torch.exp(low - unit + step * position)
        spread = 1 + 2 * variance * t
        difference = torch.exp(-(square + variance) * t) - torch.exp(-square * t / spread) * spread.rsqrt()
        return step * torch.exp(-t) * difference

    return log1p_a + _sum(term, [(n + 0.5,) for n in range(nodes)], mean.numel())


def expected_abs(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E|u| for u ~ N(mean, variance), in closed form.

    Example:
        >>> expected_abs(torch.tensor(-2.0), torch.tensor(0.0))
        tensor(2.)
    """
    mean, variance = widened(mean), widened(variance)
    return 2 * _expected_relu(mean, _above_zero(variance).sqrt()) - mean


def _expected_relu(mean: Tensor, deviation: Tensor) -> Tensor:
    ratio = mean / deviation
    return mean * torch.special.ndtr(ratio) + deviation * torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)


def _above_zero(variance: Tensor) -> Tensor:
    """Add what no sum would notice, so that a variance of exactly zero has a finite gradient."""
    return variance + torch.finfo(variance.dtype).tiny ** 0.4


def _sum(term: Callable[..., Tensor], points: Sequence[tuple[float, ...]], size: int) -> Tensor:
    """Return the sum of a term over points; of a large one the terms are not kept for the backward pass."""
    if size * len(points) > LARGE and torch.is_grad_enabled() and not transformed():
        plain = term

        def term(*point: float) -> Tensor:
            result: Tensor = checkpoint(plain, *point, use_reentrant=False, preserve_rng_state=False)
            return result

    total = term(*points[0])
    for point in points[1:]:
        total = total + term(*point)
    return total


def _hermite(nodes: int) -> list[tuple[float, float]]:
    """Return nodes and weights for the standard Gaussian."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return list(zip(x.tolist(), (w / w.sum()).tolist(), strict=True))


# A compiler takes the result as a constant. This is all that `torch.compiler.assume_constant_result` does, except for
# importing torch._dynamo, which takes longer than everything else in this package together.
_hermite._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _kolmogorov(step: float) -> list[tuple[float, float]]:
    """Return variances 4 k^2 and weights of the Gaussians whose mixture is the logistic distribution."""
    k = np.exp(step * np.arange(math.ceil(-2 / step), math.ceil(1.5 / step)))
    weights = k * np.where(k < 1, _density_below_one(k), _density_above_one(k))
    kept = weights > 1e-15
    return list(zip((4 * k[kept] ** 2).tolist(), (weights / weights.sum())[kept].tolist(), strict=True))


def _density_above_one(k: np.ndarray) -> np.ndarray:
    """Return Kolmogorov's density, from the distribution function 1 - 2 sum (-1)^(n-1) exp(-2 n^2 k^2)."""
    n = np.arange(1, 9)[:, None]
    terms: np.ndarray = 8 * k * (-1.0) ** (n - 1) * n**2 * np.exp(-2 * n**2 * k**2)
    return terms.sum(0)


def _density_below_one(k: np.ndarray) -> np.ndarray:
    """Return the same, from the other form, sqrt(2 pi) / k sum exp(-(2n - 1)^2 pi^2 / 8 k^2)."""
    y = ((2 * np.arange(1, 9)[:, None] - 1) * math.pi / (2 * k)) ** 2
    terms: np.ndarray = math.sqrt(2 * math.pi) / k**2 * (y - 1) * np.exp(-y / 2)
    return terms.sum(0)


LOGISTIC = [  # variances and weights, made by tools/fit_logistic.py
    (0.5446756375357019, 0.0036789760890965817),
    (0.9093424874646762, 0.056441014194925115),
    (1.4875413837119031, 0.2064482108268237),
    (2.4392070352858872, 0.3217962375821205),
    (4.022279428107379, 0.2674566394894943),
    (6.637953376679191, 0.12002382844092548),
    (10.9448845743867, 0.023129209619172152),
    (18.39167868613087, 0.0010258837574421509),
]
LOGISTIC_FINE = _kolmogorov(0.15)
