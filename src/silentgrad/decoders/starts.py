r"""Starts of decoders from data: a likelihood of its own by its mean, the leaves of a circuit by a mixture.

**The leaves of a circuit** start as a mixture of normal distributions fitted to the values of the outputs. Expectation
maximization in one dimension, for every output by itself or for all pixels of an image together: a pixel that was never
bright in the data may be so later, and needs a bright leaf as well. No variance is less than that of one of 256 levels
of the range, :math:`(r / 256)^2 / 12`: an output that never changes has a finite precision.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.decoders.linear import LinearDecoder
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.likelihoods.base import Likelihood
from silentgrad.ppca import ppca_weights, principal_components, unexplained_variance
from silentgrad.side_info import SideInfo

UAtMean = Callable[[Tensor], tuple[Tensor, Tensor]]


def u_at_mean_of(likelihood: Likelihood) -> UAtMean:
    """Return a likelihood's function from the mean of x to u and its derivative."""
    u_at_mean: UAtMean | None = getattr(likelihood, "u_at_mean", None)
    if u_at_mean is None:
        raise IntractableError(
            "a start from data needs the likelihood's `u_at_mean`, from the mean of x to u and its derivative, as "
            "most of silentgrad.likelihoods have it; or set decoder.affine yourself"
        )
    return u_at_mean


@torch.no_grad()
def start_linear_likelihood(
    decoder: LinearDecoder, data: Tensor, method: str, prior: td.Distribution | None, side_info: SideInfo
) -> None:
    """Start a `LinearLikelihood`; see its `init_from_data`."""
    likelihood: Likelihood = decoder.likelihood  # type: ignore[assignment]
    rough_u = getattr(likelihood, "rough_u", None)
    data = data.to(decoder.affine.weight.device)
    known = decoder.known(side_info, data.shape[:1])
    observed = known.observed(data.flatten(1), decoder.neutral)
    if rough_u is None:
        if side_info.offset is not None:
            raise IntractableError(
                f"{type(likelihood).__name__} has no start from data with an offset: set decoder.affine yourself"
            )
        filled = _filled(observed, known).unflatten(1, decoder.event_shape)
        _from_mean(decoder, u_at_mean_of(likelihood), filled, method, prior)
        return
    observed = observed.to(decoder.affine.weight)
    log_size, relative = _sizes(observed, known)
    u = rough_u((observed / relative).unflatten(1, decoder.event_shape)).flatten(1)
    LinearDecoder.init_from_data(decoder, _filled(u, known).unflatten(1, decoder.event_shape), method, prior)
    _match_means(decoder, likelihood, *_moments(observed, relative, known), prior)
    decoder.affine.bias.sub_(log_size)


def _from_mean(
    decoder: LinearDecoder, u_at_mean: UAtMean, data: Tensor, method: str, prior: td.Distribution | None
) -> None:
    """Start from the principal components of x itself, brought to u to first order."""
    LinearDecoder.init_from_data(decoder, data, method, prior)
    u, slope = u_at_mean((decoder.affine.bias + decoder.shift(prior)).unflatten(0, decoder.event_shape))
    if method == "ppca":
        decoder.affine.weight.mul_(slope.reshape(-1, 1))
    decoder.affine.bias.copy_(u.flatten() - decoder.shift(prior))


def _filled(data: Tensor, known: SideInfo) -> Tensor:
    """Return data with the mean of their output where an entry was not observed."""
    if known.mask is None:
        return data
    means = (data * known.mask).sum(0) / known.mask.sum(0).clamp(min=1)
    return torch.where(known.mask, data, means)


def _match_means(
    decoder: LinearDecoder, likelihood: Likelihood, means: Tensor, variances: Tensor, prior: td.Distribution | None
) -> None:
    """Move the bias so that x has its mean, where the likelihood can tell, and starts the likelihood's own spread."""
    means, variances = means.unflatten(0, decoder.event_shape), variances.unflatten(0, decoder.event_shape)
    mean_of_u = getattr(likelihood, "mean_of_u", None)
    if mean_of_u is not None:
        spread = decoder.affine.weight.square()
        if prior is not None:
            spread = spread * prior.variance.flatten().to(spread)
        mean = mean_of_u(means, spread.sum(1).unflatten(0, decoder.event_shape))
        decoder.affine.bias.copy_(mean.flatten() - decoder.shift(prior))
    start_spread = getattr(likelihood, "start_spread", None)
    if start_spread is not None:
        start_spread(means, variances)


