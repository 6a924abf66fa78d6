r"""E[log(1 + e^u)] and E[log(1 + e^-u)] for u ~ N(m, V), both with small relative error in their tails.

:func:`silentgrad.mathematics.quadrature.expected_softplus` has a small error, but not one that falls with its value.
Likelihoods of counts multiply it by the number of failures r of a negative binomial, which may be a million where
:math:`e^u / r` is a millionth. There the logistic distribution's mixture of Gaussians of variances :math:`c_k` and
weights :math:`w_k` is used in another way. With an exponential variable added to a logistic one, T = L + E,

.. math:: \log(1 + e^u) = e^u P(T > u), \qquad
    P(N(0, s^2) + E > t) = \Phi(-t/s) + e^{s^2/2 - t} \Phi(t/s - s),

and tilting the Gaussian u by :math:`e^u` moves its mean by V. So, with :math:`s_k^2 = c_k + V`,

.. math:: E[\log(1 + e^u)] = \sum_k w_k \left( e^{m + V/2}\, \Phi\Bigl({-\frac{m + V}{s_k}}\Bigr)
    + e^{c_k/2}\, \Phi\Bigl(\frac{m - c_k}{s_k}\Bigr) \right),

a sum of positive terms whose error is that of the mixture times :math:`E[e^u]`. It is taken where :math:`m + V/2 < 0`,
the other rule elsewhere. The derivative in m is :math:`e^{m + V/2} \sum_k w_k \Phi(-(m + V)/s_k)`, because the two
densities cancel; that in V is half the second one in m, as for every Gaussian expectation.

Up to a variance of 0.5 the rule is Gauss and Hermite's, of nine nodes for single precision and 23 for double, with
errors of the same size. Nodes come in pairs :math:`m \pm s z`, so that with :math:`q = e^{2m}` and
:math:`t = e^{m + sz} + e^{m - sz}` the logarithms of a pair are :math:`\log(1 + t + q)`, one instead of two.

Both signs of u share the work: the sum is found at :math:`-|m|`, and the other sign differs by :math:`|m|`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from silentgrad.mathematics.quadrature import LOGISTIC, LOGISTIC_FINE, Rule
from silentgrad.tracing import transformed, widened

ROOT_HALF, ROOT_TWO_PI = math.sqrt(0.5), math.sqrt(2 * math.pi)

TINY = 1e-18
PIECE = 2**15  # numbers whose sums stay in the processor's cache
NARROW = 0.5  # variance up to which these numbers of nodes are enough


def _right_half(count: int) -> Rule:
    """Return nodes from 0 on of Gauss and Hermite's rule, each with its weight; those below 0 mirror them."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return list(zip(nodes[count // 2 :].tolist(), (weights / weights.sum())[count // 2 :].tolist(), strict=True))


NODES = {torch.float32: _right_half(9), torch.float64: _right_half(23)}


class Softplus(NamedTuple):
    """E[log(1 + e^u)] and E[log(1 + e^-u)]."""

    of_u: Tensor
    of_minus_u: Tensor


def expected_softplus_of_both(mean: Tensor, variance: Tensor) -> Softplus:
    """Return E[log(1 + e^u)] and E[log(1 + e^-u)] for u ~ N(mean, variance), of one shape.

    The rule's error is below 2e-8 of min(1, E[e^u]) for single precision and 1e-11 of it for double, and of
    min(1, E[e^-u]) for the other sign; rounding adds to it.

    Example:
        >>> above, below = expected_softplus_of_both(torch.tensor(-20.0), torch.tensor(1.0))
        >>> f"{above:.4g} {below:.6g}"
        '3.398e-09 20'
    """
    mean, variance = widened(mean), widened(variance)
    rule = LOGISTIC
    if mean.dtype == torch.float64:
        rule = LOGISTIC_FINE
    if torch.compiler.is_compiling() or transformed():
        found = _all(mean, variance, rule)
        return Softplus(found.of_u, found.of_minus_u)
    of_u, of_minus_u, *_ = _ExpectedSoftplusOfBoth.apply(mean, variance, rule)
    return Softplus(of_u, of_minus_u)


def softplus_and_slopes(mean: Tensor, variance: Tensor) -> "Slopes":
    """Return the same with the derivatives, and without a graph."""
    rule = LOGISTIC_FINE if mean.dtype == torch.float64 else LOGISTIC
    return Slopes(*_ExpectedSoftplusOfBoth.forward(mean, variance, rule))


def softplus_bound(mean: Tensor, variance: Tensor) -> Tensor:
    """Return Jaakkola and Jordan's upper bound of E[log(1 + e^u)] for every u of this mean and variance.

    Example:
        >>> softplus_bound(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
        tensor([0.8133, 1.3133])
    """
    # The smallest number keeps the root's derivative finite where both are zero, and the bound a bound.
    root = (mean.square() + variance + TINY).sqrt()
    return torch.nn.functional.softplus(-root) + (root + mean) / 2


class Slopes(NamedTuple):
    """Both expectations, and their derivatives: E sigmoid(u), E sigmoid(-u) and E sigmoid'(u)."""

    of_u: Tensor
    of_minus_u: Tensor
    slope: Tensor
    slope_of_minus: Tensor
    bend: Tensor


