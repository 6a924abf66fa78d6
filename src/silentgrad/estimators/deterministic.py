"""Estimators that draw nothing: the closed form, and the sum over all configurations."""

import itertools

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError
from silentgrad.estimators.base import Estimator, LogProb, base_of, bernoulli_of, per_example
from silentgrad.estimators.integrand import TractableIntegrand
from silentgrad.exactness import Exactness
from silentgrad.latents.moments import both_probabilities


class Exact(Estimator):
    """The expectation as a tractable decoder knows it: zero variance (Silent Gradients).

    Takes `integrand_of(decoder, x)`, or any other `TractableIntegrand`. A lower bound is taken as it is; an
    approximation is refused, unless it is allowed.

    Args:
        allow_approximation: Whether to take an approximation too, such as Taylor's log term of the linear link.

    Example:
        >>> import silentgrad as sg
        >>> decoder, x = sg.LinearGaussian(2, 3), torch.zeros(5, 3)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> bool((Exact()(q, sg.integrand_of(decoder, x)) == decoder.expected_log_prob(x, q)).all())
        True
    """

    unbiased = True
    exact = True

    def __init__(self, allow_approximation: bool = False) -> None:
        super().__init__()
        self.allow_approximation = allow_approximation

    def forward(self, q: td.Distribution, log_prob: LogProb) -> Tensor:
        if not isinstance(log_prob, TractableIntegrand):
            raise IntractableError(
                "Exact needs the log-probability of a tractable decoder: pass integrand_of(decoder, x), or choose an "
                "estimator that samples"
            )
        if not self.allow_approximation:
            _require_no_approximation(log_prob, q)
        return per_example(log_prob.expectation(q), q)


def _require_no_approximation(integrand: TractableIntegrand, q: td.Distribution) -> None:
    if integrand.exactness(q) is Exactness.APPROXIMATION:
        raise IntractableError(
            f"the expectation of {integrand} is an approximation for {type(base_of(q)).__name__} latents: allow it by "
            "allow_approximation=True, or choose a decoder that is exact for them, such as link='exp'"
        )


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
