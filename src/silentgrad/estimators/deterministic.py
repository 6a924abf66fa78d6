"""Estimators that draw nothing: the closed form, and the sum over all configurations."""

import itertools

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError
from silentgrad.estimators.base import Estimator, Integrand, discrete_of, per_example
from silentgrad.estimators.integrand import TractableIntegrand
from silentgrad.exactness import Exactness
from silentgrad.latents.independent import base_of
from silentgrad.latents.moments import both_probabilities


class Exact(Estimator):
    """The expectation as a tractable decoder knows it: zero variance (Silent Gradients).

    Take it wherever it exists: there is nothing to average and nothing to learn.

    Takes `integrand_of(decoder, x)`, or any other `TractableIntegrand`. A lower bound is taken as it is; an
    approximation is refused, unless it is allowed.

    Args:
        allow_approximation: Whether to take an approximation too, such as Taylor's log term of the linear link.

    References:
        Shao, Liu and Van den Broeck 2026, Zero-Variance Gradients for Variational Autoencoders, UAI.

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

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 0

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        if not isinstance(integrand, TractableIntegrand):
            raise IntractableError(
                "Exact needs the log-probability of a tractable decoder: pass integrand_of(decoder, x), or choose an "
                "estimator that samples"
            )
        if not self.allow_approximation:
            _require_no_approximation(integrand, q)
        return per_example(integrand.expectation(q), q)


def _require_no_approximation(integrand: TractableIntegrand, q: td.Distribution) -> None:
    if integrand.exactness(q) is Exactness.APPROXIMATION:
        raise IntractableError(
            f"the expectation of {integrand} is an approximation for {type(base_of(q)).__name__} latents: allow it by "
            "allow_approximation=True, or choose a decoder that is exact for them, such as link='exp'"
        )


class Enumerate(Estimator):
    """The sum over all configurations of bits or one-hot categories: exact for any decoder, for few latents.

    Take it as the truth that others are compared with, or where the configurations are few.

    Args:
        largest: The most bits it will enumerate, or as many categories as have no more configurations.
    """

    unbiased = True
    exact = True
    latents = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, largest: int = 16) -> None:
        super().__init__()
        self.largest = largest

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return values**latents

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        base = discrete_of(q, self)
        values, probabilities = _choices(base)
        choices, shape = len(values), base.batch_shape + base.event_shape
        zeroth = values[0].expand(shape)
        first = per_example(integrand(zeroth.contiguous()), q)  # its shape says which dimensions are latents
        latents = base.batch_shape[first.dim() :].numel()
        if choices**latents > 2**self.largest:
            raise IntractableError(
                f"Enumerate would need {choices}^{latents} terms; its limit is {self.largest} latents of two values"
            )
        probabilities = probabilities.reshape(*first.shape, latents * choices)
        starts = choices * torch.arange(latents, device=values.device)
        total = probabilities[..., starts].prod(-1) * first
        for chosen in itertools.islice(itertools.product(range(choices), repeat=latents), 1, None):
            index = torch.tensor(chosen, device=values.device)
            weight = probabilities[..., starts + index].prod(-1)
            z = values[index].expand(*first.shape, *([-1] * values.dim())).reshape(shape)
            total = total + weight * per_example(integrand(z), q)
        return total


def _choices(base: td.Bernoulli | td.OneHotCategorical) -> tuple[Tensor, Tensor]:
    """The values that one latent can take, and their probabilities in the latents' shape and a last dimension."""
    if isinstance(base, td.OneHotCategorical):
        return torch.eye(base.event_shape[-1]).to(base.probs), base.probs
    on, off = both_probabilities(base)
    return torch.tensor([0.0, 1.0]).to(on), torch.stack((off, on), -1)
