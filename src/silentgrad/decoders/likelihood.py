r"""A linear decoder with any likelihood of one linear parameter u = W z + b per output.

For Gaussian latents u is Gaussian, with :math:`E u = W m + b` and :math:`\mathrm{Var}\, u = W^2 s_2`, and
:func:`silentgrad.expected_log_prob` integrates over it. A likelihood that declares to need less than all of u's
distribution takes other latents too: the mean and variance of u, or :math:`E u` and :math:`\log E[e^u]`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import linear

from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.projection import project
from silentgrad.decoders.tilting import tilt
from silentgrad.errors import IntractableError
from silentgrad.exactness import Exactness
from silentgrad.latents.independent import base_of
from silentgrad.latents.moments import JointMoments, Moments
from silentgrad.likelihoods import LocationScale, Needs, exactness_of, expected_log_prob, needs_of
from silentgrad.likelihoods.base import Likelihood, from_generating_function
from silentgrad.ppca import PrincipalComponents, unexplained_variance


class LinearLikelihood(LinearDecoder):
    """p(x|z) = likelihood(W z + b).

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        likelihood: From u to the distribution of x, elementwise: of `silentgrad.likelihoods`, or any callable.
        nodes: Number of nodes of the quadrature, for a likelihood without a rule of its own.

    Example:
        >>> from silentgrad.likelihoods import Bernoulli
        >>> decoder = LinearLikelihood(2, (28, 28), Bernoulli())
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.ones(5, 28, 28), q).shape
        torch.Size([5])
    """

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        likelihood: Likelihood,
        nodes: int = 32,
    ) -> None:
        super().__init__(latent_dim, event_shape)
        self.likelihood = likelihood
        self.nodes = nodes

    def forward(self, z: Tensor) -> td.Independent:
        u = self.affine(self.flatten_latent(z)).unflatten(-1, self.event_shape)
        return td.Independent(self.likelihood(u), len(self.event_shape))

    def init_from_data(self, data: Tensor, method: str = "ppca", prior: td.Distribution | None = None) -> None:
        """Starts from data like every linear decoder; where u is not the mean of x, to first order in z."""
        u_at_mean = getattr(self.likelihood, "u_at_mean", None)
        if u_at_mean is None:
            raise IntractableError(
                "a start from data needs the likelihood's `u_at_mean`, from the mean of x to u and its derivative, as those "
                "of silentgrad.likelihoods have it; or set decoder.affine yourself"
            )
        super().init_from_data(data, method, prior)
        with torch.no_grad():
            u, slope = u_at_mean(self.affine.bias + self.shift(prior))
            if method == "ppca":
                self.affine.weight.mul_(slope.unsqueeze(-1))
            self.affine.bias.copy_(u - self.shift(prior))

    def closed_form(self, x: Tensor, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Tensor:
        if not moments.gaussian and self._needs_beyond_gaussian(q) is Needs.GENERATING_FUNCTION:
            tilted = tilt(q, moments, mean, self.affine, self.affine)
            known = self._unflattened(x, tilted.exponent, tilted.log_mass)
            outputs = from_generating_function(self.likelihood, *known)
        else:
            known = self._unflattened(x, self.affine(mean), self._variance(moments, mean))
            outputs = expected_log_prob(self.likelihood, *known, self.nodes)
        return outputs.flatten(mean.dim() - 1).sum(-1)

    def _unflattened(self, x: Tensor, of_u: Tensor, more_of_u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All in the shape of an example, that of the parameters a likelihood may have for each output."""
        shape = self.event_shape
        return x.unflatten(-1, shape), of_u.unflatten(-1, shape), more_of_u.unflatten(-1, shape)

    def exactness(self, q: td.Distribution) -> Exactness:
        """What the likelihood declares: plain quadrature is an approximation, those of `silentgrad.likelihoods` not."""
        return exactness_of(self.likelihood)

    def _needs_beyond_gaussian(self, q: td.Distribution) -> Needs:
        """What the likelihood needs of a u that is not Gaussian; an error if it has to be."""
        needs = needs_of(self.likelihood)
        if needs is Needs.GAUSSIAN:
            raise IntractableError(_not_gaussian(q))
        return needs

    def _variance(self, moments: Moments | JointMoments, mean: Tensor) -> Tensor:
        if isinstance(moments, JointMoments):
            return project(moments, mean, self.affine, self.affine).var_u
        return linear(moments.s2.reshape(mean.shape), self.affine.weight.square())

    def start_variance(self, components: PrincipalComponents) -> float:
        variance = unexplained_variance(components, self.latent_dim)
        if isinstance(self.likelihood, LocationScale):
            self.likelihood.start(variance)
        return variance


def _not_gaussian(q: td.Distribution) -> str:
    name = type(base_of(q)).__name__
    return (
        f"u = Wz + b is not Gaussian for {name} latents, so this likelihood's expectation is not an "
        "integral over one number: use Gaussian latents, a likelihood whose `needs` are less, as those of Normal and "
        "Poisson, or LinearGaussian"
    )
