r"""The guided VAE: a shared encoder, a linear decoder with silent gradients, a nonlinear decoder, and Algorithm 1.

With :math:`w = \max(0, 1 - n \lambda)` in epoch n, Algorithm 1 of the paper descends

.. math:: w\, L_\mathrm{lin} + (1 - w)\, L_\mathrm{nl} + D_\mathrm{KL}(q(z|x) \,\|\, p(z)),

which weights the decoders' own losses too. The paper's text weights only what reaches the encoder, so that both
decoders learn at full rate for as long as they take part: `weighting="encoder"`. With w held at 1 that is the paper's
"None + SG": the encoder follows the linear decoder alone, and the nonlinear decoder learns on whatever latents it is
given.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import LinearPrecisionGaussian, Tractable, is_tractable
from silentgrad.errors import DomainError, ShapeError
from silentgrad.estimators import Estimator, Exact
from silentgrad.guide import freeze
from silentgrad.latents.families import Family, family_of
from silentgrad.latents.independent import base_of, sum_over_latents
from silentgrad.latents.priors import Prior
from silentgrad.objective import Objective, Term, Weighting, family_of_encoder, standard_prior
from silentgrad.schedules import Schedule, constant


class Losses(NamedTuple):
    """Nats per image, averaged over the batch; a decoder that did not take part has None."""

    total: Tensor
    kld: Tensor
    linear: Tensor | None
    nonlinear: Tensor | None


class GuidedVAE(nn.Module):
    """A VAE whose encoder a linear decoder guides with gradients that have no sampling noise.

    Args:
        encoder: From images to a latent q(z|x); if it has a `family`, latents are built and taken apart by that.
        linear: The linear decoder or another tractable one, or None for a plain VAE.
        nonlinear: The nonlinear decoder, or None for a linear VAE.
        linear_estimator: Of the linear decoder's expectation: exact unless another is to be compared with it.
        estimator: Of the nonlinear decoder's expectation.
        schedule: The weight of the linear decoder as a function of the epoch, counted from 1.
        weighting: What the weights scale: the decoders' "loss" (Algorithm 1) or the "encoder" gradient only (the text).
        cutoff: The epoch at which the encoder is frozen.
        kl_weight: Of the KL divergence; 1 makes the objective a lower bound.
        prior: The prior p(z); that of the latents' family if absent.
    """

    def __init__(
        self,
        encoder: nn.Module,
        linear: Tractable | None = None,
        nonlinear: nn.Module | None = None,
        linear_estimator: Estimator | None = None,
        estimator: Estimator | None = None,
        schedule: Schedule | None = None,
        weighting: Weighting = "loss",
        cutoff: int | None = None,
        kl_weight: float = 1.0,
        prior: Prior | None = None,
    ) -> None:
        super().__init__()
        if linear is None and nonlinear is None:
            raise DomainError("a VAE needs a decoder: linear, nonlinear or both")
        if nonlinear is not None and estimator is None:
            raise DomainError("a nonlinear decoder needs an estimator, such as Reparameterized()")
        if weighting not in get_args(Weighting):
            raise DomainError(f'weighting has to be "loss" or "encoder", got {weighting!r}')
        self.encoder, self.linear, self.nonlinear = encoder, linear, nonlinear
        self.linear_estimator = linear_estimator or Exact()
        self.estimator = estimator
        self.schedule = schedule or constant(1.0)
        self.weighting, self.cutoff, self.kl_weight = weighting, cutoff, kl_weight
        self.family = family_of_encoder(encoder)
        if prior is None and self.family is not None:
            prior = self.family.prior()
        self.prior = prior

    def family_of(self, q: td.Distribution) -> Family:
        """The family of the encoder's latents; a foreign encoder's is known by its latents' distribution."""
        return family_of(q) if self.family is None else self.family

    def prior_of(self, q: td.Distribution) -> Prior:
        """The prior that stands against a latent."""
        if self.prior is not None:
            return self.prior
        return standard_prior(q, self.family_of(q))

    def weight(self, epoch: int | None) -> float:
        """The weight of the linear decoder in an epoch, counted from 1; the nonlinear one has the rest.

        Without an epoch, the decoder that the model is judged by has the whole weight.
        """
        if self.nonlinear is None:
            return 1.0
        if self.linear is None or epoch is None:
            return 0.0
        return self.schedule(epoch)

    def on_epoch(self, epoch: int) -> None:
        """What changes between epochs: temperatures, and the encoder's freezing at the cut-off."""
        for estimator in (self.linear_estimator, self.estimator):
            if estimator is not None:
                estimator.on_epoch(epoch)
        if self.cutoff is not None and epoch >= self.cutoff:
            freeze(self.encoder)

    def forward(self, x: Tensor, epoch: int) -> Losses:
        """What Algorithm 1 takes a gradient step on, for a batch in an epoch counted from 1."""
        if x.numel() == 0:
            raise ShapeError(f"x of shape {tuple(x.shape)} holds no examples: there is no loss to average over them")
        q = self.encoder(x)  # stats <- E(x)
        total, kld, losses = self.objective(q, epoch)(x, q)  # L_total <- w_lin L_lin + w_nl L_nl + D_KL
        return Losses(total, kld, losses.get("linear"), losses.get("nonlinear"))

    def objective(self, q: td.Distribution, epoch: int | None) -> Objective:
        """The objective of an epoch, counted from 1, for latents q; without an epoch, as for :meth:`weight`."""
        w_lin = self.weight(epoch)  # w_lin <- max(0, 1 - n lambda)
        w_nl = 1 - w_lin
        terms: dict[str, Term] = {}
        if self.linear is not None and w_lin > 0:
            terms["linear"] = Term(self.linear, self.linear_estimator, w_lin)  # L_lin <- -D_lin(stats, x)
        if self.nonlinear is not None and (w_nl > 0 or self.weighting == "encoder"):
            assert self.estimator is not None
            terms["nonlinear"] = Term(self.nonlinear, self.estimator, w_nl)  # L_nl <- -log p_nl(x|z)
        return Objective(terms, self.prior_of(q), self.family, self.kl_weight, self.weighting)

    def generate(self, count: int) -> td.Distribution:
        """p(x|z) for draws of z from the prior."""
        if self.prior is None:
            raise DomainError("a prior that its encoder does not name has to be given: GuidedVAE(..., prior=...)")
        return self.decoder(self.prior.sample(count))

    @property
    def decoder(self) -> Callable[[Tensor], td.Distribution]:
        """The decoder that a trained model is judged by: the nonlinear one if there is one."""
        decoder = self.linear if self.nonlinear is None else self.nonlinear
        assert decoder is not None
        return decoder


