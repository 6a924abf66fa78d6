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
    value_with_gradient_of,
)
from silentgrad.estimators.learning import ExampleNetwork, Learning, RunningMeans
from silentgrad.latents.independent import base_of
from silentgrad.tracing import widened


@ESTIMATORS.register("reinforce")
class Reinforce(Learning):
    """The score-function estimator with a running average of the log-probability as its baseline, as in the paper.

    Take it as the baseline of comparisons: any latent, any integrand, one evaluation, and usually the most variance.

    Args:
        decay: Decay of the running average. The paper does not give it.

    References:
        Williams 1992, Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning,
        Machine Learning 8.
    """

    unbiased = True

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        self.averages = RunningMeans(1, decay)

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        z = q.sample()
        f = per_example(integrand(z), q)
        (baseline,) = self.averages()  # of earlier batches only, hence without bias
        surrogate = f + (f.detach() - baseline) * joint_log_prob(q, z, f.shape)
        if self.training:
            self.averages.remember(f)
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

    def __init__(self, decay: float = 0.9, inputs: int = 1024, hidden: int = 100) -> None:
        super().__init__()
        self.averages = RunningMeans(2, decay)
        self.network = ExampleNetwork(inputs, hidden)

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
        if learning and f.numel() > 0:
            self.learn(gain.square().mean())
        if self.training:
            self.averages.remember(widened(f), widened(f).square())
        return value_with_gradient_of(f, surrogate)

    def _averages(self) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of f in earlier batches; 0 and 1 before the first."""
        centre, square = self.averages()
        deviation = (square - centre.square()).clamp(min=torch.finfo(square.dtype).eps).sqrt()
        return centre, torch.where(self.averages.weight > 0, deviation, 1)


def _mean_of(q: td.Distribution) -> Tensor:
    try:
        return q.mean
    except NotImplementedError as error:
        raise IntractableError(
            f"the baseline of NVIL is a function of the latent's mean, and {type(base_of(q)).__name__} latents have no "
            "mean in torch: choose Reinforce or RLOO"
        ) from error
