"""The gradient's noise: that of the encoder by every estimator that its latents take, and that of the decoder."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis import Decomposition, gradient_bias, gradient_variance
from silentgrad.analysis.products import Every, Gradient, over_draws
from silentgrad.analysis.tally import Tally
from silentgrad.checkup.subject import Subject
from silentgrad.decoders import is_tractable
from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators import RLOO, STL, Averaged, DisARM, Estimator, GumbelSoftmax, ReinMax, Reparameterized
from silentgrad.latents.independent import base_of

BATCHES, BATCH, DRAWS = 8, 32, 12


def name_of(estimator: Estimator) -> str:
    """Return the class of an estimator, and its temperature if it has one."""
    temperature = getattr(estimator, "temperature", None)
    return type(estimator).__name__ + ("" if temperature is None else f"({temperature:g})")


def encoder_noise(subject: Subject, data: Tensor) -> dict[str, Decomposition]:
    """Return the variance of the encoder's gradient by its own estimator, first, and by others that suit its latents.

    Relaxations are measured at a temperature of 0.5 too.
    """
    q, own = subject.encoder(data[:1]), subject.estimator
    usual: list[Estimator] = [Reparameterized(), STL()] if q.has_rsample else [RLOO()]
    if isinstance(base_of(q), td.Bernoulli | td.OneHotCategorical):
        usual = [GumbelSoftmax(0.5, getattr(own, "hard", False)), RLOO(), ReinMax()]
    if isinstance(base_of(q), td.Bernoulli):
        usual.insert(1, DisARM())
    own = own or usual[0]
    estimators = {name_of(one): one for one in (own, *usual)}
    estimators |= {name_of(own): own, f"4 samples of {name_of(own)}": Averaged(own, 4)}
    try:
        with torch.enable_grad():
            return gradient_variance(_measurable(subject), _batches(data), DRAWS, estimators)
    except (DomainError, RuntimeError) as error:  # torch's, where a parameter of q does not come from the encoder
        raise IntractableError(str(error)) from error


def relative_bias(subject: Subject, x: Tensor, estimator: Estimator) -> float | None:
    """Return an estimator's bias as a share of the gradient; None where the truth is too long to enumerate."""
    base = base_of(subject.encoder(x[:1]))
    values = base.event_shape.numel() if isinstance(base, td.OneHotCategorical) else 2
    if values ** base.batch_shape.numel() > 256:
        return None
    with torch.enable_grad():
        return gradient_bias(_measurable(subject), x, {"own": estimator}, draws=1000)["own"].relative


def decoder_snr(subject: Subject, data: Tensor, draws: int = 4) -> float:
    """Return |E g|^2 / Var g of the decoder's gradient, of a batch and one draw of z."""
    parameters, tally = [p for p in subject.decoder.parameters() if p.requires_grad], Tally(draws)

    def gradients(x: Tensor) -> Iterator[Gradient]:
        for z in subject.encoder(x).sample(torch.Size([draws])):
            with torch.enable_grad():
                loss = -subject.decoder.log_prob(x, z).mean()
            found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            yield [gradient.unsqueeze(0) for gradient in found]

    for x in _batches(data) if parameters else []:
        tally.add(*over_draws(gradients(x), Every(lambda gradient: gradient), draws))
    return tally.result([""] * len(parameters), exact=[]).snr if parameters else float("nan")


def _measurable(subject: Subject) -> Any:
    decoder = subject.raw_decoder if is_tractable(subject.raw_decoder) else subject.decoder
    return SimpleNamespace(encoder=subject.encoder, decoder=decoder, prior=subject.prior)


def _batches(data: Tensor) -> list[Tensor]:
    size = min(BATCH, len(data) // BATCHES)
    if size < 2:
        raise IntractableError(f"gradients are compared over {BATCHES} batches of at least two examples")
    return list(data[: BATCHES * size].split(size))
