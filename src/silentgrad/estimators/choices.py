r"""Bits and one-hot categories by their logits: what estimators of discrete latents ask of both.

Both are exponential families in their logits :math:`l`, :math:`\log q(z) = l \cdot z - A(l)`. Hence

.. math:: \nabla_l \log q(z) = z - \mu, \qquad \nabla_l\, \mu \cdot v = \mathrm{Cov}(z)\, v, \qquad \mu = E z.

Noise on the logits draws them. A bit is :math:`[x > 0]` with :math:`x = l +` logistic noise; the one of a group is the
largest of :math:`x = l +` Gumbel noise (Gumbel 1954).

**Given the draw**, the noise can be drawn again. For a bit, with :math:`s = 2z - 1` and uniform v, inverting the
logistic distribution function beyond 0 gives

.. math:: x = s\,\bigl(-\log v + \mathrm{softplus}(s l + \log(1 - v))\bigr).

For a group the largest is a Gumbel variable at :math:`\mathrm{logsumexp}(l)`, whatever its place, and the others are
Gumbel variables truncated below it (Maddison, Tarlow and Minka 2014): :math:`-\log(E_i e^{-l_i} + e^{-x_{\max}})` with
exponential :math:`E_i`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import one_hot, softplus

from silentgrad.estimators.base import Estimator, below_one, discrete_of, gumbel_like, logistic_like, uniform_like

FURTHEST = 1e4  # of a logit from 0: a probability of 0 without infinities, whose products with 0 are not numbers


class _Discrete(ABC):
    """Discrete latents with some logits: what bits and one-hot categories share.

    Args:
        logits: Logits, of the shape of z.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits.clamp(-FURTHEST, FURTHEST)

    def at(self, logits: Tensor) -> Self:
        """Return the same latents with other logits."""
        return type(self)(logits)

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The expectation of z."""

    @abstractmethod
    def covariance_at(self, mean: Tensor, v: Tensor) -> Tensor:
        """Compute Cov(z) v of latents with a given mean."""

    def mean_covariance_at(self, means: Sequence[Tensor], v: Tensor) -> Tensor:
        """Average Cov(z) v over latents with given means."""
        return torch.stack([self.covariance_at(mean, v) for mean in means]).mean(0)

    def covariance_times(self, v: Tensor) -> Tensor:
        """Compute Cov(z) v, the gradient in the logits of v times the mean."""
        return self.covariance_at(self.mean, v)

    def score(self, z: Tensor) -> Tensor:
        """Compute the gradient of log q(z) in the logits."""
        return z - self.mean


class Bits(_Discrete):
    """Independent bits."""

    @property
    def mean(self) -> Tensor:
        return torch.sigmoid(self.logits)

    def with_mean(self, mean: Tensor) -> Self:
        """Return latents of the same kind with another mean."""
        return self.at(torch.logit(mean))

    def sample(self) -> Tensor:
        """Draw z."""
        return torch.bernoulli(self.mean.detach())

    def covariance_at(self, mean: Tensor, v: Tensor) -> Tensor:
        return mean * (1 - mean) * v

    def covariance_times(self, v: Tensor) -> Tensor:
        return torch.sigmoid(self.logits) * torch.sigmoid(-self.logits) * v  # 1 - mean would round to 0

    def noisy(self) -> Tensor:
        """Draw logits and noise, whose `hard` value is a draw of z; differentiable in the logits."""
        return self.logits + logistic_like(self.logits)

    def noisy_given(self, z: Tensor) -> Tensor:
        """Draw logits and noise whose `hard` value is z; differentiable in the logits."""
        sign = 2 * z - 1
        v = below_one(uniform_like(self.logits)).to(self.logits.dtype)
        return sign * (softplus(sign * self.logits + torch.log1p(-v)) - torch.log(v))

    def hard(self, noisy: Tensor) -> Tensor:
        """Return the z that noisy logits stand for."""
        return (noisy > 0).to(noisy.dtype)

    def relaxed(self, noisy: Tensor, temperature: float | Tensor) -> Tensor:
        """Return a soft `hard`, at any temperature; at 0 it would be the same."""
        return torch.sigmoid(noisy / temperature)

    def gapped(self, z: Tensor, gap: float) -> Tensor:
        """Move the logits no more than it takes for z to be their `hard` value by a gap."""
        sign = 2 * z - 1
        return sign * (sign * self.logits).clamp(min=gap)

    def one_hots(self) -> "OneHots":
        """Return the same latents as one-hot categories, along a last dimension."""
        return OneHots(torch.stack((torch.zeros_like(self.logits), self.logits), -1))

    def to_one_hots(self, z: Tensor) -> Tensor:
        """Turn z into that of `one_hots`."""
        return torch.stack((1 - z, z), -1)

    def from_one_hots(self, one_hots: Tensor) -> Tensor:
        """Turn z back, or a gradient in the logits of `one_hots` into that in the latents' own."""
        return one_hots[..., 1]


class OneHots(_Discrete):
    """Groups of categories along the last dimension, of which one is on."""

    @property
    def mean(self) -> Tensor:
        return torch.softmax(self.logits, -1)

    def with_mean(self, mean: Tensor) -> Self:
        return self.at(mean.log())

    def sample(self) -> Tensor:
        return td.OneHotCategorical(logits=self.logits.detach(), validate_args=False).sample()

    def covariance_at(self, mean: Tensor, v: Tensor) -> Tensor:
        return mean * (v - (mean * v).sum(-1, keepdim=True))

    def noisy(self) -> Tensor:
        return self.logits + gumbel_like(self.logits)

    def noisy_given(self, z: Tensor) -> Tensor:
        noise = gumbel_like(self.logits)
        largest = torch.logsumexp(self.logits, -1, keepdim=True) + (z * noise).sum(-1, keepdim=True)
        others = -torch.logaddexp(-noise - self.logits, -largest)
        return torch.where(z > 0, largest, others)

    def hard(self, noisy: Tensor) -> Tensor:
        return one_hot(noisy.argmax(-1), noisy.shape[-1]).to(noisy.dtype)

    def relaxed(self, noisy: Tensor, temperature: float | Tensor) -> Tensor:
        return torch.softmax(noisy / temperature, -1)

    def gapped(self, z: Tensor, gap: float) -> Tensor:
        largest = self.logits.amax(-1, keepdim=True)
        return torch.where(z > 0, largest, torch.minimum(self.logits, largest - gap))

    def one_hots(self) -> "OneHots":
        return self

    def to_one_hots(self, z: Tensor) -> Tensor:
        return z

    def from_one_hots(self, one_hots: Tensor) -> Tensor:
        return one_hots


Choices = Bits | OneHots
"""Discrete latents of either kind; both have the same methods."""


def choices_of(q: td.Distribution, estimator: Estimator) -> Choices:
    """Return the bits or one-hot categories inside q, or raise an error that names both."""
    base = discrete_of(q, estimator)
    return Bits(base.logits) if isinstance(base, td.Bernoulli) else OneHots(base.logits)
