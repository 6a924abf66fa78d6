r"""MuProp: the score function on what a Taylor expansion around the mean leaves.

With :math:`\mu = E z` the expansion :math:`h(z) = f(\mu) + f'(\mu) \cdot (z - \mu)` has the expectation :math:`f(\mu)`,
whose gradient backpropagation through the mean gives. The score function only has to carry the rest:

.. math:: \nabla_l \approx (f(z) - h(z))\, (z - \mu) + \mathrm{Cov}(z)\, f'(\mu).
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import (
    Estimator,
    Integrand,
    for_each_latent,
    per_example,
    slope_of,
    value_with_slope,
)
from silentgrad.estimators.choices import choices_of
from silentgrad.latents.independent import sum_over_latents


class MuProp(Estimator):
    """Backpropagation through the mean, made unbiased by the score function.

    Take it when the integrand is nearly linear between its values; nothing has to be learned.

    References:
        Gu, Levine, Sutskever and Mnih 2016, MuProp: Unbiased Backpropagation for Stochastic Neural Networks, ICLR.
    """

    unbiased = True
    latents = (td.Bernoulli, td.OneHotCategorical)

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 2

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        choices = choices_of(q, self)
        z = choices.sample()
        f = per_example(integrand(z), q)
        mean = choices.mean.detach()
        with torch.enable_grad():
            at_mean = integrand(mean.requires_grad_())
            slope = slope_of(at_mean, mean)
        score = choices.score(z).detach()
        rest = (f - at_mean).detach() - sum_over_latents(slope * score, f.shape)
        gradient = for_each_latent(rest, score) * score + choices.covariance_times(slope)
        return value_with_slope(f, gradient, choices.logits)
