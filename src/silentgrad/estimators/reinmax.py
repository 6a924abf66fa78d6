r"""ReinMax: a straight-through gradient that is right to second order.

The gradient of an expectation over a category is made of differences :math:`f(z') - f(z)`. Straight-through takes for
each the slope at the sample, which is Euler's rule, of first order. Heun's, of second order, takes the mean of the
slopes at both ends. Summed over the categories and written at the sample alone, that is

.. math:: \nabla_l \approx 2\, J(\tfrac12 (\mu_\tau + z))\, f'(z) - \tfrac12 J(\mu)\, f'(z),
          \qquad J(p) = \mathrm{diag}(p) - p p^T,

with :math:`\mu` the probabilities and :math:`\mu_\tau` those at a temperature. At temperature 1 it is unbiased for
every quadratic function of one latent.
"""

from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Estimator, Integrand, per_example, straight_through
from silentgrad.estimators.choices import choices_of


class ReinMax(Estimator):
    """Heun's rule in place of straight-through's Euler step: one evaluation, a bias of third order.

    Take it when one evaluation is all that a step may cost and the integrand is smooth in z.

    Args:
        temperature: Temperature of the probabilities at the other end of the step.

    References:
        Liu, Dong, Liu, Yu and Gao 2023, Bridging Discrete and Backpropagation: Straight-Through and Beyond, NeurIPS.
    """

    unbiased = False
    latents = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise DomainError(f"the temperature has to be positive, got {temperature}")
        self.temperature = temperature

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        choices = choices_of(q, self)
        z, logits = choices.sample(), choices.logits
        midway = (choices.relaxed(logits, self.temperature) + z).detach() / 2
        mean = choices.mean.detach()
        soft = 2 * choices.covariance_at(midway, logits) - choices.covariance_at(mean, logits) / 2
        return per_example(integrand(straight_through(z, soft)), q)
