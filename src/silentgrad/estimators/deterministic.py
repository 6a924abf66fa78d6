"""Estimators that draw nothing: the closed form, and the sum over all configurations."""

import itertools

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError
from silentgrad.estimators.base import Estimator, LogProb, bernoulli_of


class Exact(Estimator):
    """The closed form of a tractable decoder: zero variance (Silent Gradients).

    Takes `decoder.log_prob_of(x)`, which carries the closed form, as its log-probability.

    Example:
        >>> from silentgrad.decoders import LinearGaussian
        >>> decoder, x = LinearGaussian(2, 3), torch.zeros(5, 3)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> bool((Exact()(q, decoder.log_prob_of(x)) == decoder.expected_log_prob(x, q)).all())
        True
    """

    unbiased = True
    exact = True

    def forward(self, q: td.Distribution, log_prob: LogProb) -> Tensor:
        expectation = getattr(log_prob, "expectation", None)
        if expectation is None:
            raise IntractableError(
                "Exact needs the log-probability of a tractable decoder: pass decoder.log_prob_of(x), or choose an "
                "estimator that samples"
            )
        result: Tensor = expectation(q)
        return result


class Enumerate(Estimator):
    """The sum over all 2^d configurations of Bernoulli latents: exact for any decoder, for few latents.

    Args:
        largest: The most latents it will enumerate.
    """

    unbiased = True
    exact = True

    def __init__(self, largest: int = 16) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, q: td.Distribution, log_prob: LogProb) -> Tensor:
        latent = bernoulli_of(q, self).probs
        probs = latent.flatten(1)
        if probs.shape[-1] > self.largest:
            raise IntractableError(
                f"Enumerate would need 2^{probs.shape[-1]} terms; its limit is {self.largest} latents"
            )
        total = torch.zeros_like(probs[..., 0])
        for bits in itertools.product((0.0, 1.0), repeat=probs.shape[-1]):
            z = probs.new_tensor(bits).expand_as(probs)
            total = total + (z * probs + (1 - z) * (1 - probs)).prod(-1) * log_prob(z.reshape(latent.shape))
        return total
