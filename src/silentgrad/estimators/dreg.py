r"""DReG: the bound of several samples for reparameterized latents, without the score function's noise in it.

Differentiating :math:`L_K` (see `bounds`) through reparameterized samples leaves a term of scores
:math:`\nabla \log q`, whose share in the gradient does not shrink with K though the signal does. Reparameterizing that
term a second time removes it:

.. math:: \nabla_\phi L_K = E\Bigl[\sum_k \tilde w_k^2
          \frac{\partial \log w_k}{\partial z_k} \frac{d z_k}{d \phi}\Bigr],

where :math:`\log w_k = \log p(x|z_k) + \log p(z_k) - \log q(z_k|x)` is differentiated in the sample only. The gradient
in the parameters of decoder and prior is :math:`\sum_k \tilde w_k \nabla \log w_k`, as without it. So one backward pass
serves both, which behind the samples multiplies by :math:`\tilde w_k` once more.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Integrand, for_each_latent, joint_log_prob, per_example, value_with_gradient_of
from silentgrad.estimators.bounds import divergence, held, log_mean, prior_log_prob
from silentgrad.estimators.pathwise import Reparameterized, reparameterized_sample
from silentgrad.tracing import uncompiled


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

    @uncompiled  # which would ask for weights before there are any
    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        fixed, weights = held(q), _Weights()
        log_weights = []
        for k in range(self.samples):
            z = _Weighted.apply(reparameterized_sample(q), weights, k)
            f = per_example(integrand(z), q)
            log_weights.append(f + prior_log_prob(q, integrand, z, f.shape) - joint_log_prob(fixed, z, f.shape))
        log_w = torch.stack(log_weights)
        bound, weights.normalized = log_mean(log_w), torch.softmax(log_w, 0).detach()
        surrogate = (weights.normalized * log_w).sum(0)
        return value_with_gradient_of(bound, surrogate) + divergence(q, integrand, bound.shape)


class _Weights:
    """The weights of all samples, which are known once all of them have been evaluated."""

    normalized: Tensor


class _Weighted(torch.autograd.Function):
    """A sample, behind which the gradient has its weight as a factor once more."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weights: _Weights, k: int) -> Tensor:
        ctx.weights, ctx.k = weights, k
        return z.clone()

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, None, None]:
        return arriving * for_each_latent(ctx.weights.normalized[ctx.k], arriving), None, None
