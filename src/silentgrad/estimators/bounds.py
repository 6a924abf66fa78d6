r"""The bound of several samples (Burda et al. 2016), and how it fits an objective that has a KL divergence of its own.

With the weights :math:`w_k = p(x|z_k)\, p(z_k) / q(z_k|x)` of K independent samples,

.. math:: L_K = E \log \frac1K \sum_k w_k

is a lower bound of :math:`\log p(x)`, the ELBO for K = 1 and tighter with every sample. An objective subtracts
:math:`D = D_\mathrm{KL}(q \| p)` from what an estimator returns, so the estimators of this bound return
:math:`L_K + D`, which is :math:`E_q[\log p(x|z)]` for K = 1. The prior is that of a `PriorIntegrand`, as an objective
makes it; for a plain function of z it is the standard one of the latents' family.

**STL**, sticking the landing, is for K = 1: the ELBO's gradient without its score, which has mean 0 and only adds
variance.

.. math:: \nabla_\phi\, \mathrm{ELBO} = E\Bigl[
          \frac{\partial}{\partial z} \bigl(\log p(x|z) + \log p(z) - \log q(z|x)\bigr) \frac{d z}{d \phi}\Bigr],

for a reparameterized z, with :math:`\log q` differentiated in z only. Where q is the posterior the bracket is constant
and the gradient has no variance.

**DReG** is for reparameterized latents. Differentiating :math:`L_K` through their samples leaves a term of scores
:math:`\nabla \log q`, whose share in the gradient does not shrink with K though the signal does. Reparameterizing that
term a second time removes it:

.. math:: \nabla_\phi L_K = E\Bigl[\sum_k \tilde w_k^2
          \frac{\partial \log w_k}{\partial z_k} \frac{d z_k}{d \phi}\Bigr],

where :math:`\log w_k = \log p(x|z_k) + \log p(z_k) - \log q(z_k|x)` is differentiated in the sample only. The gradient
in the parameters of decoder and prior is :math:`\sum_k \tilde w_k \nabla \log w_k`, as without it. So one backward pass
serves both, which behind the samples multiplies by :math:`\tilde w_k` once more.

**VIMCO** is for latents that cannot be reparameterized. The gradient of :math:`L_K` has a part through the samples and
one through their weights,

.. math:: \nabla L_K = E\Bigl[\sum_k (\hat L - \hat L_{-k})\, \nabla \log q(z_k|x)
          + \sum_k \tilde w_k \nabla \log w_k\Bigr],
          \qquad \hat L = \log \frac1K \sum_j w_j,\quad \tilde w_k = \frac{w_k}{\sum_j w_j}.

The baseline of a sample may depend on all others, and is the bound with its own weight replaced by their geometric
mean: :math:`\hat L_{-k} = \log \frac1K \bigl(\sum_{j \ne k} w_j + (\prod_{j \ne k} w_j)^{1/(K-1)}\bigr)`.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import (
    ESTIMATORS,
    Estimator,
    Integrand,
    at_least,
    for_each_latent,
    joint_log_prob,
    per_example,
    value_with_gradient_of,
)
from silentgrad.estimators.integrand import PriorIntegrand
from silentgrad.estimators.pathwise import Reparameterized, reparameterized_sample
from silentgrad.latents.families import family_of, standard_prior
from silentgrad.latents.independent import base_of, require_fixed_support, sum_over_latents
from silentgrad.latents.priors import kl
from silentgrad.tracing import require_untransformed, uncompiled


def prior_log_prob(q: td.Distribution, integrand: Integrand, z: Tensor, examples: torch.Size) -> Tensor:
    """Compute log p(z), one number per example."""
    if isinstance(integrand, PriorIntegrand):
        return integrand.prior.log_prob(z)
    return joint_log_prob(_standard(q), z, examples)


def divergence(q: td.Distribution, integrand: Integrand, examples: torch.Size) -> Tensor:
    """Compute the KL divergence of q from the prior, one number per example."""
    if isinstance(integrand, PriorIntegrand):
        return integrand.prior.divergence(q)
    return sum_over_latents(kl(base_of(q), base_of(_standard(q))), examples)


def held(q: td.Distribution) -> td.Distribution:
    """Detach a latent's parameters: log q loses its score, which has mean 0.

    Raises:
        IntractableError: It has not, since the support of q moves.
    """
    require_fixed_support(q)
    family = family_of(q)
    return family.rebuild(q, [parameter.detach() for parameter in family.parameters(q)])


def log_mean(log_weights: Tensor) -> Tensor:
    """Return the logarithm of the mean over the first dimension of exponentials."""
    return torch.logsumexp(log_weights, 0) - math.log(len(log_weights))


def _standard(q: td.Distribution) -> td.Distribution:
    return standard_prior(q, family_of(q))()


@ESTIMATORS.register("stl")
class STL(Reparameterized):
    """Reparameterization whose variance vanishes as q comes close to the posterior.

    Take it for continuous latents and a q that can fit the posterior well.

    References:
        Roeder, Wu and Duvenaud 2017, Sticking the Landing: Simple, Lower-Variance Gradient Estimators for Variational
        Inference, NeurIPS.
    """

    uses_prior = True

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        z = reparameterized_sample(q)
        f = per_example(integrand(z), q)
        log_prior = prior_log_prob(q, integrand, z, f.shape)
        elbo = f + log_prior - joint_log_prob(held(q), z, f.shape)
        return elbo + divergence(q, integrand, f.shape)


@ESTIMATORS.register("dreg")
class DReG(Reparameterized):
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
        self.calls = self.samples = at_least(1, samples, self)

    @uncompiled  # which would ask for weights before there are any
    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        require_untransformed(type(self).__name__)
        fixed, log_weights = held(q), []
        shares: list[Tensor] = []  # of the samples, which are known once all of them have been evaluated

        def weighted(k: int, arriving: Tensor) -> Tensor:
            return arriving * for_each_latent(shares[k], arriving)

        for k in range(self.samples):
            z = reparameterized_sample(q)
            if z.requires_grad:
                z.register_hook(partial(weighted, k))
            f = per_example(integrand(z), q)
            log_weights.append(f + prior_log_prob(q, integrand, z, f.shape) - joint_log_prob(fixed, z, f.shape))
        log_w = torch.stack(log_weights)
        bound = log_mean(log_w)
        shares += torch.softmax(log_w, 0).detach()
        surrogate = (torch.stack(shares) * log_w).sum(0)
        return value_with_gradient_of(bound, surrogate) + divergence(q, integrand, bound.shape)


@ESTIMATORS.register("vimco")
class VIMCO(Estimator):
    """The bound of several samples by the score function, each with the others as its baseline.

    Take it for discrete latents when the importance-weighted bound is what you want to maximize.

    Args:
        samples: Number of samples of the bound, at least two.

    References:
        Mnih and Rezende 2016, Variational Inference for Monte Carlo Objectives, ICML.
    """

    unbiased = True
    uses_prior = True

    def __init__(self, samples: int = 5) -> None:
        super().__init__()
        self.calls = self.samples = at_least(2, samples, self)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        log_weights, log_probs = [], []
        for _ in range(self.samples):
            z = q.sample()
            f = per_example(integrand(z), q)
            log_probs.append(joint_log_prob(q, z, f.shape))
            log_weights.append(f + prior_log_prob(q, integrand, z, f.shape) - log_probs[-1])
        log_w, log_q = torch.stack(log_weights), torch.stack(log_probs)
        bound = log_mean(log_w)
        gain = bound.detach() - self._baselines(log_w.detach())
        share = torch.softmax(log_w, 0).detach()
        surrogate = (gain * log_q + share * log_w).sum(0)
        return value_with_gradient_of(bound, surrogate) + divergence(q, integrand, bound.shape)

    def _baselines(self, log_w: Tensor) -> Tensor:
        """Compute the bound with each sample's weight replaced by the geometric mean of the others."""
        own = torch.eye(self.samples, dtype=torch.bool, device=log_w.device)
        own = own.reshape(self.samples, self.samples, *[1] * (log_w.dim() - 1))
        others = torch.where(own, 0, log_w).sum(1) / (self.samples - 1)
        return log_mean(torch.where(own, others, log_w.unsqueeze(1)))
