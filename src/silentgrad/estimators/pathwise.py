"""Estimators whose gradient flows through the sample."""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators.base import Estimator, LogProb, base_of, bernoulli_of, logistic_like, per_example
from silentgrad.schedules import Schedule, constant


class Reparameterized(Estimator):
    """The reparameterisation trick: differentiates through `q.rsample()` (Kingma and Welling 2014)."""

    unbiased = True

    def forward(self, q: td.Distribution, log_prob: LogProb) -> Tensor:
        if not q.has_rsample:
            raise IntractableError(
                f"{type(base_of(q)).__name__} cannot be reparameterised; for discrete latents choose GumbelSoftmax, "
                "StraightThrough, Reinforce, Rloo or DisArm"
            )
        return per_example(log_prob(q.rsample()), q)


class GumbelSoftmax(Estimator):
    """The binary Concrete relaxation of Bernoulli latents (Jang et al. 2017; Maddison et al. 2017). Biased.

    Args:
        temperature: Of the relaxation; a schedule over epochs, or a number.
        hard: Round the sample and pass the relaxed one's gradient.
    """

    unbiased = False

    def __init__(self, temperature: float | Schedule = 0.5, hard: bool = False) -> None:
        super().__init__()
        self.schedule = temperature if callable(temperature) else constant(temperature)
        self.hard = hard
        self.on_epoch(1)

    def on_epoch(self, epoch: int) -> None:
        self.temperature = self.schedule(epoch)
        if not self.temperature > 0:
            raise DomainError(f"the temperature has to be positive, got {self.temperature}")

    def forward(self, q: td.Distribution, log_prob: LogProb) -> Tensor:
        logits = bernoulli_of(q, self).logits
        relaxed = torch.sigmoid((logits + logistic_like(logits)) / self.temperature)
        if self.hard:
            relaxed = relaxed + ((relaxed > 0.5).to(relaxed.dtype) - relaxed).detach()
        return per_example(log_prob(relaxed), q)


class StraightThrough(Estimator):
    """Samples bits and passes their gradient to the probabilities unchanged (Bengio et al. 2013). Biased."""

    unbiased = False

    def forward(self, q: td.Distribution, log_prob: LogProb) -> Tensor:
        probs = bernoulli_of(q, self).probs
        bits = torch.bernoulli(probs.detach())
        return per_example(log_prob(probs + (bits - probs).detach()), q)
