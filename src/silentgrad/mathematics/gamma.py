r"""log Gamma(x + r) / (Gamma(r) x!), with a small error for counts and parameters of every size.

The three logarithms are large numbers whose difference is small. With Stirling's
:math:`\log \Gamma(z) = (z - \tfrac12) \log z - z + \tfrac12 \log 2\pi + S(z)` at arguments moved up by n,
:math:`a = r + n`, :math:`b = x + 1 + n` and :math:`A = x + r + n = a + b - n - 1`, the large parts cancel by hand:

.. math::
    \log \frac{\Gamma(A)}{\Gamma(a) \Gamma(b)} = \bigl(a - \tfrac12\bigr) \log\Bigl(1 + \frac{x}{a}\Bigr)
    + \bigl(b - \tfrac12\bigr) \log\Bigl(1 + \frac{r - 1}{b}\Bigr) - \bigl(n + \tfrac12\bigr) \log A + n + 1
    - \tfrac12 \log 2\pi + S(A) - S(a) - S(b),

and the way back down is the logarithm of :math:`\prod_{j < n} (r + j)(x + 1 + j) / (x + r + j)`.
"""

import math
from typing import Any

import torch
from torch import Tensor

from silentgrad.tracing import transformed

SHIFT = 6  # from which on Stirling's series below is good to 1e-11
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)


def log_rising(x: Tensor, r: Tensor) -> Tensor:
    """Return log Gamma(x + r) / (Gamma(r) x!) for counts x and positive r, of one shape. It has a derivative in r only.

    Example:
        >>> log_rising(torch.tensor([0.0, 3.0]), torch.tensor([2.0, 2.0])).exp()  # binomial coefficients 1 and 4
        tensor([1.0000, 4.0000])
    """
    x = x.detach()
    if torch.compiler.is_compiling() or transformed():
        return _log_rising(x, r)
    value: Tensor = _LogRising.apply(x, r)
    return value


class _LogRising(torch.autograd.Function):
    """The value, computed again where its derivative is wanted: what the formula makes on its way is not kept."""

    @staticmethod
    def forward(x: Tensor, r: Tensor) -> Tensor:
        return _log_rising(x, r)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        x, r = ctx.saved_tensors
        return None, grad * _derivative(x, r)


def _log_rising(x: Tensor, r: Tensor) -> Tensor:
    a, b, total = r + SHIFT, x + (1 + SHIFT), x + r + SHIFT
    large = (a - 0.5) * torch.log1p(x / a) + (b - 0.5) * torch.log1p((r - 1) / b) - (SHIFT + 0.5) * total.log()
    small = _remainder(total) - _remainder(a) - _remainder(b)
    return large + small + _down(x, r) + (SHIFT + 1 - math.log(2 * math.pi) / 2)


def _derivative(x: Tensor, r: Tensor) -> Tensor:
    """Return the same formula's derivative in r, digamma(x + r) - digamma(r)."""
    a, total = r + SHIFT, x + r + SHIFT
    large = torch.log1p(x / a) + x / (2 * a * total)
    down = torch.zeros_like(r)
    for j in range(SHIFT):
        down = down + x / ((r + j) * (x + r + j))
    return large + _remainder_slope(total) - _remainder_slope(a) + down


def _down(x: Tensor, r: Tensor) -> Tensor:
    """Return the logarithm of the product, in two halves, of which neither overflows in single precision."""
    halves = []
    for start in (0, SHIFT // 2):
        product = torch.ones_like(r)
        for j in range(start, start + SHIFT // 2):
            product = product * ((r + j) * ((x + (1 + j)) / (x + r + j)))
        halves.append(product.log())
    return halves[0] + halves[1]


def _remainder(z: Tensor) -> Tensor:
    """S(z), Stirling's series."""
    inverse = 1 / z
    square = inverse.square()
    total = torch.zeros_like(z)
    for coefficient in reversed(STIRLING):
        total = total * square + coefficient
    return total * inverse


def _remainder_slope(z: Tensor) -> Tensor:
    """Return the derivative of S(z)."""
    square = z.square().reciprocal()
    total = torch.zeros_like(z)
    for place, coefficient in reversed(list(enumerate(STIRLING))):
        total = total * square - (2 * place + 1) * coefficient
    return total * square
