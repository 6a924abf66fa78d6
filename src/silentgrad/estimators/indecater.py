r"""IndeCateR: the sum over the values of each latent, all others sampled.

For independent latents the gradient in the parameters of one is a sum over its values alone,

.. math:: \nabla_{l_i} E f = \mathrm{Cov}(z_i)\, F_i, \qquad
          F_{iv} = E_{z_{\ne i}}\bigl[f(z_1, \ldots, z_i = v, \ldots)\bigr],

and the others may be one sample, the same for all i. So every latent is set in turn to each of its other values, while
the rest of the sample stays (the CatLog-derivative trick; for bits the local expectation gradients of Titsias and
Lázaro-Gredilla 2015). A function that is additive over the latents has no variance.
"""

import itertools

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import Estimator, Integrand, for_each_latent, per_example, value_with_slope
from silentgrad.estimators.choices import Choices, choices_of


class IndeCateR(Estimator):
    """All values of each latent in turn, the others sampled.

    Take it for few latents and little variance: its cost grows with their number.

    References:
        De Smet, Sansone and Zuidberg Dos Martires 2023, Differentiable Sampling of Categorical Distributions Using the
        CatLog-Derivative Trick, NeurIPS.
    """

    unbiased = True
    latents = (td.Bernoulli, td.OneHotCategorical)

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 1 + latents * (values - 1)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        choices = choices_of(q, self)
        z = choices.sample()
        f = per_example(integrand(z), q)
        categories = choices.one_hots()
        differences = self._differences(f, choices, z, integrand)
        gradient = choices.from_one_hots(categories.covariance_times(differences))
        return value_with_slope(f, gradient, choices.logits)

    @torch.no_grad()
    def _differences(self, f: Tensor, choices: Choices, z: Tensor, integrand: Integrand) -> Tensor:
        """f with each latent at each of its values, minus f at the sample: 0 at the sample's own values."""
        whole = choices.to_one_hots(z)
        values = whole.shape[-1]
        latents = whole.shape[f.dim() : -1].numel()
        rows = whole.reshape(*f.shape, latents, values)
        differences = torch.zeros_like(rows)
        for i, steps in itertools.product(range(latents), range(1, values)):
            moved = rows.clone()
            moved[..., i, :] = rows[..., i, :].roll(steps, -1)
            change = integrand(choices.from_one_hots(moved.reshape(whole.shape))) - f
            differences[..., i, :] += for_each_latent(change, moved[..., i, :]) * moved[..., i, :]
        return differences.reshape(whole.shape)
