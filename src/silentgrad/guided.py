r"""The guided VAE: a shared encoder, a linear decoder with silent gradients, a nonlinear decoder, and Algorithm 1.

With :math:`w = \max(0, 1 - n \lambda)` in epoch n, Algorithm 1 of the paper descends

.. math:: w\, L_\mathrm{lin} + (1 - w)\, L_\mathrm{nl} + D_\mathrm{KL}(q(z|x) \,\|\, p(z)),

which weights the decoders' own losses too. The paper's text weights only what reaches the encoder, so that both
decoders learn at full rate for as long as they take part: `weighting="encoder"`. With w held at 1 that is the paper's
"None + SG": the encoder follows the linear decoder alone, and the nonlinear decoder learns on whatever latents it is
given.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, get_args

from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import Tractable
from silentgrad.errors import DomainError, ShapeError
from silentgrad.estimators import Estimator, Exact
from silentgrad.guide import freeze
from silentgrad.latents.families import family_of, standard_prior
from silentgrad.latents.priors import Prior
from silentgrad.objective import Objective, Term, Weighting, family_of_encoder
from silentgrad.schedules import LinearDecay, Schedule, constant, require_schedule
from silentgrad.side_info import NOTHING, SideInfo


class Losses(NamedTuple):
    """Nats per image, averaged over the batch; a decoder that did not take part has None."""

    total: Tensor
    kld: Tensor
    tractable: Tensor | None
    nonlinear: Tensor | None


class GuidedVAE(nn.Module):
    """A VAE whose encoder a linear decoder guides with gradients that have no sampling noise.

    Args:
        encoder: From images to a latent q(z|x); if it has a `family`, latents are built and taken apart by that.
        tractable: The tractable decoder, such as a linear one or a circuit; None for a plain VAE.
        nonlinear: The nonlinear decoder, or None for a VAE whose tractable decoder is the model.
        tractable_estimator: Estimator of the tractable decoder's expectation: exact unless another is to be compared
            with it.
        estimator: Estimator of the nonlinear decoder's expectation.
        schedule: The weight of the tractable decoder as a function of the epoch, counted from 1; it may be asked at
            fractions, within an epoch.
        weighting: What the weights scale: the decoders' "loss" (Algorithm 1) or the "encoder" gradient only (the text).
        cutoff: The epoch at which the encoder is frozen.
        kl_weight: Weight of the KL divergence, a number or a function of the epoch, which is asked at infinity for what
            it ends with; 1 makes a lower bound.
        prior: The prior p(z); that of the latents' family if absent.
    """

    def __init__(
        self,
        encoder: nn.Module,
        tractable: Tractable | None = None,
        nonlinear: nn.Module | None = None,
        tractable_estimator: Estimator | None = None,
        estimator: Estimator | None = None,
        schedule: Schedule | None = None,
        weighting: Weighting = "loss",
        cutoff: int | None = None,
        kl_weight: float | Schedule = 1.0,
        prior: Prior | None = None,
    ) -> None:
        super().__init__()
        if tractable is None and nonlinear is None:
            raise DomainError("a VAE needs a decoder: tractable, nonlinear or both")
        if nonlinear is not None and estimator is None:
            raise DomainError("a nonlinear decoder needs an estimator, such as Reparameterized()")
        if weighting not in get_args(Weighting):
            raise DomainError(f'weighting has to be "loss" or "encoder", got {weighting!r}')
        if schedule is not None:
            require_schedule(schedule)
        if isinstance(schedule, LinearDecay) and schedule.counted == "steps":
            raise DomainError("a GuidedVAE is told the epoch, and its schedule counts steps: linear_decay(epochs=...)")
        self.encoder, self.tractable, self.nonlinear = encoder, tractable, nonlinear
        self.tractable_estimator = tractable_estimator or Exact()
        self.estimator = estimator
        self.schedule = schedule or constant(1.0)
        self.weighting, self.cutoff = weighting, cutoff
        self.kl_weight = kl_weight if callable(kl_weight) else constant(kl_weight)
        self.family = family_of_encoder(encoder)
        self.prior = self.family.prior() if prior is None and self.family is not None else prior

    def prior_of(self, q: td.Distribution) -> Prior:
        """Return the prior that stands against a latent."""
        return standard_prior(q, self.family or family_of(q)) if self.prior is None else self.prior

    def weight(self, epoch: float | None) -> float:
        """Return the weight of the tractable decoder in an epoch, counted from 1; the nonlinear one has the rest.

        Without an epoch, the decoder that the model is judged by has the whole weight.
        """
        if self.nonlinear is None:
            return 1.0
        if self.tractable is None or epoch is None:
            return 0.0
        return self.schedule(epoch)

    def on_epoch(self, epoch: int) -> None:
        """Change what does between epochs: temperatures, and the encoder, which freezes at the cut-off."""
        for estimator in (self.tractable_estimator, self.estimator):
            if estimator is not None:
                estimator.on_epoch(epoch)
        if self.cutoff is not None and epoch >= self.cutoff:
            freeze(self.encoder)

    def forward(
        self, x: Tensor, epoch: float, side_info: SideInfo = NOTHING, example_weights: Tensor | None = None
    ) -> Losses:
        """Return what Algorithm 1 takes a gradient step on, for a batch in an epoch counted from 1.

        Args:
            x: Examples; what the encoder sees where an entry is missing is whatever stands there.
            epoch: The epoch, counted from 1.
            side_info: Side information of the examples, for the decoders, and for an encoder that has a method `given`.
            example_weights: How much each example counts, `(batch,)`; all the same if absent.
        """
        if x.numel() == 0:
            raise ShapeError(f"x of shape {tuple(x.shape)} holds no examples: there is no loss to average over them")
        q = self.encode(x, side_info)  # stats <- E(x)
        objective = self.objective(q, epoch)
        total, kld, losses = objective(x, q, side_info, example_weights)  # L_total <- w_lin L_lin + w_nl L_nl + D_KL
        return Losses(total, kld, losses.get("tractable"), losses.get("nonlinear"))

    def encode(self, x: Tensor, side_info: SideInfo = NOTHING) -> td.Distribution:
        """Return q(z|x) of examples; an encoder with a method `given` sees their side information."""
        given = getattr(self.encoder, "given", None)
        encoder: Callable[[Tensor], td.Distribution] = given(side_info) if side_info and given else self.encoder
        return encoder(x)

    def objective(self, q: td.Distribution, epoch: float | None) -> Objective:
        """Return the objective of an epoch, counted from 1, for latents q; without one, that which schedules end in."""
        w_lin = self.weight(epoch)  # w_lin <- max(0, 1 - n lambda)
        w_nl = 1 - w_lin
        terms: dict[str, Term] = {}
        if self.tractable is not None and w_lin > 0:
            terms["tractable"] = Term(self.tractable, self.tractable_estimator, w_lin)  # L_lin <- -D_lin(stats, x)
        if self.nonlinear is not None and (w_nl > 0 or self.weighting == "encoder"):
            assert self.estimator is not None
            terms["nonlinear"] = Term(self.nonlinear, self.estimator, w_nl)  # L_nl <- -log p_nl(x|z)
        kl_weight = self.kl_weight(math.inf if epoch is None else epoch)
        return Objective(terms, self.prior_of(q), self.family, kl_weight, self.weighting)

    def generate(self, count: int) -> td.Distribution:
        """Return p(x|z) for draws of z from the prior."""
        if self.prior is None:
            raise DomainError("a prior that its encoder does not name has to be given: GuidedVAE(..., prior=...)")
        return self.decoder(self.prior.sample(count))

    @property
    def decoder(self) -> Callable[[Tensor], td.Distribution]:
        """The decoder that a trained model is judged by, the nonlinear one if there is one."""
        decoder = self.tractable if self.nonlinear is None else self.nonlinear
        assert decoder is not None
        return decoder
