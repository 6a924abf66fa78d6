"""Estimators whose gradient flows through the sample."""

import torch
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import one_hot

from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators.base import Estimator, Integrand, discrete_of, gumbel_like, logistic_like, per_example
from silentgrad.latents.families import Family
from silentgrad.latents.independent import base_of
from silentgrad.schedules import Schedule, constant


class Reparameterized(Estimator):
    """The reparameterization trick: differentiates through `q.rsample()` (Kingma and Welling 2014)."""

    unbiased = True

    @classmethod
    def suits(cls, family: type[Family]) -> bool:
        return family.distribution.has_rsample

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        if not q.has_rsample:
            raise IntractableError(
                f"{type(base_of(q)).__name__} cannot be reparameterized; for discrete latents choose GumbelSoftmax, "
                "StraightThrough, Reinforce, Rloo or DisArm"
            )
        return per_example(integrand(q.rsample()), q)


class GumbelSoftmax(Estimator):
    """The Concrete relaxation of bits and one-hot categories (Jang et al. 2017; Maddison et al. 2017). Biased.

    Args:
        temperature: Temperature of the relaxation; a schedule over epochs, or a number.
        hard: Whether the sample is rounded, with the relaxed one's gradient.
    """

    unbiased = False
    latents = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, temperature: float | Schedule = 0.5, hard: bool = False) -> None:
        super().__init__()
        if not callable(temperature):
            temperature = constant(temperature)
        self.schedule = temperature
        self.hard = hard
        self.on_epoch(1)

    def on_epoch(self, epoch: int) -> None:
        self.temperature = self.schedule(epoch)
        if not self.temperature > 0:
            raise DomainError(f"the temperature has to be positive, got {self.temperature}")

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        base = discrete_of(q, self)
        if isinstance(base, td.OneHotCategorical):
            return per_example(integrand(self._relaxed_categories(base.logits)), q)
        return per_example(integrand(self._relaxed_bits(base.logits)), q)

    def _relaxed_bits(self, logits: Tensor) -> Tensor:
        relaxed = torch.sigmoid((logits + logistic_like(logits)) / self.temperature)
        if not self.hard:
            return relaxed
        return relaxed + ((relaxed > 0.5).to(relaxed.dtype) - relaxed).detach()

    def _relaxed_categories(self, logits: Tensor) -> Tensor:
        relaxed = torch.softmax((logits + gumbel_like(logits)) / self.temperature, -1)
        if not self.hard:
            return relaxed
        likeliest = one_hot(relaxed.argmax(-1), relaxed.shape[-1]).to(relaxed.dtype)
        return relaxed + (likeliest - relaxed).detach()


class StraightThrough(Estimator):
    """Samples bits or categories and passes their gradient to the probabilities (Bengio et al. 2013). Biased."""

    unbiased = False
    latents = (td.Bernoulli, td.OneHotCategorical)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        base = discrete_of(q, self)
        z = base.sample()
        return per_example(integrand(base.probs + (z - base.probs).detach()), q)
