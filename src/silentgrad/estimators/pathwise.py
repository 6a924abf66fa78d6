r"""Estimators whose gradient flows through the sample, or through a soft one in place of a discrete one.

**Gumbel-Rao** is the straight-through Gumbel-Softmax gradient, averaged over the noise that gives the same sample. The
hard sample z depends on the Gumbel noise through its largest place only. Given z the rest of the noise can be averaged
over, which leaves the expected gradient as it is and by Rao and Blackwell lowers its variance:

.. math:: \nabla_l \approx E\Bigl[\frac{\partial\, \mathrm{softmax}_\tau(l + g)}{\partial l} \mid z\Bigr] f'(z).

The expectation is the mean over several draws of the noise given z, in which the noise g itself is held fixed. They
cost nothing but random numbers: the integrand is evaluated once.

**Gapped straight-through** moves logits by no more than the sample asks for, in place of noise. Straight-through
Gumbel-Softmax works because its soft sample has its largest place where the hard one is, and by a margin. Both can be
had without noise. With D the sample, the logits l are moved by constants

.. math:: m_1 = (\max l - l_D)\, D, \qquad m_2 = (l + \gamma - \max l)_+ (1 - D),

so that :math:`l + m_1 - m_2` has its maximum at D and a gap of at least :math:`\gamma` below it. The gradient is that
of :math:`\mathrm{softmax}_\tau(l + m_1 - m_2)`. A bit is two categories with the logits 0 and l; the difference of the
moved logits is :math:`s \max(s l, \gamma)` with :math:`s = 2z - 1`.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators.base import (
    ESTIMATORS,
    Estimator,
    Integrand,
    at_least,
    per_example,
    require_positive,
    straight_through,
)
from silentgrad.estimators.choices import Choices, choices_of
from silentgrad.latents.families import Family
from silentgrad.latents.independent import base_of
from silentgrad.schedules import Schedule, constant


@ESTIMATORS.register("reparameterized")
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
    """Draw z so that it is differentiable in the parameters of q."""
    if not q.has_rsample:
        raise IntractableError(
            f"{type(base_of(q)).__name__} cannot be reparameterized; for discrete latents choose GumbelSoftmax, "
            "StraightThrough, Reinforce, RLOO or DisARM"
        )
    return q.rsample()


@ESTIMATORS.register("gumbel-softmax")
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
        require_positive(self.temperature)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        choices = choices_of(q, self)
        noisy = choices.noisy()
        z = choices.relaxed(noisy, self.temperature)
        if self.hard:
            z = straight_through(choices.hard(noisy.detach()), z)
        return per_example(integrand(z), q)


class Softened(Estimator):
    """An estimator that draws bits or categories, and passes their gradient to something soft. Biased."""

    latents = (td.Bernoulli, td.OneHotCategorical)

    def draw(self, choices: Choices) -> tuple[Tensor, Tensor]:
        """Draw z, and return what its gradient is passed to."""
        raise NotImplementedError

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        return per_example(integrand(straight_through(*self.draw(choices_of(q, self)))), q)


@ESTIMATORS.register("straight-through")
class StraightThrough(Softened):
    """Samples bits or categories and passes their gradient to the probabilities. Biased.

    Take it as the simplest of its kind; `ReinMax` costs the same and usually has a smaller bias.

    References:
        Bengio, Léonard and Courville 2013, Estimating or Propagating Gradients Through Stochastic Neurons for
        Conditional Computation, arXiv:1308.3432.
    """

    def draw(self, choices: Choices) -> tuple[Tensor, Tensor]:
        return choices.sample(), choices.mean


@ESTIMATORS.register("decoupled-straight-through")
class DecoupledStraightThrough(Softened):
    """Straight-through with one temperature of the sample and another of the gradient. Biased.

    Take it when two temperatures can be tuned for the task; with both at 1 it is `StraightThrough`.

    Args:
        forward_temperature: Temperature of the sample. At any but 1 the value is the expectation under other
            probabilities than those of q: what explores more than q no longer estimates its ELBO.
        backward_temperature: Temperature of the softmax that the gradient is passed to.

    References:
        Shah, Yan, Mozer and Liu 2026, Improving Discrete Optimisation Via Decoupled Straight-Through Estimator,
        arXiv:2410.13331.
    """

    def __init__(self, forward_temperature: float = 1.0, backward_temperature: float = 1.5) -> None:
        super().__init__()
        require_positive(forward_temperature)
        require_positive(backward_temperature)
        self.forward_temperature, self.backward_temperature = forward_temperature, backward_temperature

    def draw(self, choices: Choices) -> tuple[Tensor, Tensor]:
        z = choices.at(choices.logits / self.forward_temperature).sample()
        return z, choices.relaxed(choices.logits, self.backward_temperature)


@ESTIMATORS.register("gumbel-rao")
class GumbelRao(Softened):
    """Straight-through Gumbel-Softmax with most of its noise averaged away.

    Take it in place of `GumbelSoftmax(hard=True)`: the same bias, less variance, the same evaluation.

    Args:
        temperature: Temperature of the relaxation.
        samples: Number of draws of the noise given the sample.

    References:
        Paulus, Maddison and Krause 2021, Rao-Blackwellizing the Straight-Through Gumbel-Softmax Gradient Estimator,
        ICLR.
    """

    def __init__(self, temperature: float = 0.5, samples: int = 10) -> None:
        super().__init__()
        require_positive(temperature)
        self.temperature, self.samples = temperature, at_least(1, samples, self)

    def draw(self, choices: Choices) -> tuple[Tensor, Tensor]:
        z = choices.sample()
        with torch.no_grad():
            relaxed = [choices.relaxed(choices.noisy_given(z), self.temperature) for _ in range(self.samples)]
        # No sample, but linear in the logits: its gradient is the relaxed samples' mean one.
        return z, choices.mean_covariance_at(relaxed, choices.logits) / self.temperature


@ESTIMATORS.register("gapped-straight-through")
class GappedStraightThrough(Softened):
    """A soft sample that agrees with the hard one by a margin, without noise beside the sample's own.

    Take it as `GumbelRao` without its draws: one softmax, about as little variance.

    Args:
        temperature: Temperature of the softmax.
        gap: Margin between the logit of the sample and all others.

    References:
        Fan, Chi, Rudnicky and Ramadge 2022, Training Discrete Deep Generative Models via Gapped Straight-Through
        Estimator, ICML.
    """

    def __init__(self, temperature: float = 1.0, gap: float = 1.0) -> None:
        super().__init__()
        require_positive(temperature)
        if not gap >= 0:
            raise DomainError(f"the gap has to be at least 0, got {gap}")
        self.temperature, self.gap = temperature, gap

    def draw(self, choices: Choices) -> tuple[Tensor, Tensor]:
        z = choices.sample()
        with torch.no_grad():
            moves = choices.gapped(z, self.gap) - choices.logits
        return z, choices.relaxed(choices.logits + moves, self.temperature)
