r"""The guide: Algorithm 1 for a VAE that already exists.

The host keeps its encoder, decoder, sampling and KL divergence. Its reconstruction loss goes through the guide, which
owns a linear decoder and returns, with w the schedule's weight,

.. math:: w\, L_\mathrm{lin}(x, q) + (1 - w)\, L_\mathrm{host},
    \qquad L_\mathrm{lin} = -E_{q(z|x)}[\log p_\mathrm{lin}(x|z)] \text{ in closed form.}

Both have to be in nats per example. Shapes tell most mistakes: one number per example cannot be a sum over the batch. A
scalar does not tell how it was reduced, so the host has to say it; `silentgrad.misuse` compares what it says with the
size of the losses, and looks for other mistakes.

In `eval()` mode the guide gives back the host's own loss: what is validated is the host.

The paper's other weighting, of the encoder's gradient only, needs the host's own sample to be drawn from a latent with
a scaled gradient: `silentgrad.GuidedVAE` has it, a loss that was already computed cannot.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import (
    LinearDecoder,
    LinearGaussian,
    LinearPrecisionGaussian,
    StandardizedGaussian,
    Tractable,
)
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.decoders.precision import Link
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.estimators import Exact
from silentgrad.latents.families import require_one_latent
from silentgrad.latents.independent import shape_of_one
from silentgrad.likelihoods import Bernoulli
from silentgrad.misuse import (
    FirstCall,
    Reductions,
    Watch,
    can_start,
    is_location,
    require_data,
    require_tensor,
    warn_of_start,
)
from silentgrad.objective import Term, given_decoder
from silentgrad.schedules import LinearDecay, Schedule, linear_decay, require_schedule
from silentgrad.side_info import SideInfo
from silentgrad.tracing import transformed, underlying

Reduction = Literal["none", "mean", "sum"]


class Guide(nn.Module):
    """A tractable decoder that guides the encoder of any VAE with gradients that have no sampling noise.

    Its parameters go to the optimizer beside the host's. As a submodule of the host it is in the host's `state_dict`,
    and `del host.guide` takes it out again.

    Args:
        decoder: Any tractable decoder; :class:`SilentGuide` makes a linear one.
        schedule: w as a function of the epoch or the step, counted from 1, such as `linear_decay(steps=1000)`.
        reduction: What the host's loss is: "none", one number per example; "mean" or "sum" of those over the batch.
        check: Whether the first call refuses, or warns of, numbers that look like a misuse's, and a later one warns of
            parameters that no optimizer moves; see `silentgrad.misuse`.
        allow_approximation: Whether the decoder's expectation may be an approximation, as that of the linear link is
            for latents that are not Gaussian.
    """

    def __init__(
        self,
        decoder: Tractable,
        schedule: Schedule,
        reduction: Reduction = "none",
        *,
        check: bool = True,
        allow_approximation: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in get_args(Reduction):
            raise DomainError(f"reduction has to be one of {', '.join(get_args(Reduction))}; got {reduction!r}")
        require_schedule(schedule)
        self.decoder = decoder
        self.estimator = Exact(allow_approximation)
        self.schedule, self.reduction = schedule, reduction
        self._check, self._unchecked = check, check
        self._reductions, self._watch = Reductions(), Watch()
        self._start_spread: float | None = None

    def forward(
        self,
        x: Tensor,
        q: td.Distribution,
        nll: Tensor,
        *,
        epoch: int | None = None,
        step: int | None = None,
        offset: Tensor | None = None,
        covariates: Tensor | None = None,
        mask: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> Tensor:
        """Return the annealed reconstruction loss, reduced as the host's; once w is 0, and in `eval()`, the host's own.

        Args:
            x: Examples `(batch, *event_shape)`.
            q: Their latents, from the host's encoder.
            nll: The host's reconstruction loss in nats, without the KL divergence.
            epoch: Where the schedule stands, counted from 1; or
            step: the same, if the schedule is over steps.
            offset: Side information, as in the decoder's `expected_log_prob`, and so are the arguments that follow.
            covariates: Known numbers of each example.
            mask: Which entries were observed. The host's own loss has to leave the others out too.
            scale: Known standard deviation of each entry.
        """
        if not self.training:
            return nll
        w = self.weight(epoch, step)
        if w == 0:
            return nll
        require_tensor("x", x)
        require_tensor("nll", nll)
        require_one_latent(q)
        decoder = given_decoder(self.decoder, SideInfo(offset, covariates, mask, scale))
        silent = Term(decoder, self.estimator).loss(x, q)
        self._require_reduction(nll, silent, x)
        if not torch.compiler.is_compiling():
            self._require_use(nll, silent, x, mask, epoch, step)
        return w * self._reduced(silent) + (1 - w) * nll

    if TYPE_CHECKING:  # nn.Module's returns Any
        __call__ = forward

    def weight(self, epoch: int | None = None, step: int | None = None) -> float:
        """Return w, the weight of the tractable decoder's loss, in an epoch or at a step."""
        count = _either(epoch, step)
        if count < 1:
            raise DomainError(f"epochs and steps are counted from 1, got {count}")
        counted = "steps" if epoch is None else "epochs"
        if isinstance(self.schedule, LinearDecay) and self.schedule.counted not in (None, counted):
            unit = str(self.schedule.counted)
            raise DomainError(f"the schedule is over {unit}, and was asked at one of the {counted}: pass {unit[:-1]}=")
        w = self.schedule(count)
        if callable(w):
            raise DomainError("the schedule gives a function, no weight: call it first, as in linear_decay(steps=1000)")
        if not 0 <= w <= 1:
            raise DomainError(f"the schedule has to give a weight between 0 and 1, got {w} at {count}")
        return w

    def _reduced(self, silent: Tensor) -> Tensor:
        if self.reduction == "none":
            return silent
        return silent.mean() if self.reduction == "mean" else silent.sum()

    def _require_reduction(self, nll: Tensor, silent: Tensor, x: Tensor) -> None:
        expected = silent.shape if self.reduction == "none" else torch.Size()
        if nll.shape != expected:
            raise ShapeError(
                f"nll has shape {tuple(nll.shape)}; with reduction={self.reduction!r} it has to be {tuple(expected)}. "
                "Sum it over the outputs of an example. If it is averaged over the batch, SilentGuide(..., "
                'reduction="mean"); if it is summed, "sum"'
            )
        if silent.numel() == 0 and self.reduction == "mean":
            raise ShapeError(f"x of shape {tuple(x.shape)} holds no examples: there is no mean over them")

    def _require_use(
        self, nll: Tensor, silent: Tensor, x: Tensor, mask: Tensor | None, epoch: int | None, step: int | None
    ) -> None:
        if underlying(nll).isnan().any():
            raise DomainError("the host's loss nll is NaN")
        if not self._check or silent.numel() == 0 or transformed():
            return
        if self._unchecked:
            call = FirstCall(self.decoder, self.reduction, x.detach(), mask, nll.detach(), silent.detach())
            call.require_plausible(_either(epoch, step) == 1, self._start_spread, self._starts_at_random())
            self._unchecked = False
        self._reductions.call(self.reduction, silent.numel(), nll)
        self._watch.call(self, epoch)

    def _starts_at_random(self) -> bool:
        """Return whether the decoder is known to have been neither started nor loaded nor trained."""
        return False


