r"""Estimators whose gradient is :math:`f(z) \nabla \log q(z)`: any latent, any decoder, more variance.

They differ in the baseline that f is compared with: a running average, the other samples, or for **NVIL** one that is
learned and depends on the input.

.. math:: \nabla \approx (f(z) - b(x))\, \nabla \log q(z|x), \qquad b(x) = c + s\, N(E_q z),

where c and s are running averages of f and of its deviation (the paper's centring), and the network N is fitted by
least squares. The input x reaches it through the latent: q(z|x) is what the encoder made of x, and its mean, detached,
is what N sees. So the estimator needs to be given nothing but the latent, and a baseline for another input cannot be
mixed up with this one. The paper also divides the learning signal by a running deviation, which changes the gradient's
length and so is left to the optimizer.
"""

from typing import Self

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError
from silentgrad.estimators.base import (
    ESTIMATORS,
    Estimator,
    Integrand,
    at_least,
    joint_log_prob,
    mean_of_others,
    per_example,
    require_decay,
    value_with_gradient_of,
)
from silentgrad.estimators.learning import ExampleNetwork, Learning
from silentgrad.latents.independent import base_of


@ESTIMATORS.register("reinforce")
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
        require_decay(decay)
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


@ESTIMATORS.register("rloo")
class RLOO(Estimator):
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
        self.calls = self.samples = at_least(2, samples, self)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        draws = [q.sample() for _ in range(self.samples)]
        f = torch.stack([per_example(integrand(z), q) for z in draws])
        scores = torch.stack([joint_log_prob(q, z, f.shape[1:]) for z in draws])
        gain = f.detach() - mean_of_others(f.detach())
        return value_with_gradient_of(f, f + gain * scores).mean(0)


@ESTIMATORS.register("nvil")
class NVIL(Learning):
    """REINFORCE with a learned baseline of the input.

    Take it for latents or integrands that nothing else takes, when one evaluation is all that a step may cost.

    Args:
        decay: Decay of the running averages.
        inputs: The most numbers that an example's z may have.
        hidden: Width of the baseline's network.

    References:
        Mnih and Gregor 2014, Neural Variational Inference and Learning in Belief Networks, ICML.
    """

    unbiased = True
    centre: Tensor
    square: Tensor
    seen: Tensor

    def __init__(self, decay: float = 0.9, inputs: int = 1024, hidden: int = 100) -> None:
        super().__init__()
        require_decay(decay)
        self.decay = decay
        self.network = ExampleNetwork(inputs, hidden)
        for name in ("centre", "square", "seen"):
            self.register_buffer(name, torch.zeros(()))

    @classmethod
    def sized(cls, numbers: int) -> Self:
        return cls(inputs=numbers)

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        z = q.sample()
        f = per_example(integrand(z), q)
        (centre, deviation), mean = self._averages(), _mean_of(q)
        with torch.enable_grad():
            told = (f.detach() - centre) / deviation
            gain = told - self.network(mean.detach(), f.shape)
        surrogate = f + deviation * gain.detach() * joint_log_prob(q, z, f.shape)
        if f.numel() > 0:
            if learning:
                self.learn(gain.square().mean())
            if self.training:
                self._remember(f.detach())
        return value_with_gradient_of(f, surrogate)

    def _averages(self) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of f in earlier batches, corrected for having started from zero."""
        if self.seen == 0:
            return self.centre.clone(), torch.ones_like(self.centre)
        centre = self.centre / self.seen
        variance = (self.square / self.seen - centre.square()).clamp(min=0)
        return centre, variance.sqrt().clamp(min=torch.finfo(variance.dtype).eps ** 0.5)

    def _remember(self, f: Tensor) -> None:
        f = f.to(self.centre.dtype)
        for average, value in ((self.centre, f.mean()), (self.square, f.square().mean()), (self.seen, f.new_ones(()))):
            average.lerp_(value, 1 - self.decay)


def _mean_of(q: td.Distribution) -> Tensor:
    try:
        return q.mean
    except NotImplementedError as error:
        raise IntractableError(
            f"the baseline of NVIL is a function of the latent's mean, and {type(base_of(q)).__name__} latents have no "
            "mean in torch: choose Reinforce or RLOO"
        ) from error
