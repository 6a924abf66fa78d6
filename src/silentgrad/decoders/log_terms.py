r"""E[log v^2] of the linear precision link, from the mean e, variance V and higher cumulants of v.

=============  =====================================================================================================
``exact``      Gaussian latents: v is Gaussian, :math:`G_0(e, V)` of :mod:`silentgrad.mathematics.special`
``edgeworth``  the Gaussian form corrected for skewness and kurtosis (Edgeworth's expansion of v's density)
``taylor``     the paper's second-order expansion, :math:`\log E v^2 - \mathrm{Var}(v^2) / 2 (E v^2)^2`
=============  =====================================================================================================
"""

import torch
from torch import Tensor

from silentgrad.mathematics.special import expected_log_square, log_square_derivatives


def exact(e: Tensor, v: Tensor) -> Tensor:
    """E[log v^2] of a Gaussian v."""
    return expected_log_square(e, v)


def edgeworth(e: Tensor, v: Tensor, k3: Tensor, k4: Tensor) -> Tensor:
    """G_0 + k3/6 G_3 + k4/24 G_4 + k3^2/72 G_6, or Jensen's bound log E[v^2] where the series breaks it.

    An objective without that bound could be driven to infinity by skewness alone. In units of sqrt(E v^2) every
    quantity is of order one; any constant would do as the unit, so it has no gradient.
    """
    v = _above_zero(v)
    square = e.square() + v
    unit_square = square.detach()
    unit = unit_square.sqrt()
    k3, k4 = k3 / (unit_square * unit), k4 / unit_square.square()
    g = log_square_derivatives(e / unit, v / unit_square, 0, 6)
    series = g[0] + k3 / 6 * g[3] + k4 / 24 * g[4] + k3.square() / 72 * g[6] + unit_square.log()
    bound = square.log()
    breaks = (series > bound) & (v > 1e-3 * square)  # below, both agree to rounding
    return torch.where(breaks, bound, series)


def taylor(e: Tensor, v: Tensor, k3: Tensor, k4: Tensor) -> Tensor:
    """The paper's form: log E[v^2] - Var[v^2] / (2 E[v^2]^2)."""
    v = _above_zero(v)
    square = e.square() + v
    variance_of_square = 4 * e.square() * v + 2 * v.square() + k4 + 4 * e * k3
    return square.log() - variance_of_square / (2 * square.square())


def _above_zero(v: Tensor) -> Tensor:
    """Adds what no sum would notice, so that a precision of exactly zero has a finite logarithm and gradient."""
    return v + torch.finfo(v.dtype).tiny ** 0.4
