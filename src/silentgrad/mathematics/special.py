r"""The expected logarithm of a squared Gaussian, and its derivatives.

For :math:`v \sim N(e, V)` write :math:`G_0(e, V) = E[\log v^2]` and :math:`G_n = \partial^n G_0 / \partial e^n`.
A Gaussian expectation solves the heat equation, :math:`\partial_V G_n = \tfrac12 G_{n+2}`, so the family is closed
under differentiation in both arguments and one autograd function serves every order. Stein's identity links them:

.. math:: V G_{n+2} + e G_{n+1} + n G_n = 2 [n = 0].

With :math:`S = e^2 + V` and :math:`\rho = V / S` everything is bounded on :math:`0 \le \rho \le 1`,

.. math::
    G_0 = \log S + \psi(1) + (1 - \rho)^2 \zeta(\rho), \quad
    G_1 = \tfrac{2e}{S} (1 + \rho (1 - \rho) \omega(\rho)), \quad
    G_2 = \tfrac{2}{S} (1 - (1 - \rho)^2 \omega(\rho)),

with :math:`\psi(1) = -\gamma - \log 2`, and the smooth functions :math:`\zeta, \omega` as ratios of polynomials fitted
by `tools/fit_special.py`, and so are :math:`G_7, G_8` in single precision. Neither :math:`V \to 0` nor
:math:`e \to 0` is a special case. Dawson's function is :math:`F(t) = G_1(t, \tfrac12) / 4`.

References:
    Moser (2020), Expected logarithm and negative integer moments of a noncentral chi2-distributed random variable,
    Entropy 22(9):1048.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from silentgrad.mathematics._coefficients import EIGHTH, OMEGA, SEVENTH, ZETA

PSI_ONE = -0.5772156649015329 - math.log(2)


def expected_log_square(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E[log v^2] for v ~ N(mean, variance), differentiable to any order in both arguments.

    Both zero, where the truth is minus infinity, gives a large finite negative number.

    Example:
        >>> expected_log_square(torch.tensor(0.0), torch.tensor(1.0))
        tensor(-1.2704)
    """
    return log_square_derivatives(mean, variance, 0, 0)[0]


def log_square_derivatives(mean: Tensor, variance: Tensor, lowest: int, highest: int) -> tuple[Tensor, ...]:
    """Return G_n = d^n/d(mean)^n E[log v^2] for n from `lowest` to `highest`."""
    if not (torch.is_grad_enabled() and (mean.requires_grad or variance.requires_grad)):
        return tuple(_evaluate(mean, variance, lowest, highest))
    # Two orders more are the derivatives, evaluated along the way; a compiler fuses and would rather do it again later.
    last = highest
    if not torch.compiler.is_compiling():
        last += 2
    family: tuple[Tensor, ...] = _Family.apply(mean, variance, lowest, last)
    return family[: highest - lowest + 1]


