r"""I-MLE: the likeliest z of noisy logits, compared with that of logits moved along the integrand's slope.

With noise :math:`\epsilon` and :math:`z(\theta) = \mathrm{argmax}_z\, z \cdot (\theta + \epsilon)` a draw of z, the
gradient of a concave target is approached by that of the marginals towards :math:`\theta' = \theta + \lambda f'(z)`,
and both marginals by one sample of the same noise:

.. math:: \nabla_\theta \approx \frac{1}{\lambda} \bigl(\mu(\theta') - \mu(\theta)\bigr)
          \approx \frac{1}{\lambda} \bigl(z(\theta') - z(\theta)\bigr).

For one-hot categories the noise is Gumbel's and for bits logistic, and z is a draw of q. For subsets of k it is a sum
of Gamma variables, of which k add up to a Gumbel variable: every subset then has Gumbel noise, but not independently of
the others, and the draws are more certain than those of q. The value is that of these draws.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Estimator, Integrand
from silentgrad.estimators.choices import choices_of
from silentgrad.estimators.lazy import mean_with_gradient
from silentgrad.latents.independent import base_of
from silentgrad.latents.subsets import KSubset

GAMMA_TERMS = 10  # of the series of Gamma variables, as the authors take them


class Perturbed(Protocol):
    """Latents that are drawn by noise on their logits."""

    logits: Tensor

    def noisy(self) -> Tensor:
        """Logits and noise."""

    def hard(self, noisy: Tensor) -> Tensor:
        """The z that noisy logits stand for."""


class Imle(Estimator):
    """Implicit maximum likelihood: a finite difference between likeliest values, along the integrand's slope. Biased.

    Take it for subsets and other latents whose likeliest value is easy to find and whose marginals are not.

    Args:
        step: Length lambda of the step along the slope.

    References:
        Niepert, Minervini and Franceschi 2021, Implicit MLE: Backpropagating Through Discrete Exponential Family
        Distributions, NeurIPS.
    """

    unbiased = False
    latents = (td.Bernoulli, td.OneHotCategorical, KSubset)

    def __init__(self, step: float = 1.0) -> None:
        super().__init__()
        if not step > 0:
            raise DomainError(f"the step has to be positive, got {step}")
        self.step = step

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        latents = self._perturbed(q)
        noisy = latents.noisy().detach()
        z = latents.hard(noisy)

        def towards_target(_: Tensor, slopes: Tensor) -> Tensor:
            return (latents.hard(noisy + self.step * slopes[0]) - z) / self.step

        return mean_with_gradient(integrand, q, z.unsqueeze(0), latents.logits, towards_target)

    def _perturbed(self, q: td.Distribution) -> Perturbed:
        base = base_of(q)
        if isinstance(base, KSubset):
            return Subsets(base)
        return choices_of(q, self)


class Subsets:
    """Subsets as the k largest of noisy logits.

    Args:
        q: The subsets.
    """

    def __init__(self, q: KSubset) -> None:
        self.logits, self.k = q.logits, q.k

    def noisy(self) -> Tensor:
        """With sums of Gamma variables: k of them add up to a Gumbel variable as their series gets longer."""
        shape = torch.full_like(self.logits, 1 / self.k)
        noise = torch.zeros_like(self.logits)
        for term in range(1, GAMMA_TERMS + 1):
            noise = noise + td.Gamma(shape, term / self.k, validate_args=False).sample()
        return self.logits + (noise - torch.log(torch.tensor(float(GAMMA_TERMS)))) / self.k

    def hard(self, noisy: Tensor) -> Tensor:
        return torch.zeros_like(noisy).scatter(-1, noisy.topk(self.k).indices, 1.0)
