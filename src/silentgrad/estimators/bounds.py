r"""The bound of several samples (Burda et al. 2016), and how it fits an objective that has a KL divergence of its own.

With the weights :math:`w_k = p(x|z_k)\, p(z_k) / q(z_k|x)` of K independent samples,

.. math:: L_K = E \log \frac1K \sum_k w_k

is a lower bound of :math:`\log p(x)`, the ELBO for K = 1 and tighter with every sample. An objective subtracts
:math:`D = D_\mathrm{KL}(q \| p)` from what an estimator returns, so the estimators of this bound return
:math:`L_K + D`, which is :math:`E_q[\log p(x|z)]` for K = 1. The prior is that of a `PriorIntegrand`, as an objective
makes it; for a plain function of z it is the standard one of the latents' family.
"""

import math

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import Integrand, joint_log_prob
from silentgrad.estimators.integrand import PriorIntegrand
from silentgrad.latents.families import family_of, standard_prior
from silentgrad.latents.independent import base_of, sum_over_latents
from silentgrad.latents.priors import kl


def prior_log_prob(q: td.Distribution, integrand: Integrand, z: Tensor, examples: torch.Size) -> Tensor:
    """log p(z), one number per example."""
    if isinstance(integrand, PriorIntegrand):
        return integrand.prior.log_prob(z)
    return joint_log_prob(_standard(q), z, examples)


def divergence(q: td.Distribution, integrand: Integrand, examples: torch.Size) -> Tensor:
    """The KL divergence of q from the prior, one number per example."""
    if isinstance(integrand, PriorIntegrand):
        return integrand.prior.divergence(q)
    return sum_over_latents(kl(base_of(q), base_of(_standard(q))), examples)


def held(q: td.Distribution) -> td.Distribution:
    """The same latent, through whose parameters no gradient passes."""
    family = family_of(q)
    parameters = []
    for parameter in family.parameters(q):
        parameters.append(parameter.detach())
    return family.rebuild(q, parameters)


def log_mean(log_weights: Tensor) -> Tensor:
    """The logarithm of the mean over the first dimension of exponentials."""
    return torch.logsumexp(log_weights, 0) - math.log(len(log_weights))


def _standard(q: td.Distribution) -> td.Distribution:
    return standard_prior(q, family_of(q))()
