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
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import LinearPrecisionGaussian, Tractable, is_tractable
from silentgrad.errors import DomainError, ShapeError
from silentgrad.estimators import Estimator, Exact, integrand_of
from silentgrad.guide import freeze
from silentgrad.latents.families import Family, family_of
from silentgrad.latents.independent import base_of, sum_over_latents
from silentgrad.latents.priors import Prior
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
        encoder: From images to a latent q(z|x); if it has a `family`, latents are built and taken apart by that.
        linear: The linear decoder or another tractable one, or None for a plain VAE.
        nonlinear: The nonlinear decoder, or None for a linear VAE.
        linear_estimator: Of the linear decoder's expectation: exact unless another is to be compared with it.
        estimator: Of the nonlinear decoder's expectation.
        weight: w_lin as a function of the epoch, counted from 1.
        weighting: What w_lin weights: the decoders' "loss" (Algorithm 1) or the "encoder" gradient only (the text).
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
        weight: Schedule | None = None,
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
        if weighting not in ("loss", "encoder"):
            raise DomainError(f'weighting has to be "loss" or "encoder", got {weighting!r}')
        self.encoder, self.linear, self.nonlinear = encoder, linear, nonlinear
        self.linear_estimator = linear_estimator or Exact()
        self.estimator = estimator
        self.weight = weight or constant(1.0)
        self.weighting, self.cutoff, self.kl_weight = weighting, cutoff, kl_weight
        family = getattr(encoder, "family", None)
        self.family = family if isinstance(family, Family) else None
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
        family = self.family_of(q)
        return family.prior().to(family.parameters(q)[0])

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
        divergence = self.prior_of(q).divergence(q).sum()
        w_lin = self.w_lin(epoch)
        w_nl = 1 - w_lin
        linear = nonlinear = None
        terms = []
        if self.linear is not None and w_lin > 0:
            guided, weight = (q, w_lin) if self.weighting == "loss" else (self._scaled(q, w_lin), 1.0)
            expected = self.linear_estimator(guided, integrand_of(self.linear, x))
            linear = -expected.mean()
            terms += [weight * linear, *_auxiliary(self.linear_estimator)]
        if self.nonlinear is not None and (w_nl > 0 or self.weighting == "encoder"):
            sampled, weight = (q, w_nl) if self.weighting == "loss" else (self._scaled(q, w_nl), 1.0)
            assert self.estimator is not None
            expected = self.estimator(sampled, integrand_of(self.nonlinear, x))
            nonlinear = -expected.mean()
            terms += [weight * nonlinear, *_auxiliary(self.estimator)]
        kld = divergence / expected.numel()
        total = sum(terms, start=self.kl_weight * kld)
        return Losses(total, kld, linear, nonlinear)

    def generate(self, count: int) -> td.Distribution:
        """p(x|z) for draws of z from the prior."""
        if self.prior is None:
            raise DomainError("a prior that its encoder does not name has to be given: GuidedVAE(..., prior=...)")
        return self.decoder(self.prior.sample(count))

    def _scaled(self, q: td.Distribution, weight: float) -> td.Distribution:
        return scale_gradient(q, weight, self.family_of(q))

    @property
    def decoder(self) -> Callable[[Tensor], td.Distribution]:
        """The decoder that a trained model is judged by: the nonlinear one if there is one."""
        decoder = self.linear if self.nonlinear is None else self.nonlinear
        assert decoder is not None
        return decoder


def _auxiliary(estimator: Estimator) -> list[Tensor]:
    """The estimator's own loss, if it has one. No weight of the decoders' applies to it."""
    loss = estimator.auxiliary_loss()
    return [] if loss is None else [loss]


def scale_gradient(q: td.Distribution, weight: float, family: Family) -> td.Distribution:
    """The same latent, through which only `weight` times the gradient passes."""

    def scaled(x: Tensor) -> Tensor:
        return weight * x + (1 - weight) * x.detach() if weight else x.detach()

    return family.rebuild(q, [scaled(parameter) for parameter in family.parameters(q)])


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
