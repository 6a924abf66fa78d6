r"""A Gaussian whose mean is linear in z in units of its own standard deviation: the leaf that circuits learn best with.

With :math:`u = Wz + b` and :math:`p(x|z) = N(c + \sigma u, \sigma^2)`, per output,

.. math:: E[\log p(x|z)] = -\tfrac12 \left( \left( \frac{x - c}{\sigma} - E u \right)^2 + \mathrm{Var}\, u \right)
    - \log \sigma - \tfrac12 \log 2\pi,

exactly, for every latent with a mean and a variance. It is :math:`N(Wz + b, \sigma^2)` in other parameters, and
what they change is training. Adam moves every number by about its learning rate. The leaves of a circuit differ in
:math:`\sigma` by factors of hundreds: the black of a digit's background varies by a thousandth, its grey by a third.
Steps that suit the broad leaves then shake the sharp ones by many of their deviations, for every z. The encoder
quiets that by making q narrow, at a KL divergence that tells nothing about x, until z is not used at all. In
units of the deviation, a step moves each leaf by the same part of its own width.

Noise of deviation n around x, independent of z, adds :math:`n^2 / \sigma^2` to the expected square.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.projection import variance_of
from silentgrad.errors import DomainError
from silentgrad.exactness import Exactness
from silentgrad.latents.moments import JointMoments, Moments
from silentgrad.ppca import PrincipalComponents, unexplained_variance

START_SCALE = 1 / 3


class StandardizedGaussian(LinearDecoder):
    """p(x|z) = N(centre + scale (W z + b), scale^2), with a learned scale per output; the centre is set by a start.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        noise: Standard deviation of independent noise around x that is integrated out: `expected_log_prob(x, q)` is
            then the expectation of log p(x + noise|z) over both. For the centre of one of L levels of width 1/L it is
            1 / (L sqrt 12), that of dequantization.

    Example:
        >>> decoder = StandardizedGaussian(2, (28, 28))
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.zeros(5, 28, 28), q).shape
        torch.Size([5])
    """

    centre: Tensor

    def __init__(self, latent_dim: int, event_shape: int | Sequence[int], noise: float = 0.0) -> None:
        super().__init__(latent_dim, event_shape)
        if not 0 <= noise < math.inf:
            raise DomainError(f"noise has to be a standard deviation, got {noise}")
        self.noise = noise
        outputs = self.event_shape.numel()
        self.log_scale = nn.Parameter(torch.full((outputs,), math.log(START_SCALE)))
        self.register_buffer("centre", torch.zeros(outputs))

    @property
    def scale(self) -> Tensor:
        """The standard deviation of each output."""
        return self.log_scale.exp()

    def forward(self, z: Tensor) -> td.Independent:
        mean = self.centre + self.scale * self.affine(self.flatten_latent(z))
        scale = self.scale.expand_as(mean)
        shape = self.event_shape
        leaves = td.Normal(mean.unflatten(-1, shape), scale.unflatten(-1, shape), validate_args=False)
        return td.Independent(leaves, len(shape))

    def extra_repr(self) -> str:
        return f"{self.latent_dim}, {tuple(self.event_shape)}, noise={self.noise}"

    def exactness(self, q: td.Distribution) -> Exactness:
        """Exact; with noise a bound: the expectation over the noise too is less than that at x."""
        if self.noise:
            return Exactness.LOWER_BOUND
        return Exactness.EXACT

    def output_form(self, x: Tensor, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Tensor:
        residual = (x - self.centre) * torch.exp(-self.log_scale) - self.affine(mean)
        variance = variance_of(self.affine, moments, mean)
        squares = torch.addcmul(variance, residual, residual)
        log_volume = self.log_scale + math.log(2 * math.pi) / 2
        if self.noise:
            log_volume = log_volume + self.noise**2 / 2 * torch.exp(-2 * self.log_scale)
        return torch.add(-log_volume, squares, alpha=-0.5)

    def init_from_data(self, data: Tensor, method: str = "ppca", prior: td.Distribution | None = None) -> None:
        """Starts from data like every linear decoder, with the mean at the centre."""
        with torch.no_grad():
            self.affine.weight *= self.scale.unsqueeze(1)  # in the units of x, as the others have them
            super().init_from_data(data, method, prior)
            self.centre.copy_(self.affine.bias)
            self.affine.bias.zero_()
            self.affine.weight /= self.scale.unsqueeze(1)

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        with torch.no_grad():
            self.centre.copy_(means)
            self.log_scale.copy_(variances.log() / 2)
            self.affine.bias.zero_()
            self.affine.weight.copy_(weights / variances.sqrt().unsqueeze(1))

    def start_variance(self, components: PrincipalComponents) -> float:
        variance = unexplained_variance(components, self.latent_dim)
        nn.init.constant_(self.log_scale, math.log(variance) / 2)
        return variance
