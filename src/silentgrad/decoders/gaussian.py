r"""A linear decoder with fixed variance, exact for every latent with a mean and a variance.

With :math:`u = Wz + b` and per-output variances :math:`\sigma_p^2`,

.. math::
    E[\log p(x|z)] = -\tfrac12 \sum_p \left( \frac{(x_p - E u_p)^2 + \mathrm{Var}\, u_p}{\sigma_p^2}
    + \log 2 \pi \sigma_p^2 \right).

Summed over outputs the variance is :math:`\mathrm{tr}(\Sigma\, W^T \mathrm{diag}(\sigma^{-2}) W)`: for independent
latents, column norms of W. The squared residual stays a square: expanded, it cancels in single precision.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.decoders.linear import LinearDecoder
from silentgrad.errors import DomainError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.latents.moments import JointMoments, Moments
from silentgrad.ppca import PrincipalComponents


class LinearGaussian(LinearDecoder):
    """p(x|z) = N(W z + b, variance), with a fixed variance.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        variance: One positive number, or one per output in the shape of an example. Its digits are kept in double
            precision: `decoder.half().double()` has the variance that was given.

    Example:
        >>> decoder = LinearGaussian(2, (28, 28), variance=0.01)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.zeros(5, 28, 28), q).shape
        torch.Size([5])
    """

    variance: Tensor

    def __init__(self, latent_dim: int, event_shape: int | Sequence[int], variance: float | Tensor = 0.01) -> None:
        super().__init__(latent_dim, event_shape)
        self._given = self._validated(variance)
        self.register_buffer("variance", self._given.to(self.affine.weight))

    def set_variance(self, variance: float | Tensor) -> None:
        """Changes the variance, as a schedule does during training."""
        given = self._validated(variance)
        if given.dim() > self.variance.dim():
            raise ShapeError("the decoder was built with one variance for all outputs, got one per output")
        self._given = given.expand(self.variance.shape).clone()
        self.variance.copy_(self._given)

    def forward(self, z: Tensor) -> td.Independent:
        mean = self.affine(self.flatten_latent(z)).unflatten(-1, self.event_shape)
        return td.Independent(td.Normal(mean, self.variance.sqrt()), len(self.event_shape))

    def exactness(self, q: td.Distribution) -> Exactness:
        return Exactness.EXACT

    def closed_form(self, x: Tensor, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Tensor:
        residual = self.affine(mean) - x  # in this order, the backward pass need not change a sign
        squares = self._over_variance(residual.square()) + self._projected_variance(moments, mean)
        log_volume = (2 * math.pi * self.variance).log().mean() * x.shape[-1]
        return -0.5 * (squares + log_volume)

    def _over_variance(self, outputs: Tensor) -> Tensor:
        """The sum over outputs, each divided by its variance; one variance for all divides the sum."""
        if self.variance.dim() == 0:
            return outputs.sum(-1) / self.variance
        return (outputs / self.variance.flatten()).sum(-1)

    def _projected_variance(self, moments: Moments | JointMoments, mean: Tensor) -> Tensor:
        """The sum over outputs of Var(u) / variance."""
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
        value = torch.as_tensor(variance, dtype=torch.float64, device="cpu").detach()
        if value.dim() > 0 and value.shape != self.event_shape:
            shapes = f"{tuple(value.shape)}, expected one number or {tuple(self.event_shape)}"
            raise ShapeError(f"variance has shape {shapes}")
        used = value.to(self.affine.weight.dtype)
        if not (used > 0).all() or not used.isfinite().all():
            raise DomainError(f"variance has to be positive and finite, got {value.min():g} at the least")
        return value.clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves or casts the module; the variance is cast from what was given, not from what an earlier cast left."""
        before, given = self.variance, self._digits()
        super()._apply(fn, recurse)
        if self.variance is not before:
            self.variance.copy_(given)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        loaded = state_dict.get(f"{prefix}variance")
        if loaded is not None and loaded.shape == self.variance.shape and loaded.dtype == torch.float64:
            self._given = loaded.detach().cpu().clone()

    def _digits(self) -> Tensor:
        """The variance in double precision: as it was given, unless something else was written into the buffer."""
        if not self.variance.is_meta and not torch.equal(self._given.to(self.variance), self.variance):
            self._given = self.variance.detach().double().cpu()
        return self._given
