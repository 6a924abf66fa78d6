r"""Estimators whose gradient is :math:`f(z) \nabla \log q(z)`: any latent, any decoder, more variance."""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import (
    Estimator,
    Integrand,
    bernoulli_of,
    coin_like,
    joint_log_prob,
    per_example,
    uniform_like,
    value_with_gradient_of,
)
from silentgrad.estimators.learning import Learning
from silentgrad.latents.independent import sum_over_latents


class Reinforce(Learning):
    """The score-function estimator with a running average of the log-probability as its baseline, as in the paper.

    Take it as the baseline of comparisons: any latent, any integrand, one evaluation, and the most variance.

    Args:
        decay: Decay of the running average. The paper does not give it.

    References:
        Williams 1992, Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning,
        Machine Learning 8.
    """

    unbiased = True
    baseline: Tensor
    seen: Tensor

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise DomainError(f"decay has to be in [0, 1), got {decay}")
        self.decay = decay
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        z = q.sample()
        f = per_example(integrand(z), q)
        # The average so far, corrected for having started from zero; of earlier batches only, hence without bias.
        baseline = self.baseline / self.seen.clamp(min=torch.finfo(self.seen.dtype).tiny)
        surrogate = f + (f.detach() - baseline) * joint_log_prob(q, z, f.shape)
        if self.training and f.numel() > 0:
            self.baseline.lerp_(f.detach().mean().to(self.baseline.dtype), 1 - self.decay)
            self.seen.lerp_(torch.ones_like(self.seen), 1 - self.decay)
        return value_with_gradient_of(f, surrogate)


class Rloo(Estimator):
    """REINFORCE leave-one-out: each of several samples has the mean of the others as baseline (Kool et al. 2019).

    Take it for any latent when a step may cost two evaluations or more; it has nothing to learn.

    Args:
        samples: Number of samples, at least two.

    References:
        Kool, van Hoof and Welling 2019, Buy 4 REINFORCE Samples, Get a Baseline for Free!, ICLR workshop on Deep
        Reinforcement Learning Meets Structured Prediction.
    """

    unbiased = True

    def __init__(self, samples: int = 2) -> None:
        super().__init__()
        if samples < 2:
            raise DomainError(f"Rloo needs at least two samples, got {samples}")
        self.samples = samples

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return self.samples

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        draws = [q.sample() for _ in range(self.samples)]
        f = torch.stack([per_example(integrand(z), q) for z in draws])
        scores = torch.stack([joint_log_prob(q, z, f.shape[1:]) for z in draws])
        others = (f.detach().sum(0) - f.detach()) / (self.samples - 1)
        return value_with_gradient_of(f, f + (f.detach() - others) * scores).mean(0)


class DisArm(Estimator):
    """Antithetic pairs of bits, their common noise integrated out (Dong, Mnih and Tucker 2020; also U2G).

    Take it for bits at two evaluations a step: unbiased, nothing to learn, no gradient of the integrand needed.

    With m the smaller of the two probabilities of a bit, the bits of a pair differ with probability 2 m, in either
    order; otherwise both are the likelier one.

    References:
        Dong, Mnih and Tucker 2020, DisARM: An Antithetic Gradient Estimator for Binary Latent Variables, NeurIPS.
    """

    unbiased = True
    latents = (td.Bernoulli,)

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 2

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        logits = bernoulli_of(q, self).logits
        size = logits.detach().abs()
        differ = uniform_like(logits) < 2 * torch.sigmoid(-size)
        likelier, coin = logits.detach() > 0, coin_like(logits)
        first = torch.where(differ, coin, likelier).to(logits.dtype)
        second = torch.where(differ, ~coin, likelier).to(logits.dtype)
        f_first, f_second = per_example(integrand(first), q), per_example(integrand(second), q)
        weight = (first - second) * torch.sigmoid(size) / 2
        score = sum_over_latents(weight * logits, f_first.shape)
        mean = (f_first + f_second) / 2
        return value_with_gradient_of(mean, mean + (f_first - f_second).detach() * score)
