"""How a linear decoder with a likelihood of its own starts from data."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.beside import Beside
from silentgrad.decoders.linear import LinearDecoder
from silentgrad.errors import IntractableError
from silentgrad.likelihoods.base import Likelihood

UAtMean = Callable[[Tensor], tuple[Tensor, Tensor]]


def u_at_mean_of(likelihood: Likelihood) -> UAtMean:
    """A likelihood's function from the mean of x to u and its derivative."""
    u_at_mean: UAtMean | None = getattr(likelihood, "u_at_mean", None)
    if u_at_mean is None:
        raise IntractableError(
            "a start from data needs the likelihood's `u_at_mean`, from the mean of x to u and its derivative, as "
            "most of silentgrad.likelihoods have it; or set decoder.affine yourself"
        )
    return u_at_mean


@torch.no_grad()
def start_linear_likelihood(
    decoder: LinearDecoder, data: Tensor, method: str, prior: td.Distribution | None, beside: Beside
) -> None:
    """Starts a `LinearLikelihood`; see its `init_from_data`."""
    likelihood: Likelihood = decoder.likelihood  # type: ignore[assignment]
    rough_u = getattr(likelihood, "rough_u", None)
    data = data.to(decoder.affine.weight.device)
    known = decoder.known(beside, data.shape[:1])
    observed = known.observed(data.flatten(1), decoder.neutral)
    if rough_u is None:
        filled = _filled(observed, known).unflatten(1, decoder.event_shape)
        _from_mean(decoder, likelihood, filled, method, prior, beside)
        return
    observed = observed.to(decoder.affine.weight)
    log_size, relative = _sizes(observed, known)
    u = rough_u((observed / relative).unflatten(1, decoder.event_shape)).flatten(1)
    LinearDecoder.init_from_data(decoder, _filled(u, known).unflatten(1, decoder.event_shape), method, prior)
    _match_means(decoder, likelihood, *_moments(observed, relative, known), prior)
    decoder.affine.bias.sub_(log_size)


def _from_mean(
    decoder: LinearDecoder,
    likelihood: Likelihood,
    data: Tensor,
    method: str,
    prior: td.Distribution | None,
    beside: Beside,
) -> None:
    """The principal components of x itself, brought to u to first order."""
    if beside.offset is not None:
        raise IntractableError(
            f"{type(likelihood).__name__} has no start from data with an offset: set decoder.affine yourself"
        )
    u_at_mean = u_at_mean_of(likelihood)
    LinearDecoder.init_from_data(decoder, data, method, prior)
    u, slope = u_at_mean((decoder.affine.bias + decoder.shift(prior)).unflatten(0, decoder.event_shape))
    if method == "ppca":
        decoder.affine.weight.mul_(slope.reshape(-1, 1))
    decoder.affine.bias.copy_(u.flatten() - decoder.shift(prior))


def _filled(data: Tensor, known: Beside) -> Tensor:
    """Data with the mean of their output where an entry was not observed."""
    if known.mask is None:
        return data
    means = (data * known.mask).sum(0) / known.mask.sum(0).clamp(min=1)
    return torch.where(known.mask, data, means)


def _match_means(
    decoder: LinearDecoder, likelihood: Likelihood, means: Tensor, variances: Tensor, prior: td.Distribution | None
) -> None:
    """Moves the bias so that x has its mean, where the likelihood can tell, and starts the likelihood's own spread."""
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


def _sizes(x: Tensor, known: Beside) -> tuple[Tensor, Tensor]:
    """The logarithm of each output's mean size, the exponential of its offset, and every entry's size in its units.

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


def _moments(x: Tensor, relative: Tensor, known: Beside) -> tuple[Tensor, Tensor]:
    """Mean of each output over its observed entries, and their variance around it, in proportion to their sizes."""
    means = _mean_over(x, known)
    return means, _mean_over((x - means * relative).square(), known)


def _mean_over(numbers: Tensor, known: Beside) -> Tensor:
    """The mean over each output's observed entries; over all, which are neutral, if there are none."""
    if known.mask is None:
        return numbers.mean(0)
    mask = known.mask
    seen = mask.any(0)
    mean = torch.where(mask, numbers, 0).sum(0) / mask.sum(0).clamp(min=1)
    return torch.where(seen, mean, numbers.mean(0))
