r"""Likelihoods of bits and categories: Bernoulli, ordered categories, and shares of a total.

An ordered category is the interval between two thresholds in which a logistic variable around u lies, so that its
logarithm is one of :math:`\log(\sigma(a) - \sigma(b))` as in :mod:`silentgrad.distributions`.

Counts that share a total, and single categories, have :math:`p = \mathrm{softmax}(u)` over the last dimension of an
example. With n their total,

.. math:: E \log p(x|u) = \log \frac{n!}{\prod_c x_c!} + \sum_c x_c\, E u_c - n\, E \log \sum_c e^{u_c}
    \;\ge\; \ldots - n \log \sum_c E[e^{u_c}],

a lower bound for every latent with a cumulant generating function, because the logarithm is concave.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad import distributions
from silentgrad.errors import DomainError
from silentgrad.exactness import Exactness
from silentgrad.latents.independent import shape_of
from silentgrad.latents.moments import required
from silentgrad.likelihoods.base import Needs
from silentgrad.likelihoods.counts import counts_of
from silentgrad.mathematics.quadrature import expected_softplus

BETWEEN = "the Bernoulli likelihood takes x between 0 and 1"


class Bernoulli(nn.Module):
    """p(x = 1) = sigmoid(u). Gray values between 0 and 1 are taken as the cross-entropy takes them."""

    exactness = Exactness.EXACT

    def forward(self, u: Tensor) -> td.Bernoulli:
        return td.Bernoulli(logits=u, validate_args=False)

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u at which x has this mean, and its derivative: where a start from data begins."""
        mean = required(mean, (mean > -0.01) & (mean < 1.01), f"{BETWEEN}; the data to start from are not")
        p = mean.clamp(0.02, 0.98)  # a pixel that is never on should not start beyond recall
        return p.logit(), 1 / (p * (1 - p))

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        x = required(x, (x >= 0) & (x <= 1), f"{BETWEEN}: scale it first")
        return x * mean - expected_softplus(mean, variance)


class Ordinal(nn.Module):
    """One of several ordered categories, x from 0 to categories - 1: more likely a high one where u is high.

    Args:
        event_shape: Shape of one example: each output learns its own thresholds.
        categories: Number of categories.
    """

    exactness = Exactness.EXACT

    def __init__(self, event_shape: int | Sequence[int], categories: int) -> None:
        super().__init__()
        if categories < 2:
            raise DomainError(f"expected at least two categories, got {categories}")
        self.categories = categories
        shape = shape_of(event_shape)
        self.first = nn.Parameter(torch.full(shape, 1 - categories / 2))
        self.log_gaps = nn.Parameter(torch.zeros(*shape, categories - 2))

    @property
    def thresholds(self) -> Tensor:
        """The thresholds between neighboring categories, in rising order along a last dimension."""
        steps = torch.cat([self.first.unsqueeze(-1), self.log_gaps.exp()], -1)
        return steps.cumsum(-1)

    def forward(self, u: Tensor) -> distributions.Ordinal:
        return distributions.Ordinal(u, self.thresholds, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        x = required(
            counts_of(x, "ordinal"),
            x < self.categories,
            f"the ordinal likelihood takes categories from 0 to {self.categories - 1}",
        )
        p = self(mean)
        above, below = p.borders(x)
        return p.of_category(x, -expected_softplus(-above, variance), -expected_softplus(below, variance))


class Multinomial(nn.Module):
    """Counts that share the total of their row: p = softmax(u) over the last dimension of an example.

    `likelihood(u).mean` are the shares of a total of one.
    """

    needs = Needs.GENERATING_FUNCTION
    exactness = Exactness.LOWER_BOUND
    event_dim = 1

    def forward(self, u: Tensor) -> td.Distribution:
        return td.Multinomial(1, logits=u, validate_args=False)

    def rough_u(self, x: Tensor) -> Tensor:
        """Return a u for every entry of the data, whose principal components a decoder starts with."""
        u = (x + 0.5).log()
        return u - u.mean(-1, keepdim=True)

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u at which x has this mean, and its derivative."""
        rate = mean.clamp(min=0.02)
        return rate.log(), 1 / rate

    def expectation(self, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
        """Return a lower bound of E[log p(x|u)], one number per total, from E[u] and log E[e^u]."""
        x = counts_of(x, "multinomial")
        total = x.sum(-1)
        ways = torch.lgamma(total + 1) - torch.lgamma(x + 1).sum(-1)
        return ways + (x * mean).sum(-1) - total * log_mass.logsumexp(-1)


class Categorical(Multinomial):
    """One of several categories, x one-hot along the last dimension of an example: p = softmax(u)."""

    def forward(self, u: Tensor) -> td.Distribution:
        return distributions.OneHotCategorical(logits=u, validate_args=False)

    def expectation(self, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
        """Return a lower bound of E[log p(x|u)], one number per category, from E[u] and log E[e^u]."""
        x = required(x, x.sum(-1, keepdim=True) <= 1, "the categorical likelihood takes x one-hot: at most a single 1")
        return super().expectation(x, mean, log_mass)
