r"""The guide: Algorithm 1 for a VAE that already exists.

The host keeps its encoder, decoder, sampling and KL divergence. Its reconstruction loss goes through the guide, which
owns a linear decoder and returns, with w the schedule's weight,

.. math:: w\, L_\mathrm{lin}(x, q) + (1 - w)\, L_\mathrm{host},
    \qquad L_\mathrm{lin} = -E_{q(z|x)}[\log p_\mathrm{lin}(x|z)] \text{ in closed form.}

Both have to be in nats per example. Shapes tell most mistakes: one number per example cannot be a sum over the batch. A
scalar does not tell how it was reduced, so the host has to say it. What it says can be wrong, and so can the unit: many
hosts average over outputs. About a nat per output is the natural size of an untrained host's loss, more if its variance
is fixed and small. So the first call refuses, with K outputs,

- a "mean" above 5 K, and :math:`5 |x|^2` / variance if the guide's variance is fixed: it looks like a sum over the
  batch;
- any loss that per example is below min(10, K / 20), which looks like a mean over outputs (a "sum", over the batch).

Mistakes can pass in batches of less than about eight, with few outputs, or with a host that is already trained; those
that change the shape cannot, so one number per example is the safest loss.

The paper's other weighting, of the encoder's gradient only, needs the host's own sample to be drawn from a latent with
a scaled gradient: `silentgrad.GuidedVAE` has it, a loss that was already computed cannot.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.beside import Beside
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
from silentgrad.objective import Term, given_decoder
from silentgrad.schedules import LinearDecay, Schedule
from silentgrad.tracing import transformed, underlying

Reduction = Literal["none", "mean", "sum"]


class Guide(nn.Module):
    """A tractable decoder that guides the encoder of any VAE with gradients that have no sampling noise.

    Its parameters go to the optimizer beside the host's. As a submodule of the host it is in the host's `state_dict`,
    and `del host.guide` takes it out again.

    Args:
        decoder: Any tractable decoder; :class:`SilentGuide` makes a linear one.
        schedule: w as a function of the epoch or the step, counted from 1, such as `linear_decay(steps=1000)` from
            `silentgrad.schedules`.
        reduction: What the host's loss is: "none", one number per example; "mean" or "sum" of those over the batch.
        check: Whether the first call refuses a loss whose size looks like another reduction's.
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
        self.decoder = decoder
        self.estimator = Exact(allow_approximation)
        self.schedule, self.reduction, self._unchecked = schedule, reduction, check

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
        deviation: Tensor | None = None,
    ) -> Tensor:
        """The annealed reconstruction loss, reduced as the host's; once w is 0, the host's own.

        Args:
            x: Examples `(batch, *event_shape)`.
            q: Their latents, from the host's encoder.
            nll: The host's reconstruction loss in nats, without the KL divergence.
            epoch: Where the schedule stands, counted from 1; or
            step: the same, if the schedule is over steps.
            offset: What stands beside x, as in the decoder's `expected_log_prob`, and so are the arguments that follow.
            covariates: Known numbers of each example.
            mask: Which entries were observed. The host's own loss has to leave the others out too.
            deviation: Known standard deviation of each entry.
        """
        w = self.weight(epoch, step)
        if w == 0:
            return nll
        decoder = given_decoder(self.decoder, Beside(offset, covariates, mask, deviation))
        silent = Term(decoder, self.estimator).loss(x, q)
        self._require_reduction(nll, silent, x, mask)
        return w * self._reduced(silent) + (1 - w) * nll

    def weight(self, epoch: int | None = None, step: int | None = None) -> float:
        """w, the weight of the tractable decoder's loss, in an epoch or at a step."""
        count = _either(epoch, step)
        if count < 1:
            raise DomainError(f"epochs and steps are counted from 1, got {count}")
        counted = "epochs"
        if epoch is None:
            counted = "steps"
        if isinstance(self.schedule, LinearDecay) and self.schedule.counted not in (None, counted):
            raise DomainError(f"the schedule is over {self.schedule.counted}, and was asked at one of the {counted}")
        w = self.schedule(count)
        if not 0 <= w <= 1:
            raise DomainError(f"the schedule has to give a weight between 0 and 1, got {w} at {count}")
        return w

    def _reduced(self, silent: Tensor) -> Tensor:
        if self.reduction == "none":
            return silent
        if self.reduction == "mean":
            return silent.mean()
        return silent.sum()

    def _require_reduction(self, nll: Tensor, silent: Tensor, x: Tensor, mask: Tensor | None) -> None:
        expected = torch.Size()
        if self.reduction == "none":
            expected = silent.shape
        if nll.shape != expected:
            raise ShapeError(
                f"nll has shape {tuple(nll.shape)}; with reduction={self.reduction!r} it has to be {tuple(expected)}. "
                "Sum it over the outputs of an example, and say by `reduction` whether it is reduced over the batch too"
            )
        if silent.numel() == 0 and self.reduction == "mean":
            raise ShapeError(f"x of shape {tuple(x.shape)} holds no examples: there is no mean over them")
        if torch.compiler.is_compiling():
            return
        if underlying(nll).isnan().any():
            raise DomainError("the host's loss nll is NaN")
        if self._unchecked and silent.numel() > 0 and not transformed():
            self._require_size(nll.detach(), x, mask, silent.numel())
            self._unchecked = False

    def _require_size(self, nll: Tensor, x: Tensor, mask: Tensor | None, batch: int) -> None:
        outputs = x.numel() / batch
        if mask is not None:
            x = torch.where(mask, x, 0)
            outputs = float(mask.sum()) / batch
        size = float(nll.abs().mean())
        averaged = "outputs"
        if self.reduction == "sum":
            size /= batch
            averaged = "batch or the outputs"
        largest = 5.0 * outputs
        if isinstance(self.decoder, LinearGaussian):
            largest += float(5 * (x.square() / self.decoder.variance).sum() / batch)
        if self.reduction == "mean" and size > largest:
            suspicion = "a sum over the batch: then say reduction='sum'"
        elif size < min(10, outputs / 20):
            suspicion = f"a mean over the {averaged}: a log-likelihood is a sum over outputs"
        else:
            return
        raise DomainError(
            f"nll is {size:.3g} per example of {outputs:g} outputs, where about a nat each is usual. It looks like "
            f"{suspicion}. If it is right as it is, build the guide with check=False"
        )


