"""The gradient's noise: that of the encoder by every estimator that its latents take, and that of the decoder."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis import Decomposition, gradient_bias, gradient_variance
from silentgrad.analysis.products import difference, squared_norms
from silentgrad.analysis.tally import Tally
from silentgrad.checkup.subject import Subject
from silentgrad.decoders import is_tractable
from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators import RLOO, STL, Averaged, DisARM, Estimator, GumbelSoftmax, ReinMax, Reparameterized
from silentgrad.latents.independent import base_of

BATCHES, BATCH, DRAWS = 8, 32, 12


def estimators_for(q: td.Distribution, own: Estimator | None) -> dict[str, Estimator]:
    """Return the estimator that a model trains with, first, and others that suit its latents."""
    usual: list[Estimator] = [RLOO()]
    if isinstance(base_of(q), td.Bernoulli):
        usual = [GumbelSoftmax(), DisARM(), RLOO(), ReinMax()]
    elif isinstance(base_of(q), td.OneHotCategorical):
        usual = [GumbelSoftmax(), RLOO(), ReinMax()]
    elif q.has_rsample:
        usual = [Reparameterized(), STL()]
    own = own or usual[0]
    found = {_name(one): one for one in (own, *usual)}
    return found | {_name(own): own, f"4 samples of {_name(own)}": Averaged(own, 4)}


def _name(estimator: Estimator) -> str:
    temperature = getattr(estimator, "temperature", None)
    return type(estimator).__name__ + ("" if temperature is None else f"({temperature:g})")


def gradients(subject: Subject, data: Tensor, estimators: dict[str, Estimator]) -> dict[str, Decomposition]:
    """Return the variance of the encoder's gradient by each estimator."""
    try:
        with torch.enable_grad():
            return gradient_variance(_model(subject), _batches(data), DRAWS, estimators)
    except (DomainError, RuntimeError) as error:  # torch's, where a parameter of q does not come from the encoder
        raise IntractableError(str(error)) from error


def relative_bias(subject: Subject, x: Tensor, estimator: Estimator) -> float | None:
    """Return an estimator's bias as a share of the gradient; None where the truth is too long to enumerate."""
    base = base_of(subject.encoder(x[:1]))
    values = base.event_shape.numel() if isinstance(base, td.OneHotCategorical) else 2
    if values ** base.batch_shape.numel() > 256:
        return None
    with torch.enable_grad():
        return gradient_bias(_model(subject), x, {"own": estimator}, draws=1000)["own"].relative


def decoder_snr(subject: Subject, data: Tensor, draws: int = 4) -> float:
    """Return |E g|^2 / Var g of the decoder's gradient, of a batch and one draw of z."""
    parameters, tally = [p for p in subject.decoder.parameters() if p.requires_grad], Tally(draws)
    if not parameters:
        return float("nan")
    for x in _batches(data):
        found = []
        for z in subject.encoder(x).sample(torch.Size([draws])):
            with torch.enable_grad():
                loss = -subject.decoder.log_prob(x, z).mean()
            found.append(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))
        mean = [torch.stack(each).mean(0) for each in zip(*found, strict=True)]
        squares = [squared_norms(difference(list(gradient), mean)) for gradient in found]
        tally.add(mean, torch.stack(squares).sum(0) / (draws - 1))
    return tally.result([""] * len(parameters), exact=[]).snr


def _model(subject: Subject) -> Any:
    decoder = subject.raw_decoder if is_tractable(subject.raw_decoder) else subject.decoder
    return SimpleNamespace(encoder=subject.encoder, decoder=decoder, prior=subject.prior)


def _batches(data: Tensor) -> list[Tensor]:
    size = min(BATCH, len(data) // BATCHES)
    if size < 2:
        raise IntractableError(f"gradients are compared over {BATCHES} batches of at least two examples")
    return list(data[: BATCHES * size].split(size))
