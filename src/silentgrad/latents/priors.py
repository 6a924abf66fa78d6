"""The prior p(z) that stands against a latent, and the KL divergence from it."""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError


def prior_of(q: td.Distribution) -> td.Distribution:
    """p(z) for a latent of q's family and shape: N(0, 1) or Bernoulli(1/2)."""
    base = q.base_dist if isinstance(q, td.Independent) else q
    if isinstance(base, td.Bernoulli):
        prior: td.Distribution = td.Bernoulli(logits=torch.zeros_like(base.logits), validate_args=False)
    else:
        prior = td.Normal(torch.zeros_like(base.mean), torch.ones_like(base.mean), validate_args=False)
    return td.Independent(prior, q.reinterpreted_batch_ndims) if isinstance(q, td.Independent) else prior


def kl_to_prior(q: td.Distribution) -> Tensor:
    """KL(q(z|x) || p(z)), of the shape that q's log-probability has."""
    try:
        return td.kl_divergence(q, prior_of(q))
    except NotImplementedError:
        name = type(q.base_dist if isinstance(q, td.Independent) else q).__name__
        raise IntractableError(
            f"no KL divergence of {name} latents from N(0, 1) is known: register it by torch.distributions.register_kl"
            " (the family also needs a mean), or train on decoder.expected_log_prob(x, q) with a prior of your own"
        ) from None