def _sizes(x: Tensor, known: SideInfo) -> tuple[Tensor, Tensor]:
    """Return the logarithm of each output's mean size, and every entry's size in its units.

    A start knows what is a small count, not what is a small rate, so it takes an example of mean size for its unit.
    """
    if known.offset is None:
        return torch.zeros_like(x[0]), torch.ones_like(x)
    offset = known.offset.expand_as(x)
    largest = offset.amax(0)
    if known.mask is not None:
        of_observed = torch.where(known.mask, offset, -torch.inf).amax(0)
        largest = torch.where(known.mask.any(0), of_observed, largest)
    log_size = _mean_over(torch.exp(offset - largest), known).log() + largest
    return log_size, torch.exp(offset - log_size)


def _moments(x: Tensor, relative: Tensor, known: SideInfo) -> tuple[Tensor, Tensor]:
    """Return each output's mean over observed entries and their variance around it, in proportion to their sizes."""
    means = _mean_over(x, known)
    return means, _mean_over((x - means * relative).square(), known)


def _mean_over(numbers: Tensor, known: SideInfo) -> Tensor:
    """Return the mean over each output's observed entries; over all, which are neutral, if there are none."""
    if known.mask is None:
        return numbers.mean(0)
    mask = known.mask
    seen = mask.any(0)
    mean = torch.where(mask, numbers, 0).sum(0) / mask.sum(0).clamp(min=1)
    return torch.where(seen, mean, numbers.mean(0))


LEVELS = 256
STEPS = 40
VALUES = 2**17  # of the data that are looked at


class Clusters(NamedTuple):
    """Means, variances and shares of the components, `(outputs or 1, components)` each."""

    means: Tensor
    variances: Tensor
    shares: Tensor

    def responsibilities(self, values: Tensor) -> Tensor:
        """Return the probability of each component given each value, along a last dimension."""
        residuals = values.unsqueeze(-1) - self.means
        fit = self.shares.log() - (self.variances.log() + residuals.square() / self.variances) / 2
        return fit.softmax(-1)


def require_examples(data: Tensor, event_shape: torch.Size) -> None:
    """Refuse data to start from that are no examples of a shape, or none at all, or not numbers."""
    if data.shape[1:] != event_shape or len(data) == 0:
        raise ShapeError(f"expected examples of shape {tuple(event_shape)}, got data of shape {tuple(data.shape)}")
    if not data.isfinite().all():
        raise DomainError("the data to start from hold NaN or infinite numbers")


def clusters(data: Tensor, components: int, shared: bool) -> Clusters:
    """Fit a mixture of normal distributions to the values of each output of `(examples, outputs)`, or of all of them.

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
    """Return as many examples, evenly spaced, as are looked at; `(values, outputs or 1)`."""
    examples = max(1, min(len(data), VALUES // data.shape[1]))
    picked = data[torch.linspace(0, len(data) - 1, examples, device=data.device).long()]
    if shared:
        return picked.reshape(-1, 1)
    return picked


def _improved(found: Clusters, values: Tensor, least: Tensor) -> Clusters:
    """Take one step of expectation maximization; a component with nothing to explain stays where it is."""
    responsibilities = found.responsibilities(values)
    mass = responsibilities.sum(0)
    enough = mass > 1e-3
    unit = torch.where(enough, mass, 1)
    means = torch.where(enough, (responsibilities * values.unsqueeze(-1)).sum(0) / unit, found.means)
    squares = (responsibilities * (values.unsqueeze(-1) - means).square()).sum(0) / unit
    variances = torch.where(enough, torch.maximum(squares, least), found.variances)
    return Clusters(means, variances, (mass + 1) / (mass + 1).sum(-1, keepdim=True))


def shares_of(found: Clusters, data: Tensor) -> Tensor:
    """Return how often each output has each component, `(outputs, components)`."""
    total = torch.zeros(data.shape[1], found.means.shape[1], dtype=torch.float64, device=data.device)
    for rows in data.split(1 + VALUES // data.shape[1]):
        total += found.responsibilities(rows.double()).sum(0)
    return (total + 1) / (total + 1).sum(-1, keepdim=True)


def leaf_starts(found: Clusters, data: Tensor, latent_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the leaves' means and variances `(outputs, components)` and weights `(outputs, components, latent_dim)`.

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
