"""Estimators that draw nothing: the closed form, and the sum over all configurations."""

import itertools

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError
from silentgrad.estimators.base import Estimator, LogProb, bernoulli_of, per_example
from silentgrad.latents.moments import both_probabilities


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
        return per_example(expectation(q), q)


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
        on, off = both_probabilities(bernoulli_of(q, self))
        first = per_example(log_prob(torch.zeros_like(on)), q)  # its shape says which dimensions are latents
        shape, latents = on.shape, on.shape[first.dim() :].numel()
        if latents > self.largest:
            raise IntractableError(f"Enumerate would need 2^{latents} terms; its limit is {self.largest} latents")
        on, off = on.reshape(*first.shape, latents), off.reshape(*first.shape, latents)
        total = off.prod(-1) * first
        for bits in itertools.islice(itertools.product((0.0, 1.0), repeat=latents), 1, None):
            z = on.new_tensor(bits).expand_as(on)
            weight = torch.where(z > 0, on, off).prod(-1)
            total = total + weight * per_example(log_prob(z.reshape(shape)), q)
        return total
