r"""The guided VAE: a shared encoder, a linear decoder with silent gradients, a nonlinear decoder, and Algorithm 1.

With :math:`w = \max(0, 1 - n \lambda)` in epoch n, Algorithm 1 of the paper descends

.. math:: w\, L_\mathrm{lin} + (1 - w)\, L_\mathrm{nl} + D_\mathrm{KL}(q(z|x) \,\|\, p(z)),

which weights the decoders' own losses too. The paper's text weights only what reaches the encoder, so that both
decoders learn at full rate for as long as they take part: `weighting="encoder"`. With w held at 1 that is the paper's
"None + SG": the encoder follows the linear decoder alone, and the nonlinear decoder learns on whatever latents it is
given.
"""

import copy
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import LinearDecoder, LinearPrecisionGaussian
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.estimators import Estimator, Exact
from silentgrad.guide import freeze
from silentgrad.latents.moments import central_moments
from silentgrad.latents.priors import kl_to_prior, prior_of
from silentgrad.schedules import Schedule, constant

Weighting = Literal["loss", "encoder"]


class Losses(NamedTuple):
    """Nats per image, averaged over the batch; a decoder that did not take part has None."""

    total: Tensor
    kld: Tensor
    linear: Tensor | None
    nonlinear: Tensor | None


class GuidedVAE(nn.Module):
    """A VAE whose encoder a linear decoder guides with gradients that have no sampling noise.

    Args:
        encoder: From images to a latent q(z|x).
        linear: The linear decoder, or None for a plain VAE.
        nonlinear: The nonlinear decoder, or None for a linear VAE.
        linear_estimator: Of the linear decoder's expectation: exact unless another is to be compared with it.
        estimator: Of the nonlinear decoder's expectation.
        weight: w_lin as a function of the epoch, counted from 1.
        weighting: What w_lin weights: the decoders' "loss" (Algorithm 1) or the "encoder" gradient only (the text).
        cutoff: The epoch at which the encoder is frozen.
        kl_weight: Of the KL divergence; 1 makes the objective a lower bound.
    """

    def __init__(
        self,
        encoder: nn.Module,
        linear: LinearDecoder | None = None,
        nonlinear: nn.Module | None = None,
        linear_estimator: Estimator | None = None,
        estimator: Estimator | None = None,
        weight: Schedule | None = None,
        weighting: Weighting = "loss",
        cutoff: int | None = None,
        kl_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if linear is None and nonlinear is None:
            raise DomainError("a VAE needs a decoder: linear, nonlinear or both")
        if nonlinear is not None and estimator is None:
            raise DomainError("a nonlinear decoder needs an estimator, such as Reparameterized()")
        if weighting not in ("loss", "encoder"):
            raise DomainError(f'weighting has to be "loss" or "encoder", got {weighting!r}')
        self.encoder, self.linear, self.nonlinear = encoder, linear, nonlinear
        self.linear_estimator = linear_estimator or Exact()
        self.estimator = estimator
        self.weight = weight or constant(1.0)
        self.weighting, self.cutoff, self.kl_weight = weighting, cutoff, kl_weight

    def w_lin(self, epoch: int) -> float:
        """The weight of the linear decoder in an epoch, counted from 1."""
        if self.nonlinear is None:
            return 1.0
        return 0.0 if self.linear is None else self.weight(epoch)

    def on_epoch(self, epoch: int) -> None:
        """What changes between epochs: temperatures, and the encoder's freezing at the cut-off."""
        for estimator in (self.linear_estimator, self.estimator):
            if estimator is not None:
                estimator.on_epoch(epoch)
        if self.cutoff is not None and epoch >= self.cutoff:
            freeze(self.encoder)

    def forward(self, x: Tensor, epoch: int) -> Losses:
        """One line of Algorithm 1 after the other."""
        if x.numel() == 0:
            raise ShapeError(f"x of shape {tuple(x.shape)} holds no examples: there is no loss to average over them")
        q = self.encoder(x)  # stats <- E(x)
        divergence = kl_to_prior(q).sum()
        w_lin = self.w_lin(epoch)
        w_nl = 1 - w_lin
        linear = nonlinear = None
        terms = []
        if self.linear is not None and w_lin > 0:
            guided, weight = (q, w_lin) if self.weighting == "loss" else (scale_gradient(q, w_lin), 1.0)
            expected = self.linear_estimator(guided, self.linear.log_prob_of(x))
            linear = -expected.mean()
            terms.append(weight * linear)
        if self.nonlinear is not None and (w_nl > 0 or self.weighting == "encoder"):
            decoder = self.nonlinear
            sampled, weight = (q, w_nl) if self.weighting == "loss" else (scale_gradient(q, w_nl), 1.0)
            assert self.estimator is not None
            expected = self.estimator(sampled, lambda z: decoder(z).log_prob(x))
            nonlinear = -expected.mean()
            terms.append(weight * nonlinear)
        kld = divergence / expected.numel()
        total = sum(terms, start=self.kl_weight * kld)
        return Losses(total, kld, linear, nonlinear)

    @property
    def decoder(self) -> nn.Module:
        """The decoder that a trained model is judged by: the nonlinear one if there is one."""
        decoder = self.linear if self.nonlinear is None else self.nonlinear
        assert decoder is not None
        return decoder


def scale_gradient(q: td.Distribution, weight: float) -> td.Distribution:
    """The same latent, through which only `weight` times the gradient passes."""

    def scaled(x: Tensor) -> Tensor:
        return weight * x + (1 - weight) * x.detach() if weight else x.detach()

    if isinstance(q, td.Independent):
        return td.Independent(scale_gradient(q.base_dist, weight), q.reinterpreted_batch_ndims)
    if isinstance(q, td.Normal):
        return td.Normal(scaled(q.loc), scaled(q.scale), validate_args=False)
    if isinstance(q, td.Bernoulli):
        return td.Bernoulli(logits=scaled(q.logits), validate_args=False)
    raise IntractableError(f'weighting="encoder" knows Normal and Bernoulli latents, got {type(q).__name__}')


class Evaluation(NamedTuple):
    """Sums over a batch: the bound in nats, squared error, KL divergence; and the KL divergence of each latent.

    The bound is the ELBO, or the importance-weighted one of several samples; `gap` is by how much the latter exceeds
    the ELBO of the same samples.
    """

    elbo: Tensor
    squared_error: Tensor
    kld: Tensor
    kld_per_latent: Tensor
    gap: Tensor


@torch.no_grad()
def evaluate(model: GuidedVAE, x: Tensor, samples: int = 1, noise: float = 0.0) -> Evaluation:
    """The figures of a batch under the decoder the model is judged by.

    The bound is the ELBO: a linear decoder's expectation is its closed form, never Taylor's, which is no lower bound; a
    nonlinear one's is sampled. With `samples` > 1 it is the importance-weighted bound of Burda et al. (2016), of
    whichever decoder.

    Args:
        model: The model.
        x: Examples; with noise, its mean, which is what the encoder sees.
        samples: Samples of the importance-weighted bound.
        noise: Standard deviation of noise around x that is independent between outputs. It is integrated out, which is
            exact for a decoder that is Gaussian given z, whose log-probability is quadratic in x: the mean over two
            points, one standard deviation to either side, has the same square.
    """
    points = (x,) if noise == 0 else (x - noise, x + noise)
    q = model.encoder(x)
    base = q.base_dist if isinstance(q, td.Independent) else q
    kld = kl_to_prior(base)
    likelihood = model.decoder(q.sample())
    gap = torch.zeros(())
    if samples > 1:
        bound, gap = _importance_weighted(model.decoder, points, base, samples)
    elif isinstance(model.decoder, LinearDecoder):
        judge = _with_bound(model.decoder)
        bound = _mean([judge.expected_log_prob(point, q) for point in points]) - kld.flatten(1).sum(1)
    else:
        bound = _mean([likelihood.log_prob(point) for point in points]) - kld.flatten(1).sum(1)
    error = _mean([(likelihood.mean - point).flatten(1).square().sum(1) for point in points])
    return Evaluation(bound.sum(), error.sum(), kld.sum(), kld.flatten(1).sum(0), gap.sum())


def _mean(numbers: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(numbers)).mean(0)


def _importance_weighted(
    decoder: nn.Module, points: Sequence[Tensor], q: td.Distribution, samples: int
) -> tuple[Tensor, Tensor]:
    """log of the mean of p(x, z) / q(z|x) over samples, and what it has beyond the mean of the log; one per example."""
    weights = []
    for _ in range(samples):
        z = q.sample()
        ratio = (prior_of(q).log_prob(z) - q.log_prob(z)).flatten(1).sum(1)
        likelihood = decoder(z)
        weights.append(_mean([likelihood.log_prob(point) for point in points]) + ratio)
    log_weights = torch.stack(weights)
    bound = log_weights.logsumexp(0) - math.log(samples)
    return bound, bound - log_weights.mean(0)


def exactness(model: GuidedVAE, q: td.Distribution, samples: int = 1) -> str:
    """What the bound of :func:`evaluate` is to the ELBO: exact, an approximation, or sampled."""
    decoder = model.decoder
    if samples > 1 or not isinstance(decoder, LinearDecoder):
        return "sampled"
    if isinstance(decoder, LinearPrecisionGaussian) and decoder.link == "linear" and not central_moments(q).gaussian:
        return "approximation"
    return "exact"


def _with_bound(decoder: LinearDecoder) -> LinearDecoder:
    """The same decoder, with the most exact log term that its latents allow."""
    if not isinstance(decoder, LinearPrecisionGaussian) or decoder.log_term != "taylor":
        return decoder
    judge = copy.copy(decoder)  # shares the parameters
    judge.log_term = "auto"
    return judge
