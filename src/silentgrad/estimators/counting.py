r"""Poisson counts as arrivals that are counted softly.

A Poisson variable of rate :math:`\lambda` is the number of arrivals before time 1 of a process of that rate. With
:math:`S_1 < S_2 < \ldots` the arrivals of a process of rate 1, those are at :math:`S_k / \lambda`, and move with
:math:`\lambda`. Counted by a soft indicator h in place of a step,

.. math:: z = \sum_k h\Bigl(\frac{1 - S_k / \lambda}{\tau}\Bigr), \qquad
          h(u) = \tfrac12 + \tfrac34 u - \tfrac14 u^3 \text{ for } |u| \le 1,

0 before and 1 after, they have a gradient. By Campbell's theorem :math:`E z = \lambda \int_0^\infty h((1 - t) / \tau)
\, dt`, which is :math:`\lambda` for every :math:`\tau \le 1`, since :math:`h(u) + h(-u) = 1`: the mean is exact, and so
is the gradient of every linear f. The variance is :math:`\lambda \int h^2 = \lambda (1 - \tfrac{9}{35} \tau)`.

Only arrivals in the window :math:`\lambda (1 \pm \tau)` count softly. Given their number, which is a Poisson variable,
they are uniform in it; those before are another Poisson variable, and have no gradient. So z is drawn without the
process: with M uniform numbers :math:`u_j` in [-1, 1] and :math:`S_j = \lambda (1 - \tau u_j)`,

.. math:: z = N + \sum_{j \le M} h(u_j), \quad N \sim \mathrm{Poisson}(\lambda (1 - \tau)),\;
          M \sim \mathrm{Poisson}(2 \lambda \tau), \qquad
          \frac{dz}{d\lambda} = \sum_{j \le M} h'(u_j)\, \frac{1 - \tau u_j}{\lambda \tau}.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import ESTIMATORS, Estimator, Integrand, latents_of, per_example, straight_through
from silentgrad.tracing import uncompiled


@ESTIMATORS.register("eat")
class EAT(Estimator):
    """Exponential arrival times, softly counted: a relaxation of Poisson counts with an exact mean. Biased.

    Take it for Poisson latents and an integrand that is smooth in z; `RLOO` is unbiased for them.

    Args:
        temperature: Half the width of the window around time 1 in which arrivals count softly, at most 1.

    References:
        Ibrahim, Zhao, Sennesh, Li, Wu, Yates, Li and Vafaii 2026, A Hitchhiker's Guide to Poisson Gradient Estimation,
        arXiv:2602.03896; Vafaii, Galor and Yates 2024, Poisson Variational Autoencoder, NeurIPS.
    """

    latents = (td.Poisson,)

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        if not 0 < temperature <= 1:
            raise DomainError(f"the temperature of EAT has to be in (0, 1], got {temperature}")
        self.temperature = temperature

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        rate = latents_of(q, self, (td.Poisson,)).rate
        z, slope = _soft_count(rate.detach(), self.temperature)
        return per_example(integrand(straight_through(z, slope * rate)), q)


@uncompiled  # the number of arrivals is not known before they are drawn
@torch.no_grad()
def _soft_count(rate: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return a count for each rate, and its derivative in it."""
    before, within = torch.poisson(rate * (1 - temperature)), torch.poisson(2 * temperature * rate)
    most = int(within.max()) if within.numel() > 0 else 0
    u = 2 * torch.rand(most, *rate.shape, dtype=rate.dtype, device=rate.device) - 1
    order = torch.arange(most, device=rate.device).reshape(-1, *[1] * rate.dim())
    soft = torch.where(order < within, 0.5 + 0.75 * u - 0.25 * u**3, 0)
    steep = torch.where(order < within, 0.75 * (1 - u.square()) * (1 - temperature * u), 0)
    slope = steep.sum(0) / (temperature * rate).clamp(min=torch.finfo(rate.dtype).tiny)
    return before + soft.sum(0), slope
