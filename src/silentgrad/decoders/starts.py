r"""Where the leaves of a circuit start: a mixture of normal distributions fitted to the values of the outputs.

Expectation maximization in one dimension, for every output by itself or for all pixels of an image together: a pixel
that was never bright in the data may be so later, and needs a bright leaf as well. No variance is less than that of one
of 256 levels of the range, :math:`(r / 256)^2 / 12`: an output that never changes has a finite precision.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from silentgrad.errors import DomainError, ShapeError
from silentgrad.ppca import ppca_weights, principal_components, unexplained_variance

LEVELS = 256
STEPS = 40
VALUES = 2**17  # of the data that are looked at


class Clusters(NamedTuple):
    """Means, variances and shares of the components, `(outputs or 1, components)` each."""

    means: Tensor
    variances: Tensor
    shares: Tensor


def require_examples(data: Tensor, event_shape: torch.Size) -> None:
    """Refuses data to start from that are no examples of a shape, or none at all, or not numbers."""
    if data.shape[1:] != event_shape or len(data) == 0:
        raise ShapeError(f"expected examples of shape {tuple(event_shape)}, got data of shape {tuple(data.shape)}")
    if not data.isfinite().all():
        raise DomainError("the data to start from hold NaN or infinite numbers")


def clusters(data: Tensor, components: int, shared: bool) -> Clusters:
    """Fits a mixture of normal distributions to the values of each output, or of all of them.

    Args:
        data: Examples `(examples, outputs)`.
        components: Number of components.
        shared: Whether all outputs have one mixture.

    Example:
        >>> two = clusters(torch.tensor([[0.0], [0.1], [0.9], [1.0]]), 2, shared=False)
        >>> two.means
        tensor([[0.0500, 0.9500]], dtype=torch.float64)
    """
    values = _some(data.double(), shared)
    low, high = values.amin(0), values.amax(0)
    least = ((high - low) / LEVELS).square() / 12
    least = least.clamp(min=1e-12 * (1 + low.abs()).square()).unsqueeze(1)
    steps = (torch.arange(components, dtype=values.dtype, device=values.device) + 0.5) / components
    means = low.unsqueeze(1) + (high - low).unsqueeze(1) * steps
    spacing = ((high - low) / components).square().unsqueeze(1) / 12
    found = Clusters(means, torch.maximum(spacing, least).expand_as(means), torch.full_like(means, 1 / components))
    for _ in range(STEPS):
        found = _improved(found, values, least)
    return found


def _some(data: Tensor, shared: bool) -> Tensor:
    """As many examples, evenly spaced, as are looked at; `(values, outputs or 1)`."""
    examples = max(1, min(len(data), VALUES // data.shape[1]))
    picked = data[torch.linspace(0, len(data) - 1, examples, device=data.device).long()]
    if shared:
        return picked.reshape(-1, 1)
    return picked


def _improved(found: Clusters, values: Tensor, least: Tensor) -> Clusters:
    """One step of expectation maximization; a component with nothing to explain stays where it is."""
    residuals = values.unsqueeze(-1) - found.means
    fit = found.shares.log() - (found.variances.log() + residuals.square() / found.variances) / 2
    responsibilities = fit.softmax(-1)
    mass = responsibilities.sum(0)
    enough = mass > 1e-3
    unit = torch.where(enough, mass, 1)
    means = torch.where(enough, (responsibilities * values.unsqueeze(-1)).sum(0) / unit, found.means)
    squares = (responsibilities * (values.unsqueeze(-1) - means).square()).sum(0) / unit
    variances = torch.where(enough, torch.maximum(squares, least), found.variances)
    return Clusters(means, variances, (mass + 1) / (mass + 1).sum(-1, keepdim=True))


def shares_of(found: Clusters, data: Tensor) -> Tensor:
    """How often each output has each component, `(outputs, components)`."""
    total = torch.zeros(data.shape[1], found.means.shape[1], dtype=torch.float64, device=data.device)
    for rows in data.split(1 + VALUES // data.shape[1]):
        residuals = rows.double().unsqueeze(-1) - found.means
        fit = found.shares.log() - (found.variances.log() + residuals.square() / found.variances) / 2
        total += fit.softmax(-1).sum(0)
    return (total + 1) / (total + 1).sum(-1, keepdim=True)


def leaf_starts(found: Clusters, data: Tensor, latent_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances `(outputs, components)` of the leaves, and their weights `(outputs, components, latent_dim)`.

    The weights are those of probabilistic PCA, made smaller by as much as a component varies less than its output.
    """
    components = principal_components(data)
    weights = ppca_weights(components, latent_dim, unexplained_variance(components, latent_dim))
    outputs = len(weights)
    means = found.means.expand(outputs, -1)
    variances = found.variances.expand(outputs, -1)
    total = weights.square().sum(1, keepdim=True) + variances
    shrunk = (variances / total).unsqueeze(-1) * weights.unsqueeze(1)
    return means, variances, shrunk
