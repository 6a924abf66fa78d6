r"""ARM: a sample of bits compared with its mirror image.

With one uniform number u for a bit of logit l, :math:`z = [u > \sigma(-l)]` and :math:`z' = [u < \sigma(l)]` are both
draws of it, and by Stein's identity for the exponential distributions behind u

.. math:: \nabla_l E f = E_u\bigl[(f(z) - f(z'))\,(u - \tfrac12)\bigr],

for all bits at once, with a number u for each. Where z and z' are equal the gradient is 0.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import (
    Estimator,
    Integrand,
    bernoulli_of,
    for_each_latent,
    per_example,
    uniform_like,
    value_with_slope,
)


class Arm(Estimator):
    """Augment-REINFORCE-merge: antithetic pairs of bits, weighted by the noise that drew them.

    Take it to compare with the literature; `DisArm` has the same cost and never more variance.

    References:
        Yin and Zhou 2019, ARM: Augment-REINFORCE-Merge Gradient for Stochastic Binary Networks, ICLR.
    """

    unbiased = True
    latents = (td.Bernoulli,)

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 2

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        logits = bernoulli_of(q, self).logits
        u = uniform_like(logits)
        above = (u > torch.sigmoid(-logits.detach())).to(logits.dtype)
        below = (u < torch.sigmoid(logits.detach())).to(logits.dtype)
        f_above, f_below = per_example(integrand(above), q), per_example(integrand(below), q)
        difference = for_each_latent((f_above - f_below).detach(), logits)
        slope = difference * (u - 0.5).to(logits.dtype)
        return value_with_slope((f_above + f_below) / 2, slope, logits)
