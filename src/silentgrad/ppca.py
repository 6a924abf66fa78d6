r"""Probabilistic PCA, the limit of every fixed-variance linear VAE with Gaussian latents.

Whatever the encoder, :math:`\mathrm{ELBO} \le \log p(x)`, and with :math:`p(x|z) = N(Wz + b, \sigma^2 I)`,
:math:`z \sim N(0, I)` the marginal is :math:`N(b, W W^T + \sigma^2 I)`. On its training data that is largest at the
mean :math:`b` and the leading eigenpairs of the covariance, :math:`W = U (\Lambda - \sigma^2 I)_+^{1/2}`.

References:
    Tipping and Bishop (1999), Probabilistic principal component analysis, JRSS B 61(3).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from silentgrad.errors import DomainError, ShapeError

WIDE = 4096  # outputs beyond which examples may be fewer
_ROWS = 4096  # examples converted to double precision at a time


class PrincipalComponents(NamedTuple):
    """Mean `(outputs,)`, eigenvalues descending `(outputs,)`, eigenvectors in columns; double precision."""

    mean: Tensor
    variances: Tensor
    directions: Tensor


def principal_components(data: Tensor) -> PrincipalComponents:
    """Eigendecomposition of the covariance of `data`, `(examples, *event_shape)`."""
    mean, covariance = _mean_and_covariance(data)
    variances, directions = torch.linalg.eigh(covariance)
    return PrincipalComponents(mean, variances.flip(0).clamp(min=0), directions.flip(1))


def components_of_examples(data: Tensor) -> PrincipalComponents:
    """The principal components, of wide data without the directions in which examples do not vary.

    n examples vary in at most n directions, which the eigenvectors of their n x n matrix of inner products give. The
    covariance of tens of thousands of outputs would not fit into memory.
    """
    outputs = data[0].numel()
    if outputs <= max(WIDE, len(data)):
        return principal_components(data)
    flat = data.flatten(1)
    mean = flat.double().mean(0)
    centred = flat - mean.to(flat)
    products = torch.zeros(len(flat), len(flat), dtype=torch.float64, device=data.device)
    for columns in centred.split(_ROWS, dim=1):
        products.addmm_(columns.double(), columns.double().T)
    variances, vectors = torch.linalg.eigh(products / len(flat))
    variances = variances.flip(0).clamp(min=0)
    scales = (len(flat) * variances).clamp(min=torch.finfo(variances.dtype).tiny).rsqrt()
    directions = centred.T @ (vectors.flip(1) * scales).to(centred)
    return PrincipalComponents(mean, torch.nn.functional.pad(variances, (0, outputs - len(flat))), directions.double())


def ppca_weights(components: PrincipalComponents, latent_dim: int, variance: float | Tensor) -> Tensor:
    """The maximum-likelihood W, `(outputs, latent_dim)`, for a fixed noise variance."""
    excess = (components.variances[:latent_dim] - variance).clamp(min=0)
    weights = components.directions[:, :latent_dim] * excess.sqrt()
    return torch.nn.functional.pad(weights, (0, latent_dim - weights.shape[1]))


def unexplained_variance(components: PrincipalComponents, latent_dim: int) -> float:
    """The most likely noise variance: the mean over the components left out. At least a hundredth of all components'
    mean, and what the levels of an 8-bit image have in themselves.

    With nearly as many latents as outputs hardly anything is left, and a precision started at its inverse would bind an
    encoder that does not yet give those latents.
    """
    left = float(components.variances[latent_dim:].mean().nan_to_num())
    return max(left, 0.01 * float(components.variances.mean()), 1 / 12 / 256**2)


def ppca_bound(data: Tensor, latent_dim: int, variance: float, test: Tensor | None = None) -> float:
    """Nats per example that no fixed-variance linear decoder with Gaussian latents can exceed on `data`.

    Args:
        data: Training examples `(examples, *event_shape)`, as the model sees them (dequantized, say).
        latent_dim: Number of latents.
        variance: The decoder's fixed output variance.
        test: Score these examples under the model fitted to `data`, instead of `data` itself.

    Example:
        >>> data = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)).mul(torch.tensor([2.0, 1.0, 0.1]))
        >>> -4.0 < ppca_bound(data, latent_dim=2, variance=0.01) < -2.5
        True
    """
    if not variance > 0:
        raise DomainError(f"variance has to be positive, got {variance}")
    if latent_dim < 1:
        raise DomainError(f"latent_dim has to be positive, got {latent_dim}")
    components = principal_components(data)
    if test is None:
        test = data
    mean, covariance = _mean_and_covariance(test)
    if mean.shape != components.mean.shape:
        raise ShapeError(f"test examples have {mean.numel()} outputs, training examples {components.mean.numel()}")
    spectrum = torch.full_like(components.variances, variance)
    spectrum[:latent_dim] = components.variances[:latent_dim].clamp(min=variance)
    scatter = covariance + torch.outer(mean - components.mean, mean - components.mean)
    spread = (components.directions * (scatter @ components.directions)).sum(0)  # along each eigenvector
    return float(-0.5 * (math.log(2 * math.pi) + spectrum.log() + spread / spectrum).sum())


def _mean_and_covariance(data: Tensor) -> tuple[Tensor, Tensor]:
    if data.dim() < 2 or len(data) == 0:
        raise ShapeError(f"expected data of shape (examples, *event_shape), got {tuple(data.shape)}")
    flat = data.flatten(1)
    mean = torch.stack([rows.double().sum(0) for rows in flat.split(_ROWS)]).sum(0) / len(flat)
    if not mean.isfinite().all():
        raise DomainError("data contains NaN or infinity")
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=data.device)
    for rows in flat.split(_ROWS):
        centred = rows.double() - mean
        covariance.addmm_(centred.T, centred)
    return mean, covariance / len(flat)
