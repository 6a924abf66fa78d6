r"""Linear decoders of a Gaussian whose variance does not depend on z, exact for every latent with mean and variance.

**Of fixed variance**, with :math:`u = Wz + b` and per-output variances :math:`\sigma_p^2`,

.. math::
    E[\log p(x|z)] = -\tfrac12 \sum_p \left( \frac{(x_p - E u_p)^2 + \mathrm{Var}\, u_p}{\sigma_p^2}
    + \log 2 \pi \sigma_p^2 \right).

Summed over outputs the variance is :math:`\mathrm{tr}(\Sigma\, W^T \mathrm{diag}(\sigma^{-2}) W)`: for independent
latents, column norms of W. The squared residual stays a square: expanded, it cancels in single precision.

**In units of its own scale**, see :mod:`silentgrad.decoders.standardized`, with :math:`p(x|z) = N(c + s u, s^2)`,

.. math:: E[\log p(x|z)] = -\tfrac12 \left( \left( \frac{x - c}{s} - E u \right)^2 + \mathrm{Var}\, u \right)
    - \log s - \tfrac12 \log 2\pi,

exactly, for every latent with a mean and a variance. Noise of deviation n around x, independent of z, adds
:math:`n^2 / s^2` to the expected square.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.decoders.context import Context
from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.projection import variance_of
from silentgrad.decoders.standardized import StandardizedDecoder
from silentgrad.errors import DomainError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.latents.moments import AnyMoments, Moments
from silentgrad.ppca import PrincipalComponents


class LinearGaussian(LinearDecoder):
    """p(x|z) = N(W z + b, variance), with a fixed variance.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        variance: One positive number, or one per output in the shape of an example.

    Example:
        >>> decoder = LinearGaussian(2, (28, 28), variance=0.01)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.zeros(5, 28, 28), q).shape
        torch.Size([5])
    """

    variance: Tensor

    def __init__(self, latent_dim: int, event_shape: int | Sequence[int], variance: float | Tensor = 0.01) -> None:
        super().__init__(latent_dim, event_shape)
        self.register_buffer("variance", self._validated(variance))

    def set_variance(self, variance: float | Tensor) -> None:
        """Change the variance, as a schedule does during training."""
        given = self._validated(variance)
        if given.dim() > self.variance.dim():
            raise ShapeError("the decoder was built with one variance for all outputs, got one per output")
        self.variance.copy_(given)

    def forward(self, z: Tensor) -> td.Independent:
        mean = self.affine(self.flatten_latent(z)).unflatten(-1, self.event_shape)
        return td.Independent(td.Normal(mean, self.variance.sqrt()), len(self.event_shape))

    def exactness(self, q: td.Distribution) -> Exactness:
        return Exactness.EXACT

    def closed_form(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
        residual = self.affine(mean) - x  # in this order, the backward pass need not change a sign
        squares = self._over_variance(residual.square()) + self._projected_variance(moments, mean)
        log_volume = (2 * math.pi * self.variance).log().mean() * x.shape[-1]
        return -0.5 * (squares + log_volume)

    def output_form(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
        squares = (self.affine(mean) - x).square() + variance_of(self.affine, moments, mean)
        variance = self.variance.expand(self.event_shape).flatten()
        return -0.5 * (squares / variance + (2 * math.pi * variance).log())

    def _over_variance(self, outputs: Tensor) -> Tensor:
        """Return the sum over outputs, each divided by its variance; one variance for all divides the sum."""
        if self.variance.dim() == 0:
            return outputs.sum(-1) / self.variance
        return (outputs / self.variance.flatten()).sum(-1)

    def _projected_variance(self, moments: AnyMoments, mean: Tensor) -> Tensor:
        """Return the sum over outputs of Var(u) / variance."""
        weight = self.affine.weight
        if isinstance(moments, Moments):
            return moments.s2.reshape(mean.shape) @ self._over_variance(weight.square().T)
        size = moments.covariance.shape[-1]
        blocks = weight.T.unflatten(0, (-1, size))
        gram = blocks / self.variance.reshape(1, -1) @ blocks.transpose(-1, -2)
        return (moments.covariance.reshape(*mean.shape[:-1], len(gram), size, size) * gram).sum((-1, -2, -3))

    def start_variance(self, components: PrincipalComponents) -> float:
        return float(self.variance.mean())

    def _validated(self, variance: float | Tensor) -> Tensor:
        value = torch.as_tensor(variance, dtype=torch.float64).detach().to(self.affine.weight, copy=True)
        if value.dim() > 0 and value.shape != self.event_shape:
            shapes = f"{tuple(value.shape)}, expected one number or {tuple(self.event_shape)}"
            raise ShapeError(f"variance has shape {shapes}")
        if not (value > 0).all() or not value.isfinite().all():
            raise DomainError(f"variance has to be positive and finite, got {value.min():g} at the least")
        return value


class StandardizedGaussian(StandardizedDecoder):
    """p(x|z) = N(center + scale (W z + b), scale^2), with a learned scale per output; the center is set by a start.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        context: As for every `StandardizedDecoder`.
        noise: Standard deviation of independent noise around x that is integrated out: `expected_log_prob(x, q)` is
            then the expectation of log p(x + noise|z) over both. For the center of one of L levels of width 1/L it is
            1 / (L sqrt 12), that of dequantization.

    Example:
        >>> decoder = StandardizedGaussian(2, (28, 28))
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.zeros(5, 28, 28), q).shape
        torch.Size([5])
    """

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        noise: float = 0.0,
        context: Context | None = None,
    ) -> None:
        super().__init__(latent_dim, event_shape, context)
        if not 0 <= noise < math.inf:
            raise DomainError(f"noise has to be a standard deviation, got {noise}")
        self.noise = noise

    def outputs(self, location: Tensor, scale: Tensor) -> td.Distribution:
        return td.Normal(location, scale, validate_args=False)

    def extra_repr(self) -> str:
        return f"{self.latent_dim}, {tuple(self.event_shape)}, noise={self.noise}"

    def exactness(self, q: td.Distribution) -> Exactness:
        """Exact; with noise a bound: the expectation over the noise too is less than that at x."""
        if self.noise:
            return Exactness.LOWER_BOUND
        return Exactness.EXACT

    def output_form(
        self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution, features: Tensor | None = None
    ) -> Tensor:
        center, log_scale = self.in_context(features)
        residual = self.against(x, center) * torch.exp(-log_scale) - self.affine(mean)
        variance = variance_of(self.affine, moments, mean)
        squares = torch.addcmul(variance, residual, residual)
        log_volume = log_scale + math.log(2 * math.pi) / 2
        if self.noise:
            log_volume = log_volume + self.noise**2 / 2 * torch.exp(-2 * log_scale)
        return torch.add(-log_volume, squares, alpha=-0.5)
