r"""NVIL: the score function with a baseline that is learned and depends on the input.

.. math:: \nabla \approx (f(z) - b(x))\, \nabla \log q(z|x), \qquad b(x) = c + s\, N(E_q z),

where c and s are running averages of f and of its deviation (the paper's centring), and the network N is fitted by
least squares. The input x reaches it through the latent: q(z|x) is what the encoder made of x, and its mean, detached,
is what N sees. So the estimator needs to be given nothing but the latent, and a baseline for another input cannot be
mixed up with this one. The paper also divides the learning signal by a running deviation, which changes the gradient's
length and so is left to the optimizer.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Integrand, joint_log_prob, per_example, value_with_gradient_of
from silentgrad.estimators.learning import ExampleNetwork, Learning


class Nvil(Learning):
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
        if not 0 <= decay < 1:
            raise DomainError(f"decay has to be in [0, 1), got {decay}")
        self.decay = decay
        self.network = ExampleNetwork(inputs, hidden)
        for name in ("centre", "square", "seen"):
            self.register_buffer(name, torch.zeros(()))

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        z = q.sample()
        f = per_example(integrand(z), q)
        centre, deviation = self._averages()
        with torch.enable_grad():
            told = (f.detach() - centre) / deviation
            gain = told - self.network(q.mean.detach(), f.shape)
        surrogate = f + deviation * gain.detach() * joint_log_prob(q, z, f.shape)
        if f.numel() > 0:
            if learning:
                self.learn(gain.square().mean())
            if self.training:
                self._remember(f.detach())
        return value_with_gradient_of(f, surrogate)

    def _averages(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of f in earlier batches, corrected for having started from zero."""
        if self.seen == 0:
            return self.centre.clone(), torch.ones_like(self.centre)
        centre = self.centre / self.seen
        variance = (self.square / self.seen - centre.square()).clamp(min=0)
        return centre, variance.sqrt().clamp(min=torch.finfo(variance.dtype).eps ** 0.5)

    def _remember(self, f: Tensor) -> None:
        f = f.to(self.centre.dtype)
        for average, value in ((self.centre, f.mean()), (self.square, f.square().mean()), (self.seen, f.new_ones(()))):
            average.lerp_(value, 1 - self.decay)
