r"""Sticking the landing: the ELBO's gradient without its score, which has mean 0 and only adds variance.

.. math:: \nabla_\phi\, \mathrm{ELBO} = E\Bigl[
          \frac{\partial}{\partial z} \bigl(\log p(x|z) + \log p(z) - \log q(z|x)\bigr) \frac{d z}{d \phi}\Bigr],

for a reparameterized z, with :math:`\log q` differentiated in z only. Where q is the posterior the bracket is constant
and the gradient has no variance. The divergence that an objective subtracts is added here, as `bounds` says.
"""

from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import Integrand, joint_log_prob, per_example
from silentgrad.estimators.bounds import divergence, held, prior_log_prob
from silentgrad.estimators.pathwise import Reparameterized, reparameterized_sample


class Stl(Reparameterized):
    """Reparameterization whose variance vanishes as q comes close to the posterior.

    Take it for continuous latents and a q that can fit the posterior well.

    References:
        Roeder, Wu and Duvenaud 2017, Sticking the Landing: Simple, Lower-Variance Gradient Estimators for Variational
        Inference, NeurIPS.
    """

    uses_prior = True

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        z = reparameterized_sample(q)
        f = per_example(integrand(z), q)
        log_prior = prior_log_prob(q, integrand, z, f.shape)
        elbo = f + log_prior - joint_log_prob(held(q), z, f.shape)
        return elbo + divergence(q, integrand, f.shape)
