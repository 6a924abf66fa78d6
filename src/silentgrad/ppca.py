r"""Probabilistic PCA, the limit of every fixed-variance linear VAE with Gaussian latents on the data it is fitted to.

Whatever the encoder, :math:`\mathrm{ELBO} \le \log p(x)`, and with :math:`p(x|z) = N(Wz + b, \sigma^2 I)`,
:math:`z \sim N(0, I)` the marginal is :math:`N(b, W W^T + \sigma^2 I)`. On any data that is largest at their mean
:math:`b` and the leading eigenpairs of their covariance, :math:`W = U (\Lambda - \sigma^2 I)_+^{1/2}`. Fitted to other
data it is no limit: a model can be better on a test than pPCA of the training data.

References:
    Tipping and Bishop (1999), Probabilistic principal component analysis, JRSS B 61(3).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError, ShapeError

_ROWS = 4096  # examples converted to double precision at a time
_WIDE = 4096  # outputs whose covariance, and its eigenvectors, are still found whole
_MORE, _TURNS = 10, 5  # of the subspace iteration: directions beyond those wanted, and products with the covariance


class PrincipalComponents(NamedTuple):
    """Mean `(outputs,)`, eigenvalues descending `(outputs,)`, eigenvectors in columns; double precision."""

    mean: Tensor
    variances: Tensor
    directions: Tensor


def leading_components(data: Tensor, count: int) -> PrincipalComponents:
    """Return the components of largest variance of `data`, `(examples, *event_shape)`; all of them unless it is wide.

    Of data with many outputs only `count` directions are found, by subspace iteration; the variances beyond are all
    their mean.
    """
    if data.dim() < 2 or data.shape[1:].numel() <= _WIDE:
        return principal_components(data)
    flat = data.flatten(1)
    mean = _mean(flat)
    total = torch.stack([(rows.double() - mean).square().sum() for rows in flat.split(_ROWS)]).sum() / len(flat)
    outputs = len(mean)
    kept = min(count, len(flat), outputs)
    # The same numbers everywhere. Directions whose variances hardly differ are found up to their mixture.
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(outputs, min(outputs, kept + _MORE), dtype=torch.float64, generator=generator)
    basis = torch.linalg.qr(start.to(flat.device)).Q
    for _ in range(_TURNS):
        basis = torch.linalg.qr(_times_covariance(flat, mean, basis)).Q
    variances, turns = torch.linalg.eigh(basis.T @ _times_covariance(flat, mean, basis))
    variances = variances.flip(0)[:kept].clamp(min=0)
    left = (total - variances.sum()).clamp(min=0) / max(1, outputs - kept)
    spectrum = torch.cat([variances, left.expand(outputs - kept)])
    return PrincipalComponents(mean, spectrum, (basis @ turns.flip(1))[:, :kept])


def _times_covariance(flat: Tensor, mean: Tensor, basis: Tensor) -> Tensor:
    """Return the covariance of the rows, times some vectors, without the covariance."""
    product = torch.zeros_like(basis)
    for rows in flat.split(_ROWS):
        centered = rows.double() - mean
        product.addmm_(centered.T, centered @ basis)
    return product / len(flat)


def principal_components(data: Tensor) -> PrincipalComponents:
    """Eigendecomposition of the covariance of `data`, `(examples, *event_shape)`."""
    if data.dim() < 2 or len(data) == 0:
        raise ShapeError(f"expected data of shape (examples, *event_shape), got {tuple(data.shape)}")
    flat = data.flatten(1)
    mean = _mean(flat)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=data.device)
    for rows in flat.split(_ROWS):
        centered = rows.double() - mean
        covariance.addmm_(centered.T, centered)
    variances, directions = torch.linalg.eigh(covariance / len(flat))
    return PrincipalComponents(mean, variances.flip(0).clamp(min=0), directions.flip(1))


def ppca_weights(components: PrincipalComponents, latent_dim: int, variance: float | Tensor) -> Tensor:
    """Return the maximum-likelihood W, `(outputs, latent_dim)`, for a fixed noise variance."""
    excess = (components.variances[:latent_dim] - variance).clamp(min=0)
    weights = components.directions[:, :latent_dim] * excess.sqrt()
    return torch.nn.functional.pad(weights, (0, latent_dim - weights.shape[1]))


def fitted_ppca(data: Tensor, latent_dim: int, variance: float | None = None) -> td.LowRankMultivariateNormal:
    """Return p(x) of probabilistic PCA fitted to data, over flat examples in double precision.

    Args:
        data: The examples `(examples, *event_shape)`.
        latent_dim: Number of latents, fewer than outputs.
        variance: Its noise variance; the most likely one, as :func:`unexplained_variance` bounds it, if absent.
    """
    components = principal_components(data)
    noise = variance or unexplained_variance(components, latent_dim)
    weights = ppca_weights(components, latent_dim, noise)
    return td.LowRankMultivariateNormal(components.mean, weights, torch.full_like(components.mean, noise))


def unexplained_variance(components: PrincipalComponents, latent_dim: int) -> float:
    """Return the most likely noise variance: the mean over the components left out.

    It is at least a hundredth of all components' mean, and what the levels of an 8-bit image have in themselves.
    With nearly as many latents as outputs hardly anything is left, and a precision started at its inverse would bind an
    encoder that does not yet give those latents.
    """
    left = float(components.variances[latent_dim:].mean().nan_to_num())
    return max(left, 0.01 * float(components.variances.mean()), 1 / 12 / 256**2)


def ppca_bound(data: Tensor, latent_dim: int, variance: float) -> float:
    """Return nats per example that no fixed-variance linear decoder with Gaussian latents can exceed on `data`.

    Args:
        data: The examples `(examples, *event_shape)` that the decoder is judged on, those of the test say, as the model
            sees them (dequantized, for instance).
        latent_dim: Number of latents.
        variance: The decoder's fixed output variance.

    Example:
        >>> data = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)).mul(torch.tensor([2.0, 1.0, 0.1]))
        >>> -4.0 < ppca_bound(data, latent_dim=2, variance=0.01) < -2.5
        True
    """
    if not variance > 0:
        raise DomainError(f"variance has to be positive, got {variance}")
    if latent_dim < 1:
        raise DomainError(f"latent_dim has to be positive, got {latent_dim}")
    variances = principal_components(data).variances
    spectrum = torch.full_like(variances, variance)
    spectrum[:latent_dim] = variances[:latent_dim].clamp(min=variance)
    return float(-0.5 * (math.log(2 * math.pi) + spectrum.log() + variances / spectrum).sum())


def _mean(flat: Tensor) -> Tensor:
    mean = torch.stack([rows.double().sum(0) for rows in flat.split(_ROWS)]).sum(0) / len(flat)
    if not mean.isfinite().all():
        raise DomainError("data contains NaN or infinity")
    return mean
