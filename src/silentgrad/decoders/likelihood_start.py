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
            "those of silentgrad.likelihoods have it; or set decoder.affine yourself"
        )
    return u_at_mean


@torch.no_grad()
def start_linear_likelihood(
    decoder: LinearDecoder, data: Tensor, method: str, prior: td.Distribution | None, beside: Beside
) -> None:
    """Starts a `LinearLikelihood`; see its `init_from_data`."""
    likelihood: Likelihood = decoder.likelihood  # type: ignore[assignment]
    rough_u = getattr(likelihood, "rough_u", None)
    known = beside.flattened(data.shape[:1], decoder.event_shape)
    observed = known.observed(data.flatten(1), decoder.neutral).unflatten(1, decoder.event_shape)
    if rough_u is None:
        _from_mean(decoder, likelihood, _filled(observed, known), method, prior, beside)
        return
    u = rough_u(observed).flatten(1)
    if known.offset is not None:
        u = u - known.offset
    LinearDecoder.init_from_data(decoder, _filled(u.unflatten(1, decoder.event_shape), known), method, prior)
    _match_means(decoder, likelihood, observed.flatten(1), known, prior)


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
    mask = known.mask.reshape(data.shape)
    means = (data * mask).sum(0) / mask.sum(0).clamp(min=1)
    return torch.where(mask, data, means)


def _match_means(
    decoder: LinearDecoder, likelihood: Likelihood, x: Tensor, known: Beside, prior: td.Distribution | None
) -> None:
    """Moves the bias so that x has its mean, where the likelihood can tell, and starts the likelihood's own spread."""
    means, variances = _moments(x, known)
    mean_of_u = getattr(likelihood, "mean_of_u", None)
    if mean_of_u is not None:
        spread = decoder.affine.weight.square()
        if prior is not None:
            spread = spread * prior.variance.flatten().to(spread)
        decoder.affine.bias.copy_(mean_of_u(means, spread.sum(1)) - decoder.shift(prior))
    start_spread = getattr(likelihood, "start_spread", None)
    if start_spread is not None:
        start_spread(means.reshape(decoder.event_shape), variances.reshape(decoder.event_shape))


def _moments(x: Tensor, known: Beside) -> tuple[Tensor, Tensor]:
    """Mean and variance of each output over its observed entries, x being in units of the exponential of its offset."""
    size = torch.ones_like(x[:, :1])
    if known.offset is not None:
        size = known.offset.exp()
    size = size.expand_as(x)
    mask = torch.ones_like(x)
    if known.mask is not None:
        mask = known.mask.to(x)
    means = (mask * x).sum(0) / (mask * size).sum(0).clamp(min=torch.finfo(x.dtype).tiny)
    variances = (mask * (x / size - means).square()).sum(0) / mask.sum(0).clamp(min=1)
    return means, variances
