r"""Estimators that sum: the closed form, all configurations, or the values of each latent in turn.

The first two draw nothing.

**IndeCateR** sums over the values of each latent, all others sampled. For independent latents the gradient in the
parameters of one is a sum over its values alone,

.. math:: \nabla_{l_i} E f = \mathrm{Cov}(z_i)\, F_i, \qquad
          F_{iv} = E_{z_{\ne i}}\bigl[f(z_1, \ldots, z_i = v, \ldots)\bigr],

and the others may be one sample, the same for all i. So every latent is set in turn to each of its other values, while
the rest of the sample stays (the CatLog-derivative trick; for bits the local expectation gradients of Titsias and
Lázaro-Gredilla 2015). A function that is additive over the latents has no variance.
"""

import itertools

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError
from silentgrad.estimators.base import (
    ESTIMATORS,
    Estimator,
    Integrand,
    discrete_of,
    for_each_latent,
    per_example,
    value_with_slope,
)
from silentgrad.estimators.choices import Choices, choices_of
from silentgrad.estimators.integrand import TractableIntegrand
from silentgrad.exactness import Exactness
from silentgrad.latents.independent import base_of
from silentgrad.latents.moments import both_probabilities


@ESTIMATORS.register("exact")
class Exact(Estimator):
    """The expectation as a tractable decoder knows it: zero variance (Silent Gradients).

    Take it wherever the expectation is exact: there is nothing to average and nothing to learn. Where it is a lower
    bound, as a circuit's, samples ascend the ELBO itself and may end above it.

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
    calls = 0

    def __init__(self, allow_approximation: bool = False) -> None:
        super().__init__()
        self.allow_approximation = allow_approximation

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        if not isinstance(integrand, TractableIntegrand):
            raise IntractableError(
                "Exact needs the log-probability of a tractable decoder: pass integrand_of(decoder, x), or choose an "
                "estimator that samples"
            )
        if not self.allow_approximation and integrand.exactness(q) is Exactness.APPROXIMATION:
            raise IntractableError(
                f"the expectation of {integrand} is an approximation for {type(base_of(q)).__name__} latents: allow it "
                "by allow_approximation=True, or choose a decoder that is exact for them, such as link='exp'"
            )
        return per_example(integrand.expectation(q), q)


@ESTIMATORS.register("enumerate")
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
    """Return the values that one latent can take, and their probabilities along a last dimension."""
    if isinstance(base, td.OneHotCategorical):
        return torch.eye(base.event_shape[-1]).to(base.probs), base.probs
    on, off = both_probabilities(base)
    return torch.tensor([0.0, 1.0]).to(on), torch.stack((off, on), -1)


@ESTIMATORS.register("indecater")
class IndeCateR(Estimator):
    """All values of each latent in turn, the others sampled.

    Take it for few latents and little variance: its cost grows with their number.

    References:
        De Smet, Sansone and Zuidberg Dos Martires 2023, Differentiable Sampling of Categorical Distributions Using the
        CatLog-Derivative Trick, NeurIPS.
    """

    unbiased = True
    latents = (td.Bernoulli, td.OneHotCategorical)

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 1 + latents * (values - 1)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        choices = choices_of(q, self)
        z = choices.sample()
        f = per_example(integrand(z), q)
        categories = choices.one_hots()
        differences = self._differences(f, choices, z, integrand)
        gradient = choices.from_one_hots(categories.covariance_times(differences))
        return value_with_slope(f, gradient, choices.logits)

    @torch.no_grad()
    def _differences(self, f: Tensor, choices: Choices, z: Tensor, integrand: Integrand) -> Tensor:
        """Compute f with each latent at each of its values, minus f at the sample: 0 at the sample's own values."""
        whole = choices.to_one_hots(z)
        values = whole.shape[-1]
        latents = whole.shape[f.dim() : -1].numel()
        rows = whole.reshape(*f.shape, latents, values)
        differences = torch.zeros_like(rows)
        for i, steps in itertools.product(range(latents), range(1, values)):
            moved = rows.clone()
            moved[..., i, :] = rows[..., i, :].roll(steps, -1)
            change = integrand(choices.from_one_hots(moved.reshape(whole.shape))) - f
            differences[..., i, :] += for_each_latent(change, moved[..., i, :]) * moved[..., i, :]
        return differences.reshape(whole.shape)
