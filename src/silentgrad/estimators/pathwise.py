"""Estimators whose gradient flows through the sample."""

from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators.base import (
    Estimator,
    Integrand,
    discrete_of,
    per_example,
    straight_through,
)
from silentgrad.estimators.choices import choices_of
from silentgrad.latents.families import Family
from silentgrad.latents.independent import base_of
from silentgrad.schedules import Schedule, constant


class Reparameterized(Estimator):
    """The reparameterization trick: differentiates through `q.rsample()`.

    Take it for continuous latents. For Gamma, Beta and Dirichlet ones torch's `rsample` has the implicit gradient
    (Figurnov, Mohamed and Mnih 2018).

    References:
        Kingma and Welling 2014, Auto-Encoding Variational Bayes, ICLR.
    """

    unbiased = True

    @classmethod
    def suits(cls, family: type[Family]) -> bool:
        return family.distribution.has_rsample

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        return per_example(integrand(reparameterized_sample(q)), q)


def reparameterized_sample(q: td.Distribution) -> Tensor:
    """A draw of z that is differentiable in the parameters of q."""
    if not q.has_rsample:
        raise IntractableError(
            f"{type(base_of(q)).__name__} cannot be reparameterized; for discrete latents choose GumbelSoftmax, "
            "StraightThrough, Reinforce, Rloo or DisArm"
        )
    return q.rsample()


class GumbelSoftmax(Estimator):
    """The Concrete relaxation of bits and one-hot categories. Biased.

    Take it for discrete latents when little variance counts more than bias, and relaxed values are no harm.

    Args:
        temperature: Temperature of the relaxation; a schedule over epochs, or a number.
        hard: Whether the sample is rounded, with the relaxed one's gradient: the straight-through Gumbel estimator.

    References:
        Jang, Gu and Poole 2017, Categorical Reparameterization with Gumbel-Softmax, ICLR; Maddison, Mnih and Teh 2017,
        The Concrete Distribution: A Continuous Relaxation of Discrete Random Variables, ICLR.
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
        choices = choices_of(q, self)
        noisy = choices.noisy()
        z = choices.relaxed(noisy, self.temperature)
        if self.hard:
            z = straight_through(choices.hard(noisy.detach()), z)
        return per_example(integrand(z), q)


class StraightThrough(Estimator):
    """Samples bits or categories and passes their gradient to the probabilities. Biased.

    Take it as the simplest of its kind; `ReinMax` costs the same and usually has a smaller bias.

    References:
        Bengio, Léonard and Courville 2013, Estimating or Propagating Gradients Through Stochastic Neurons for
        Conditional Computation, arXiv:1308.3432.
    """

    unbiased = False
    latents = (td.Bernoulli, td.OneHotCategorical)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        base = discrete_of(q, self)
        return per_example(integrand(straight_through(base.sample(), base.probs)), q)