class _ExpectedSoftplusOfBoth(torch.autograd.Function):
    """Both expectations, with their derivatives found along the way."""

    @staticmethod
    def forward(mean: Tensor, variance: Tensor, rule: Rule) -> tuple[Tensor, ...]:
        if mean.device.type != "cpu":  # to find out how many there are would wait for the device
            return tuple(_all(mean, variance, rule))
        found = mean.new_empty(3, mean.numel())
        below = -mean.abs().flatten()
        pieces = below.split(PIECE), variance.flatten().split(PIECE), found.split(PIECE, dim=1)
        for piece in zip(*pieces, strict=True):
            _fill(*piece, rule)
        value, slope, bend = found.reshape(3, *mean.shape)
        return tuple(_of_both_signs(mean, value, slope, bend))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Rule], output: tuple[Tensor, ...]) -> None:
        mean, variance, ctx.rule = inputs
        _, _, *derivatives = output
        ctx.mark_non_differentiable(*derivatives)
        ctx.save_for_backward(mean, variance, *derivatives)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_minus: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None]:
        mean, variance, slope, slope_of_minus, bend = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone differentiates the derivatives
            found = _all(mean, variance, ctx.rule)
            slope, slope_of_minus, bend = found.slope, found.slope_of_minus, found.bend
        return grad * slope - grad_minus * slope_of_minus, (grad + grad_minus) * bend / 2, None


def _fill(mean: Tensor, variance: Tensor, found: Tensor, rule: Rule) -> None:
    """Write value and derivatives, each by the sum that is better there."""
    _by_nodes(mean, variance, found)
    wide = (variance > NARROW).nonzero().squeeze(1)
    if len(wide):
        found[:, wide] = _by_mixture(mean[wide], variance[wide], rule)


def _by_nodes(mean: Tensor, variance: Tensor, found: Tensor) -> None:
    """Write value and derivatives for m <= 0 and variances up to `NARROW`, in place: memory is what takes time."""
    mass = mean.exp()
    square = mass * mass
    deviation = variance.clamp(max=NARROW).sqrt_()
    value, slope, bend = found
    (_, centre), *nodes = NODES[mean.dtype]
    below = torch.reciprocal(mass + 1)
    torch.log1p(mass, out=value).mul_(centre)
    torch.mul(mass, below, out=slope)
    torch.mul(slope, below, out=bend).mul_(centre)
    slope.mul_(centre)
    for node, weight in nodes:
        tilt = torch.mul(deviation, node).exp_()
        pair = torch.reciprocal(tilt).add_(tilt).mul_(mass)
        both = torch.add(pair, square, out=tilt)
        value.add_(torch.log1p(both), alpha=weight)
        inverse = both.add_(1).reciprocal_()
        pair_slope = torch.add(pair, square, alpha=2).mul_(inverse)
        slope.add_(pair_slope, alpha=weight)
        pair_bend = pair.addcmul_(square, pair + 4).mul_(inverse).mul_(inverse)
        bend.add_(pair_bend, alpha=weight)


def _by_mixture(mean: Tensor, variance: Tensor, rule: Rule) -> Tensor:
    """Return value and derivatives by whichever sum of the mixture is better there, `(3, numbers)`."""
    found = mean.new_empty(3, mean.numel())
    in_tail = torch.add(mean, variance, alpha=0.5) < 0
    for where, sum_of in ((in_tail, _in_tail), (~in_tail, _in_body)):
        found[:, where] = torch.stack(sum_of(mean[where], variance[where], rule))
    return found


def _all(mean: Tensor, variance: Tensor, rule: Rule) -> Slopes:
    """Return both sums everywhere, of which the better one is taken: for compilers, devices and second derivatives."""
    below = torch.where(mean > 0, -mean, mean)  # unlike -|m| it has a derivative at 0, that of the branch taken there
    in_tail = torch.add(below, variance, alpha=0.5) < 0
    # Each sum is asked only where it holds, so that the other one's overflow spoils no gradient.
    of_tail = _in_tail(torch.where(in_tail, below, -1), torch.where(in_tail, variance, 0), rule)
    of_body = _in_body(below, variance, rule)
    value, slope, bend = (torch.where(in_tail, a, b) for a, b in zip(of_tail, of_body, strict=True))
    return _of_both_signs(mean, value, slope, bend)


def _of_both_signs(mean: Tensor, value: Tensor, slope: Tensor, bend: Tensor) -> Slopes:
    """From value and derivatives at -|m| to those at m, for both signs of u."""
    positive = mean > 0
    rest = 1 - slope
    return Slopes(
        value + torch.where(positive, mean, 0),
        value - torch.where(positive, 0, mean),
        torch.where(positive, rest, slope),
        torch.where(positive, slope, rest),
        bend,
    )


def _in_tail(mean: Tensor, variance: Tensor, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """Return value and derivatives by the tilted mixture, good where E[e^u] is below 1."""
    mass = torch.add(mean, variance, alpha=0.5).exp()
    tilted = mean + variance
    slope, density, rest = torch.zeros_like(mean), torch.zeros_like(mean), torch.zeros_like(mean)
    for c, weight in rule:  # by erfc: torch's ndtr has no relative accuracy where it is small
        inverse = (variance + c).rsqrt()
        ratio = tilted * inverse
        slope = slope + weight / 2 * torch.erfc(ROOT_HALF * ratio)
        density = density + weight / ROOT_TWO_PI * torch.exp(-ratio.square() / 2) * inverse
        rest = rest + weight / 2 * math.exp(c / 2) * torch.erfc((c - mean) * (ROOT_HALF * inverse))
    return mass * slope + rest, mass * slope, mass * (slope - density)


def _in_body(mean: Tensor, variance: Tensor, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """Return value and derivatives by the mixture itself."""
    slope, density, spread = torch.zeros_like(mean), torch.zeros_like(mean), torch.zeros_like(mean)
    for c, weight in rule:
        inverse = (variance + c).rsqrt()
        ratio = mean * inverse
        slope = slope + weight / 2 * torch.erfc(-ROOT_HALF * ratio)
        term = weight / ROOT_TWO_PI * torch.exp(-ratio.square() / 2) * inverse
        density = density + term
        spread = spread + c * term
    return mean * slope + variance * density + spread, slope, density
