r"""The variance of the gradient that training follows, whatever in the objective draws.

:func:`silentgrad.gradient_variance` compares estimators of one decoder and is quick at it. Here the
whole training loss is differentiated for every draw, so that a guide that is sampled itself is measured with its host.
The figures are the same.
"""

import copy
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from silentgrad.analysis.model import encoder_parameters
from silentgrad.analysis.products import Gradient, added, difference, squared_norms
from silentgrad.analysis.tally import Decomposition, Tally
from silentgrad.analysis.variance import FEWEST_BATCHES, seeded
from silentgrad.errors import DomainError
from silentgrad.guided import GuidedVAE


def training_variance(
    model: GuidedVAE, batches: Iterable[Tensor], draws: int, epoch: float, seed: int = 0
) -> Decomposition:
    """How much of the noise in the encoder's gradient is the batches', and how much that of everything that draws.

    Args:
        model: The model, of which a copy is measured: its estimators as they are in the epoch and held, as it stands
            otherwise; call `model.eval()` first for batch normalization with its running statistics.
        batches: Examples as the model sees them, at least four batches of one size.
        draws: Number of gradients per batch.
        epoch: The epoch, counted from 1, whose objective is measured.
        seed: Seed of the draws. The global random state is left as it was.

    Example:
        >>> import silentgrad as sg
        >>> from silentgrad.lab.networks import Encoder, mlp_body
        >>> family = sg.families.Gaussian(3)
        >>> model = sg.GuidedVAE(Encoder(mlp_body((1, 2, 2), family.numbers), family), sg.LinearGaussian(3, (1, 2, 2)))
        >>> training_variance(model, torch.rand(4, 5, 1, 2, 2), draws=10, epoch=1).est
        0.0
    """
    if draws < 2:
        raise DomainError(f"a variance needs at least 2 draws, got {draws}")
    model = _held(model, epoch)
    parameters = encoder_parameters(model)
    tally = Tally(draws)
    with seeded(seed, next(iter(parameters.values())).device):
        for x in batches:
            tally.add(*_over_draws(model, x, draws, epoch, list(parameters.values())))
    if tally.batches < FEWEST_BATCHES:
        raise DomainError(f"standard errors need at least {FEWEST_BATCHES} batches")
    return tally.result(list(parameters), exact=[])


def _held(model: GuidedVAE, epoch: float) -> GuidedVAE:
    """A copy whose estimators are those of the epoch and do not learn from being measured."""
    held = copy.deepcopy(model)
    for estimator in (held.tractable_estimator, held.estimator):
        if estimator is not None:
            estimator.on_epoch(math.ceil(epoch))
            estimator.eval()
    return held


def _over_draws(
    model: GuidedVAE, x: Tensor, draws: int, epoch: float, parameters: list[Tensor]
) -> tuple[Gradient, Tensor]:
    """A batch's mean gradient and its variance over draws, per parameter tensor.

    Both are taken relative to the first draw: draws that do not differ then give zero, not what rounding left.
    """
    first = _gradient(model, x, epoch, parameters)
    total = [torch.zeros_like(g) for g in first]
    squares = squared_norms(total)
    for _ in range(draws - 1):
        step = difference(_gradient(model, x, epoch, parameters), first)
        total = added(total, step)
        squares = squares + squared_norms(step)
    mean = [t / draws for t in total]
    variance = (squares - draws * squared_norms(mean)) / (draws - 1)
    return added(first, mean), variance


def _gradient(model: GuidedVAE, x: Tensor, epoch: float, parameters: list[Tensor]) -> Gradient:
    loss = model(x, epoch).total
    return list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))