def _either(epoch: int | None, step: int | None) -> int:
    if epoch is not None and step is None:
        return epoch
    if step is not None and epoch is None:
        return step
    raise DomainError("say where the schedule stands: pass epoch= or step=, counted from 1, and not both")


class SilentGuide(Guide):
    """A guide with a linear decoder: a Gaussian of learned variance unless an option says otherwise.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        schedule: w as a function of the epoch or the step, as in `Guide`, and so are `reduction` and `check`.
        reduction: What the host's loss is.
        link: Learned precision that depends on z by this link, as in `LinearPrecisionGaussian`. If no option is given,
            the learned variance does not depend on z, as in `StandardizedGaussian`.
        variance: Fixed variance instead, as in `LinearGaussian`.
        likelihood: Another likelihood instead, as in `LinearLikelihood`.
        check: Whether misuses are looked for.
        allow_approximation: Whether the decoder's expectation may be an approximation, as that of the linear link is
            for latents that are not Gaussian, and that of a likelihood by plain quadrature.

    Example:
        >>> import silentgrad as sg
        >>> guide = sg.SilentGuide(2, (28, 28), sg.linear_decay(epochs=20))
        >>> x, q = torch.rand(5, 28, 28), td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> guide.init_from_data(x)
        >>> guide(x, q, nll=torch.full((5,), 700.0), epoch=1).shape
        torch.Size([5])
    """

    decoder: LinearDecoder

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        schedule: Schedule,
        reduction: Reduction = "none",
        *,
        link: Link | None = None,
        variance: float | Tensor | None = None,
        likelihood: Callable[[Tensor], td.Distribution] | None = None,
        check: bool = True,
        allow_approximation: bool = False,
    ) -> None:
        if sum(option is not None for option in (link, variance, likelihood)) > 1:
            raise DomainError("link, variance and likelihood exclude each other: each chooses the linear decoder")
        decoder: LinearDecoder
        if variance is not None:
            decoder = LinearGaussian(latent_dim, event_shape, variance)
        elif likelihood is not None:
            decoder = LinearLikelihood(latent_dim, event_shape, likelihood)
        elif link is not None:
            decoder = LinearPrecisionGaussian(latent_dim, event_shape, link)
        else:
            decoder = StandardizedGaussian(latent_dim, event_shape)
        super().__init__(decoder, schedule, reduction, check=check, allow_approximation=allow_approximation)
        self._drawn = decoder.affine.bias.detach().clone()

    @classmethod
    def for_model(
        cls,
        q_example: td.Distribution,
        x_example: Tensor,
        *,
        total_steps: int | None = None,
        total_epochs: int | None = None,
        **options: Any,
    ) -> "SilentGuide":
        """Return a guide that fits a model's latents and data, is started from them, and ends in a quarter of training.

        Its likelihood is Bernoulli for an x of zeros and ones, and a Gaussian of learned variance for real numbers.

        Args:
            q_example: Latents of a batch.
            x_example: Training examples as the model sees them, a few hundred or more: the start is made from them.
            total_steps: Number of steps of the whole training; the guide is then asked with `step=`. Or
            total_epochs: that of epochs, and it is asked with `epoch=`.
            options: Those of `SilentGuide` from `reduction` on. A host whose loss is a squared error, summed, has
                `variance=0.5`, half of it `variance=1.0`.

        Example:
            >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
            >>> guide = SilentGuide.for_model(q, torch.rand(100, 28, 28), total_steps=4000)
            >>> guide.weight(step=1), guide.weight(step=501), guide.weight(step=1001)
            (1.0, 0.5, 0.0)
        """
        require_one_latent(q_example)
        require_data(x_example)
        if (total_steps is None) == (total_epochs is None):
            raise DomainError("say how long training is: total_steps=... or total_epochs=...")
        if not {"link", "variance", "likelihood"} & options.keys() and bool((x_example == x_example.round()).all()):
            if x_example.min() < 0 or x_example.max() > 1:
                raise DomainError(
                    "x are whole numbers: divide pixels by 255, or say what counts are, "
                    "likelihood=silentgrad.likelihoods.Poisson()"
                )
            options["likelihood"] = Bernoulli()
        length = {"steps": (total_steps or 0) / 4} if total_epochs is None else {"epochs": total_epochs / 4}
        guide = cls(shape_of_one(q_example).numel(), x_example.shape[1:], linear_decay(**length), **options)
        guide = guide.to(x_example)
        guide.init_from_data(x_example)
        return guide

    def init_from_data(
        self,
        data: Tensor,
        method: str = "ppca",
        prior: td.Distribution | None = None,
        *,
        offset: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Start the linear decoder from data `(examples, *event_shape)`, as its `init_from_data` does.

        An offset and a mask are for a guide that was built with a likelihood.
        """
        require_data(data)
        if isinstance(self.decoder, LinearLikelihood):
            self.decoder.init_from_data(data, method, prior, offset=offset, mask=mask)
        elif offset is not None or mask is not None:
            raise IntractableError("a start with an offset or a mask is for a guide built with likelihood=...")
        else:
            self.decoder.init_from_data(data, method, prior)
        has_unit = self._check and mask is None and is_location(self.decoder)
        self._start_spread = (float(data.std(correction=0)) or None) if has_unit else None
        if self._check:
            warn_of_start(data, self.decoder.latent_dim if method == "ppca" else 0, has_unit)

    def _starts_at_random(self) -> bool:
        bias = self.decoder.affine.bias
        return can_start(self.decoder) and not self._drawn.is_meta and torch.equal(self._drawn.to(bias), bias)


def freeze(encoder: nn.Module) -> nn.Module:
    """Stop an encoder from learning, its batch statistics too: the cut-off of Algorithm 1.

    `train()` on the host would wake the batch statistics again: call this after it, in every epoch from the cut-off on.
    """
    if isinstance(encoder, Guide):
        raise DomainError(
            "a frozen guide would be off, as in eval(): one that is not to learn is requires_grad_(False)"
        )
    return encoder.requires_grad_(False).eval()
