r"""SIMPLE: the exact marginals of a subset as the gradient of its sample.

A subset of k out of n is sampled, and the gradient is passed to the marginals :math:`\mu = E z`, which
:class:`~silentgrad.KSubset` knows exactly:

.. math:: \nabla_\theta \approx \Bigl(\frac{\partial \mu}{\partial \theta}\Bigr)^T f'(z) = \mathrm{Cov}(z)\, f'(z).

For bits and one-hot categories it is the straight-through estimator.
"""

from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import Estimator, Integrand, per_example, straight_through, unsuitable
from silentgrad.latents.independent import base_of
from silentgrad.latents.subsets import KSubset


class Simple(Estimator):
    """Samples a subset exactly and passes its gradient to its exact marginals. Biased.

    Take it for subsets of k; for bits and categories `ReinMax` usually has a smaller bias.

    References:
        Ahmed, Zeng, Niepert and Van den Broeck 2023, SIMPLE: A Gradient Estimator for k-Subset Sampling, ICLR.
    """

    unbiased = False
    latents = (td.Bernoulli, td.OneHotCategorical, KSubset)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        base = base_of(q)
        if not isinstance(base, self.latents):
            raise unsuitable(base, self)
        return per_example(integrand(straight_through(base.sample(), base.mean)), q)