class Evaluation(NamedTuple):
    """Sums over a batch: the bound in nats and the KL divergence; that of each latent; and p(x|z) for a draw of z.

    The bound is the ELBO, or the importance-weighted one of several samples; `gap` is by how much the latter exceeds
    the ELBO of the same samples.
    """

    elbo: Tensor
    kld: Tensor
    kld_per_latent: Tensor
    gap: Tensor
    likelihood: td.Distribution


@torch.no_grad()
def evaluate(model: GuidedVAE, x: Tensor, samples: int = 1, noise: float = 0.0) -> Evaluation:
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
    """
    points = (x,) if noise == 0 else (x - noise, x + noise)
    q = model.encoder(x)
    prior = model.prior_of(q)
    kld = prior.divergence(q)
    likelihood = model.decoder(q.sample())
    gap = torch.zeros(())
    if samples > 1:
        bound, gap = _importance_weighted(model.decoder, points, q, prior, samples)
    elif is_tractable(model.decoder):
        bound = _mean([_closed_form(model.decoder, point, q) for point in points]) - kld
    else:
        bound = _mean([likelihood.log_prob(point) for point in points]) - kld
    return Evaluation(bound.sum(), kld.sum(), prior.divergence_per_latent(q).sum(0), gap.sum(), likelihood)


def _mean(numbers: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(numbers)).mean(0)


def _importance_weighted(
    decoder: Callable[[Tensor], td.Distribution],
    points: Sequence[Tensor],
    q: td.Distribution,
    prior: Prior,
    samples: int,
) -> tuple[Tensor, Tensor]:
    """log of the mean of p(x, z) / q(z|x) over samples, and what it has beyond the mean of the log; one per example."""
    weights = []
    for _ in range(samples):
        z = q.sample()
        ratio = prior.log_prob(z) - sum_over_latents(base_of(q).log_prob(z), z.shape[:1])
        likelihood = decoder(z)
        weights.append(_mean([likelihood.log_prob(point) for point in points]) + ratio)
    log_weights = torch.stack(weights)
    bound = log_weights.logsumexp(0) - math.log(samples)
    return bound, bound - log_weights.mean(0)


def exactness(model: GuidedVAE, q: td.Distribution, samples: int = 1) -> str:
    """What the bound of :func:`evaluate` is to the ELBO: exact, a lower bound, an approximation, or sampled."""
    decoder = model.decoder
    if samples > 1 or not is_tractable(decoder):
        return "sampled"
    if isinstance(decoder, LinearPrecisionGaussian):
        return decoder.exactness(q, log_term="auto")
    return decoder.exactness(q)


def _closed_form(decoder: Tractable, x: Tensor, q: td.Distribution) -> Tensor:
    """E_q[log p(x|z)] in the most exact form that the latents allow, whichever log term the decoder is trained with."""
    if isinstance(decoder, LinearPrecisionGaussian):
        return decoder.expected_log_prob(x, q, log_term="auto")
    return decoder.expected_log_prob(x, q)
