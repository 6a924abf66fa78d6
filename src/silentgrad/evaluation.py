"""Figures of a model on a batch: its bound, and what that bound is."""

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import LinearPrecisionGaussian, Tractable, is_tractable
from silentgrad.estimators.integrand import log_prob_of
from silentgrad.exactness import Exactness, weakest
from silentgrad.guided import GuidedVAE
from silentgrad.latents.independent import base_of, sum_over_latents
from silentgrad.latents.priors import Prior
from silentgrad.objective import Decoder, given_decoder
from silentgrad.side_info import NOTHING, SideInfo

ACTIVE = 0.01  # nats: a latent whose KL divergence is below that on average is not used


class BatchEvaluation(NamedTuple):
    """Figures of a batch, in nats; bounds and divergences are sums over it.

    Args:
        elbo: The bound: the ELBO, a lower bound of it, or the importance-weighted bound.
        sampled: The ELBO by the samples that were drawn, where the bound is another number; else the bound.
        kld: The KL divergence, or the bound of it that the prior has.
        kld_per_latent: The same of each latent.
        likelihood: p(x|z) for a draw of z from q(z|x).
    """

    elbo: Tensor
    sampled: Tensor
    kld: Tensor
    kld_per_latent: Tensor
    likelihood: td.Distribution


@torch.no_grad()
def evaluate(
    model: GuidedVAE, x: Tensor, samples: int = 1, noise: float = 0.0, side_info: SideInfo = NOTHING
) -> BatchEvaluation:
    """Return the figures of a batch under the decoder the model is judged by.

    The bound is the ELBO: a tractable decoder's expectation is its closed form, with the most exact log term that its
    latents allow; a nonlinear one's is sampled. With `samples` > 1 it is the importance-weighted bound of Burda et al.
    (2016), of whichever decoder.

    Args:
        model: The model.
        x: Examples; with noise, its mean, which is what the encoder sees.
        samples: Samples of the importance-weighted bound.
        noise: Standard deviation of noise around x that is independent between outputs. It is integrated out, which is
            exact for a decoder that is Gaussian given z, whose log-probability is quadratic in x: the mean over two
            points, one standard deviation to either side, has the same square.
        side_info: Side information of the examples, as for the model.
    """
    points, q, decoder = _points(x, noise), model.encode(x, side_info), _judging(model, side_info)
    prior = model.prior_of(q)
    kld = prior.divergence(q)
    z = q.sample()
    likelihood = decoder(z)
    if samples > 1:
        bound, sampled = _importance_weighted(decoder, points, q, prior, samples)
    elif is_tractable(decoder):
        bound = sampled = _closed_form(decoder, points, q) - kld
        if exactness(model, q) is not Exactness.EXACT:
            sampled = _sampled_elbo(decoder, points, q, prior, z)
    else:
        bound = sampled = _sampled_elbo(decoder, points, q, prior, z)
    return BatchEvaluation(bound.sum(), sampled.sum(), kld.sum(), prior.divergence_per_latent(q).sum(0), likelihood)


@torch.no_grad()
def sampled_elbos(model: GuidedVAE, x: Tensor, draws: int, noise: float = 0.0, side_info: SideInfo = NOTHING) -> Tensor:
    """Return the ELBO of each example at independent draws of z, `(draws, batch)`.

    What is exact in closed form is not sampled: neither a decoder's expectation nor a prior's divergence.

    Args:
        model: The model.
        x: Examples; with noise, its mean.
        draws: Number of draws.
        noise: Standard deviation of noise around x, as in :func:`evaluate`.
        side_info: Side information of the examples, as for the model.
    """
    points, q, decoder = _points(x, noise), model.encode(x, side_info), _judging(model, side_info)
    prior = model.prior_of(q)
    if is_tractable(decoder) and decoder.exactness(q) is Exactness.EXACT:
        expected = _closed_form(decoder, points, q)
        return torch.stack([expected + _log_ratio(q, prior, q.sample()) for _ in range(draws)])
    return torch.stack([_sampled_elbo(decoder, points, q, prior, q.sample()) for _ in range(draws)])


def _points(x: Tensor, noise: float) -> list[Tensor]:
    """Return points with the mean and the mean square of x and the noise around it."""
    return [x - noise, x + noise] if noise else [x]


def exactness(model: GuidedVAE, q: td.Distribution, samples: int = 1) -> str:
    """Return what the bound of :func:`evaluate` is to the ELBO: exact, a lower bound, an approximation, or sampled."""
    decoder = _judging(model, NOTHING)
    if samples > 1 or not is_tractable(decoder):
        return "sampled"
    return weakest(decoder.exactness(q), model.prior_of(q).exactness)


def _judging(model: GuidedVAE, side_info: SideInfo) -> Decoder:
    """Return the decoder that the model is judged by, with the most exact log term, whatever it is trained with."""
    decoder = model.decoder
    if isinstance(decoder, LinearPrecisionGaussian):
        decoder = copy.copy(decoder)
        decoder.log_term = "auto"
    return given_decoder(decoder, side_info)


def _closed_form(decoder: Tractable, points: Sequence[Tensor], q: td.Distribution) -> Tensor:
    return torch.stack([decoder.expected_log_prob(x, q) for x in points]).mean(0)


def _sampled_elbo(decoder: Decoder, points: Sequence[Tensor], q: td.Distribution, prior: Prior, z: Tensor) -> Tensor:
    """Return the ELBO at one draw of z; the KL divergence is the prior's own only where that is exact."""
    log_prob = _log_prob(decoder, points, z)
    if prior.exactness is Exactness.EXACT:
        return log_prob - prior.divergence(q)
    return log_prob + _log_ratio(q, prior, z)


def _log_ratio(q: td.Distribution, prior: Prior, z: Tensor) -> Tensor:
    """Return log p(z) - log q(z|x), one number per example."""
    return prior.log_prob(z) - sum_over_latents(base_of(q).log_prob(z), z.shape[:1])


def _log_prob(decoder: Decoder, points: Sequence[Tensor], z: Tensor) -> Tensor:
    return torch.stack([log_prob_of(decoder, x, z) for x in points]).mean(0)


def _importance_weighted(
    decoder: Decoder, points: Sequence[Tensor], q: td.Distribution, prior: Prior, samples: int
) -> tuple[Tensor, Tensor]:
    """Return the log of the mean of p(x, z) / q(z|x) over samples, and the mean of the log; one per example."""
    draws = (q.sample() for _ in range(samples))
    log_weights = torch.stack([_log_prob(decoder, points, z) + _log_ratio(q, prior, z) for z in draws])
    return log_weights.logsumexp(0) - math.log(samples), log_weights.mean(0)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, and afterwards every part of it in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
