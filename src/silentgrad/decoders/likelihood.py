r"""A linear decoder with any likelihood of one linear parameter u = W z + b per output.

For Gaussian latents u is Gaussian, with :math:`E u = W m + b` and :math:`\mathrm{Var}\, u = W^2 s_2`, and
:func:`silentgrad.expected_log_prob` integrates over it. Two likelihoods need less than all of u's distribution and so
take other latents too: the Normal one its mean and variance, the Poisson one :math:`E u` and :math:`\log E[e^u]`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import linear

from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.projection import project
from silentgrad.decoders.tilting import tilt
from silentgrad.errors import IntractableError
from silentgrad.latents.independent import base_of
from silentgrad.latents.moments import JointMoments, Moments
from silentgrad.likelihoods import LocationScale, Normal, Poisson, expected_log_prob
from silentgrad.ppca import PrincipalComponents, unexplained_variance


class LinearLikelihood(LinearDecoder):
    """p(x|z) = likelihood(W z + b).

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        likelihood: From u to the distribution of x, elementwise: of `silentgrad.likelihoods`, or any callable.
        nodes: Of the quadrature, for a likelihood without a closed form.

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
        likelihood: Callable[[Tensor], td.Distribution],
        nodes: int = 32,
    ) -> None:
        super().__init__(latent_dim, event_shape)
        self.likelihood = likelihood
        self.nodes = nodes

    def forward(self, z: Tensor) -> td.Independent:
        u = self.mean(self.flatten_latent(z)).unflatten(-1, self.event_shape)
        return td.Independent(self.likelihood(u), len(self.event_shape))

    def init_from_data(self, data: Tensor, method: str = "ppca", prior: td.Distribution | None = None) -> None:
        """Starts from data like every linear decoder; where u is not the mean of x, to first order in z."""
        link = getattr(self.likelihood, "link", None)
        if link is None:
            raise IntractableError(
                "a start from data needs the likelihood's `link`, from the mean of x to u and its derivative, as those "
                "of silentgrad.likelihoods have it; or set decoder.mean yourself"
            )
        super().init_from_data(data, method, prior)
        with torch.no_grad():
            u, slope = link(self.mean.bias + self.shift(prior))
            if method == "ppca":
                self.mean.weight.mul_(slope.unsqueeze(-1))
            self.mean.bias.copy_(u - self.shift(prior))

    def closed_form(self, x: Tensor, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Tensor:
        if isinstance(self.likelihood, Poisson) and not moments.gaussian:
            tilted = tilt(q, moments, mean, self.mean, self.mean)
            return self.likelihood.expectation(x, tilted.exponent, tilted.log_mass).sum(-1)
        if not moments.gaussian and not isinstance(self.likelihood, Normal):
            raise IntractableError(_not_gaussian(q))
        flat = x, self.mean(mean), self._variance(moments, mean)
        x, mean_u, var_u = (t.unflatten(-1, self.event_shape) for t in flat)
        outputs = expected_log_prob(self.likelihood, x, mean_u, var_u, self.nodes)
        return outputs.flatten(mean.dim() - 1).sum(-1)

    def _variance(self, moments: Moments | JointMoments, mean: Tensor) -> Tensor:
        if isinstance(moments, JointMoments):
            return project(moments, mean, self.mean, self.mean).var_u
        return linear(moments.s2.reshape(mean.shape), self.mean.weight.square())

    def start_variance(self, components: PrincipalComponents) -> float:
        variance = unexplained_variance(components, self.latent_dim)
        if isinstance(self.likelihood, LocationScale):
            self.likelihood.start(variance)
        return variance


def _not_gaussian(q: td.Distribution) -> str:
    name = type(base_of(q)).__name__
    return (
        f"u = Wz + b is not Gaussian for {name} latents, so this likelihood's expectation is not an "
        "integral over one number: use Gaussian latents, the Normal or the Poisson likelihood, or LinearGaussian"
    )
