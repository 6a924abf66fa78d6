"""Estimators that draw nothing: the closed form, and the sum over all configurations."""

import itertools

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError
from silentgrad.estimators.base import Estimator, LogProb, discrete_of, per_example
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
    """The sum over all configurations of bits or one-hot categories: exact for any decoder, for few latents.

    Args:
        largest: The most bits it will enumerate, or as many categories as have no more configurations.
    """

    unbiased = True
    exact = True
    latents = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, largest: int = 16) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, q: td.Distribution, log_prob: LogProb) -> Tensor:
        base = discrete_of(q, self)
        values, probabilities = _choices(base)
        choices, shape = len(values), base.batch_shape + base.event_shape
        zeroth = values[0].expand(shape)
        first = per_example(log_prob(zeroth.contiguous()), q)  # its shape says which dimensions are latents
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
            total = total + weight * per_example(log_prob(z), q)
        return total


def _choices(base: td.Bernoulli | td.OneHotCategorical) -> tuple[Tensor, Tensor]:
    """The values that one latent can take, and their probabilities in the latents' shape and a last dimension."""
    if isinstance(base, td.OneHotCategorical):
        return torch.eye(base.event_shape[-1]).to(base.probs), base.probs
    on, off = both_probabilities(base)
    return torch.tensor([0.0, 1.0]).to(on), torch.stack((off, on), -1)