def _either(epoch: int | None, step: int | None) -> int:
    if epoch is not None and step is None:
        return epoch
    if step is not None and epoch is None:
        return step
    raise DomainError("say where the schedule stands: either epoch=... or step=...")


class SilentGuide(Guide):
    """A guide with a linear decoder: a Gaussian of learned variance unless an option says otherwise.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        schedule: w as a function of the epoch or the step, counted from 1, such as `linear_decay(steps=1000)` from
            `silentgrad.schedules`.
        reduction: What the host's loss is: "none", one number per example; "mean" or "sum" of those over the batch.
        link: Learned precision that depends on z by this link, as in `LinearPrecisionGaussian`. If no option is given,
            the learned variance does not depend on z, as in `StandardizedGaussian`.
        variance: Fixed variance instead, as in `LinearGaussian`.
        likelihood: Another likelihood instead, as in `LinearLikelihood`.
        check: Whether the first call refuses a loss whose size looks like another reduction's.
        allow_approximation: Whether the decoder's expectation may be an approximation, as that of the linear link is
            for latents that are not Gaussian, and that of a likelihood by plain quadrature.

    Example:
        >>> from silentgrad.schedules import linear_decay
        >>> guide = SilentGuide(2, (28, 28), linear_decay(epochs=20))
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> guide(torch.zeros(5, 28, 28), q, nll=torch.full((5,), 700.0), epoch=1).shape
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
        chosen = 0
        for option in (link, variance, likelihood):
            if option is not None:
                chosen += 1
        if chosen > 1:
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

    def start_from(
        self,
        data: Tensor,
        method: str = "ppca",
        prior: td.Distribution | None = None,
        *,
        offset: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Starts the linear decoder from data `(examples, *event_shape)`, as its `init_from_data` does.

        An offset and a mask are for a guide that was built with a likelihood.
        """
        if isinstance(self.decoder, LinearLikelihood):
            self.decoder.init_from_data(data, method, prior, offset=offset, mask=mask)
            return
        if offset is not None or mask is not None:
            raise IntractableError("a start with an offset or a mask is for a guide built with likelihood=...")
        self.decoder.init_from_data(data, method, prior)


def freeze(encoder: nn.Module) -> nn.Module:
    """Stops an encoder from learning, its batch statistics too: the cut-off of Algorithm 1.

    `train()` on the host would wake the batch statistics again: call this after it, in every epoch from the cut-off on.
    """
    return encoder.requires_grad_(False).eval()
