r"""Estimators for subsets of k out of n, which take bits and one-hot categories too.

**SIMPLE** passes the gradient of a sample to its exact marginals. A subset of k out of n is sampled, and the gradient
is passed to the marginals :math:`\mu = E z`, which :class:`~silentgrad.KSubset` knows exactly:

.. math:: \nabla_\theta \approx \Bigl(\frac{\partial \mu}{\partial \theta}\Bigr)^T f'(z) = \mathrm{Cov}(z)\, f'(z).

For bits and one-hot categories it is the straight-through estimator.

**I-MLE** compares the likeliest z of noisy logits with that of logits moved along the integrand's slope. With noise
:math:`\epsilon` and :math:`z(\theta) = \mathrm{argmax}_z\, z \cdot (\theta + \epsilon)` a draw of z, the gradient of a
concave target is approached by that of the marginals towards :math:`\theta' = \theta + \lambda f'(z)`, and both
marginals by one sample of the same noise:

.. math:: \nabla_\theta \approx \frac{1}{\lambda} \bigl(\mu(\theta') - \mu(\theta)\bigr)
          \approx \frac{1}{\lambda} \bigl(z(\theta') - z(\theta)\bigr).

For one-hot categories the noise is Gumbel's and for bits logistic, and z is a draw of q. For subsets of k it is a sum
of Gamma variables, of which k add up to a Gumbel variable: every subset then has Gumbel noise, but not independently of
the others, and the draws are more certain than those of q. The value is that of these draws.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import ESTIMATORS, Estimator, Integrand, latents_of, per_example, straight_through
from silentgrad.estimators.choices import choices_of
from silentgrad.estimators.slopes import mean_with_gradient
from silentgrad.latents.independent import base_of
from silentgrad.latents.subsets import KSubset
from silentgrad.tracing import require_untransformed, widened


@ESTIMATORS.register("simple")
class SIMPLE(Estimator):
    """Samples a subset exactly and passes its gradient to its exact marginals. Biased.

    Take it for subsets of k; for bits and categories `ReinMax` usually has a smaller bias.

    References:
        Ahmed, Zeng, Niepert and Van den Broeck 2023, SIMPLE: A Gradient Estimator for k-Subset Sampling, ICLR.
    """

    latents: ClassVar[tuple[type[td.Distribution], ...]] = (td.Bernoulli, td.OneHotCategorical, KSubset)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        base = latents_of(q, self, self.latents)
        return per_example(integrand(straight_through(base.sample(), base.mean)), q)


GAMMA_TERMS = 10  # of the series of Gamma variables, as the authors take them


@ESTIMATORS.register("imle")
class IMLE(Estimator):
    """Implicit maximum likelihood: a finite difference between likeliest values, along the integrand's slope. Biased.

    Take it for subsets and other latents whose likeliest value is easy to find and whose marginals are not.

    Args:
        step: Length lambda of the step along the slope.

    References:
        Niepert, Minervini and Franceschi 2021, Implicit MLE: Backpropagating Through Discrete Exponential Family
        Distributions, NeurIPS.
    """

    latents = (td.Bernoulli, td.OneHotCategorical, KSubset)

    def __init__(self, step: float = 1.0) -> None:
        super().__init__()
        if not step > 0:
            raise DomainError(f"the step has to be positive, got {step}")
        self.step = step

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        require_untransformed(type(self).__name__)
        base = base_of(q)
        latents = Subsets(base) if isinstance(base, KSubset) else choices_of(q, self)
        noisy = latents.noisy().detach()
        z = latents.hard(noisy)

        def towards_target(_: Tensor, slopes: Tensor) -> Tensor:
            return (latents.hard(noisy + self.step * slopes[0]) - z) / self.step

        return mean_with_gradient(integrand, q, z.unsqueeze(0), latents.logits, towards_target)


class Subsets:
    """Subsets as the k largest of noisy logits.

    Args:
        q: The subsets.
    """

    def __init__(self, q: KSubset) -> None:
        self.logits, self.k = q.logits, q.k

    def noisy(self) -> Tensor:
        """Add sums of Gamma variables: k of them add up to a Gumbel variable as their series gets longer."""
        logits = widened(self.logits)  # Gamma variables are not drawn in half precision
        shape, noise = torch.full_like(logits, 1 / self.k), torch.zeros_like(logits)
        for term in range(1, GAMMA_TERMS + 1):
            noise = noise + td.Gamma(shape, term / self.k, validate_args=False).sample()
        return logits + (noise - math.log(GAMMA_TERMS)) / self.k

    def hard(self, noisy: Tensor) -> Tensor:
        """Return the subset that noisy logits stand for."""
        return torch.zeros_like(noisy).scatter(-1, noisy.topk(self.k).indices, 1.0)