class _Family(torch.autograd.Function):
    """G_lowest to G_highest; a derivative is another member of the family."""

    generate_vmap_rule = True

    @staticmethod
    def forward(e: Tensor, v: Tensor, lowest: int, highest: int) -> tuple[Tensor, ...]:
        return tuple(_evaluate(e, v, lowest, highest))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        e, v, ctx.lowest, _ = inputs
        if torch.compiler.is_compiling():
            ctx.save_for_backward(e, v)
        else:
            ctx.save_for_backward(e, v, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        e, v, *g = ctx.saved_tensors
        needed = _needed(grads)
        if needed > len(g):
            g += log_square_derivatives(e, v, ctx.lowest + len(g), ctx.lowest + needed - 1)
        in_mean = in_variance = None
        for n, grad in enumerate(grads):
            if grad is not None:
                in_mean = _accumulated(in_mean, grad, g[n + 1])
                in_variance = _accumulated(in_variance, grad, g[n + 2])
        if in_variance is not None:
            in_variance = in_variance / 2  # the heat equation
        return in_mean, in_variance, None, None


def _needed(grads: Sequence[Tensor | None]) -> int:
    """Return the number of orders that the derivatives of those in use take: two more than the last of them."""
    needed = 0
    for n, grad in enumerate(grads):
        if grad is not None:
            needed = n + 3
    return needed


def _accumulated(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Return total + a b."""
    if total is None:
        return a * b
    return torch.addcmul(total, a, b)


def _evaluate(e: Tensor, v: Tensor, lowest: int, highest: int) -> list[Tensor]:
    """Return G_lowest to G_highest, in at least single precision.

    Works in place where it can: allocating is what an elementwise function spends its time on.
    """
    dtype = torch.promote_types(e.dtype, v.dtype)
    wide = torch.promote_types(dtype, torch.float64 if highest > 8 else torch.float32)
    e, v = e.to(wide), v.to(wide)
    square = e.square()
    s = (square + v).clamp(min=_floor(wide))
    rho, rest = v / s, square / s
    g: list[Tensor] = []
    if lowest == 0:
        g.append(_ratio(ZETA, rho).mul_(rest).mul_(rest).add_(s.log()).add_(PSI_ONE))
    if highest > 2 and wide == torch.float32:
        g += _downwards(e, s, rho)[max(lowest, 1) - 1 : highest]
    elif highest > 0:
        omega = _ratio(OMEGA, rho).mul_(rest)
        half = s.reciprocal_().mul_(2)
        first, second = rho.mul_(omega).add_(1).mul_(half).mul_(e), omega.mul_(rest).neg_().add_(1).mul_(half)
        g += _upwards(e, v, [first, second], highest)[max(lowest, 1) - 1 : highest]
    return [x.to(dtype) for x in g]


def _floor(dtype: torch.dtype) -> float:
    """Return the least E[v^2]: far below any rounding error, far enough above zero for its reciprocal to be finite."""
    return torch.finfo(dtype).tiny ** 0.75


def _ratio(coefficients: dict[str, Any], rho: Tensor) -> Tensor:
    precision = "float32"
    if rho.dtype == torch.float64:
        precision = "float64"
    numerator, denominator = coefficients[precision]
    return _polynomial(numerator, rho) / _polynomial(denominator, rho)


def _polynomial(ascending: Sequence[float], x: Tensor) -> Tensor:
    result = (x * ascending[-1]).add_(ascending[-2])
    for c in ascending[-3::-1]:
        result.mul_(x).add_(c)
    return result


def _downwards(e: Tensor, s: Tensor, rho: Tensor) -> list[Tensor]:
    """Return G_1 to G_8 in single precision: Stein's identity downwards, where it is stable, in units of sqrt(s)."""
    unit = s.rsqrt()
    e = e * unit
    g = [_ratio(EIGHTH, rho), _ratio(SEVENTH, rho).mul_(e)]
    for n in range(6, 0, -1):
        g.append(torch.addcmul(rho * g[-2], e, g[-1]).div_(-n))
    g, scale = g[::-1], unit
    for x in g:
        x.mul_(scale)
        scale = scale * unit  # a product a step: a general power costs as much as ten of them
    return g


def _upwards(e: Tensor, v: Tensor, low: list[Tensor], highest: int) -> list[Tensor]:
    """Return G_1, G_2 and on in double precision: Stein's identity upwards, unless v is so small that it cancels.

    There the heat equation's series, asymptotic in v / e^2, gives the two highest, and the identity runs downwards.
    """
    if highest <= 2:
        return low
    limit, terms = 1 / 72, 36
    v, up = v.clamp(min=_floor(v.dtype)), list(low)
    for n in range(1, highest - 1):
        up.append(-(e * up[n] + n * up[n - 1]) / v)
    small = v < limit * e.square()
    safe_e, safe_v = torch.where(small, e, 1), torch.where(small, v, 0)
    down = [_asymptotic(safe_e, safe_v, highest + 1, terms), _asymptotic(safe_e, safe_v, highest, terms)]
    for n in range(highest - 1, 2, -1):
        down.append(-(safe_v * down[-2] + safe_e * down[-1]) / n)
    return low + [torch.where(small, d, u) for d, u in zip(down[:0:-1], up[2:], strict=True)]


def _asymptotic(e: Tensor, v: Tensor, n: int, terms: int) -> Tensor:
    """Return G_n = sum_k v^k / (2^k k!) d^(n+2k)/de^(n+2k) log e^2, summed to its smallest term at the limit of use."""
    ratio, result = v / e.square(), torch.ones_like(e)
    for k in range(terms, 0, -1):
        result = 1 + ratio * result * ((n + 2 * k - 1) * (n + 2 * k - 2) / (2 * k))
    return 2 * (-1) ** (n - 1) * math.factorial(n - 1) * result / e**n
