"""What a model is worth on a batch: its bound, and what that bound is."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.beside import NOTHING, Beside
from silentgrad.decoders import LinearPrecisionGaussian, Tractable, is_tractable
from silentgrad.estimators.integrand import log_prob_of
from silentgrad.exactness import Exactness
from silentgrad.guided import GuidedVAE
from silentgrad.latents.independent import base_of, sum_over_latents
from silentgrad.latents.priors import Prior
from silentgrad.objective import Decoder, given_decoder


class Evaluation(NamedTuple):
    """Figures of a batch, in nats; bounds and divergences are sums over it.

    Args:
        elbo: The bound: the ELBO, a lower bound of it, or the importance-weighted bound.
        sampled: The ELBO by the samples that were drawn, where the bound is another number; else the bound.
        kld: The KL divergence.
        kld_per_latent: The KL divergence of each latent.
        likelihood: p(x|z) for a draw of z from q(z|x).
    """

    elbo: Tensor
    sampled: Tensor
    kld: Tensor
    kld_per_latent: Tensor
    likelihood: td.Distribution


@torch.no_grad()
def evaluate(model: GuidedVAE, x: Tensor, samples: int = 1, noise: float = 0.0, beside: Beside = NOTHING) -> Evaluation:
    """The figures of a batch under the decoder the model is judged by.

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
        beside: What stands beside the examples, for the decoder.
    """
    points = [x]
    if noise != 0:
        points = [x - noise, x + noise]
    q = model.encoder(x)
    prior = model.prior_of(q)
    kld = prior.divergence(q)
    decoder = given_decoder(model.decoder, beside)
    z = q.sample()
    likelihood = decoder(z)
    if samples > 1:
        bound, sampled = _importance_weighted(decoder, points, q, prior, samples)
    elif is_tractable(model.decoder):
        bound = _closed_form(model.decoder, points, q, beside) - kld
        sampled = bound
        if _exactness(model.decoder, q) is not Exactness.EXACT:
            sampled = _log_prob(decoder, points, z) - kld
    else:
        bound = sampled = _log_prob(decoder, points, z) - kld
    return Evaluation(bound.sum(), sampled.sum(), kld.sum(), prior.divergence_per_latent(q).sum(0), likelihood)


def exactness(model: GuidedVAE, q: td.Distribution, samples: int = 1) -> str:
    """What the bound of :func:`evaluate` is to the ELBO: exact, a lower bound, an approximation, or sampled."""
    if samples > 1 or not is_tractable(model.decoder):
        return "sampled"
    return _exactness(model.decoder, q)


def _exactness(decoder: Tractable, q: td.Distribution) -> Exactness:
    if isinstance(decoder, LinearPrecisionGaussian):
        return decoder.exactness(q, log_term="auto")
    return decoder.exactness(q)


def _closed_form(decoder: Tractable, points: Sequence[Tensor], q: td.Distribution, beside: Beside) -> Tensor:
    """E_q[log p(x|z)] in the most exact form that the latents allow, whichever log term the decoder is trained with."""
    if isinstance(decoder, LinearPrecisionGaussian):
        return _mean([decoder.expected_log_prob(x, q, log_term="auto", **beside.parts()) for x in points])
    given = given_decoder(decoder, beside)
    assert is_tractable(given)
    return _mean([given.expected_log_prob(x, q) for x in points])


def _log_prob(decoder: Decoder, points: Sequence[Tensor], z: Tensor) -> Tensor:
    return _mean([log_prob_of(decoder, x, z) for x in points])


def _mean(numbers: list[Tensor]) -> Tensor:
    return torch.stack(numbers).mean(0)


def _importance_weighted(
    decoder: Decoder,
    points: Sequence[Tensor],
    q: td.Distribution,
    prior: Prior,
    samples: int,
) -> tuple[Tensor, Tensor]:
    """The log of the mean of p(x, z) / q(z|x) over samples, and the mean of the log; one per example."""
    weights = []
    for _ in range(samples):
        z = q.sample()
        ratio = prior.log_prob(z) - sum_over_latents(base_of(q).log_prob(z), z.shape[:1])
        weights.append(_log_prob(decoder, points, z) + ratio)
    log_weights = torch.stack(weights)
    return log_weights.logsumexp(0) - math.log(samples), log_weights.mean(0)
