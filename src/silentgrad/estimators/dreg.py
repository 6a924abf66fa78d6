r"""DReG: the bound of several samples for reparameterized latents, without the score function's noise in it.

Differentiating :math:`L_K` (see `bounds`) through reparameterized samples leaves a term of scores
:math:`\nabla \log q`, whose share in the gradient does not shrink with K though the signal does. Reparameterizing that
term a second time removes it:

.. math:: \nabla_\phi L_K = E\Bigl[\sum_k \tilde w_k^2
          \frac{\partial \log w_k}{\partial z_k} \frac{d z_k}{d \phi}\Bigr],

where :math:`\log w_k = \log p(x|z_k) + \log p(z_k) - \log q(z_k|x)` is differentiated in the sample only. The gradient
in the parameters of decoder and prior is :math:`\sum_k \tilde w_k \nabla \log w_k`, as without it.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Integrand, joint_log_prob, per_example, slope_of, value_with_gradient_of
from silentgrad.estimators.bounds import divergence, held, log_mean, prior_log_prob
from silentgrad.estimators.pathwise import Reparameterized, reparameterized_sample
from silentgrad.latents.independent import sum_over_latents


class Dreg(Reparameterized):
    """The doubly reparameterized gradient of the bound of several samples.

    Take it for continuous latents when the importance-weighted bound is what you want to maximize.

    Args:
        samples: Number of samples of the bound.

    References:
        Tucker, Lawson, Gu and Maddison 2019, Doubly Reparameterized Gradient Estimators for Monte Carlo Objectives,
        ICLR.
    """

    uses_prior = True

    def __init__(self, samples: int = 5) -> None:
        super().__init__()
        if samples < 1:
            raise DomainError(f"Dreg needs at least one sample, got {samples}")
        self.samples = samples

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return self.samples

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        fixed = held(q)
        log_weights, along = [], []
        for _ in range(self.samples):
            z = reparameterized_sample(q)
            with torch.enable_grad():
                leaf = z.detach().requires_grad_()
                f = per_example(integrand(leaf), q)
                log_prior = prior_log_prob(q, integrand, leaf, f.shape)
                log_weight = f + log_prior - joint_log_prob(fixed, leaf, f.shape)
                slope = slope_of(log_weight, leaf)
            log_weights.append(log_weight)
            along.append(sum_over_latents(slope * z, f.shape))
        log_w = torch.stack(log_weights)
        bound, share = log_mean(log_w), torch.softmax(log_w, 0).detach()
        surrogate = (share * log_w + share.square() * torch.stack(along)).sum(0)
        return value_with_gradient_of(bound, surrogate) + divergence(q, integrand, bound.shape)
