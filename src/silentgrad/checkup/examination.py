"""The check-up itself: one call, which leaves the model as it was."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td
from torch.utils.data import DataLoader, Dataset

from silentgrad.analysis import LossUnits, loss_units, measurable
from silentgrad.analysis.adapters import modules_of
from silentgrad.analysis.variance import seeded
from silentgrad.checkup.checks import examine
from silentgrad.checkup.findings import CheckUp
from silentgrad.checkup.measurements import NONE, Measurements
from silentgrad.errors import DomainError, ShapeError
from silentgrad.estimators import Estimator
from silentgrad.evaluation import evaluating
from silentgrad.latents.priors import Prior

MOST = 10_000  # examples that baselines are fitted to
NAMES = ("data", "x", "pixel_values", "X")  # of the examples in a batch that is a dictionary


def check_up(
    model: Any,
    data: Any,
    *,
    test: Any = None,
    likelihood: Callable[[Tensor], td.Distribution] | None = None,
    prior: Prior | td.Distribution | None = None,
    loss: Callable[[Tensor], Any] | None = None,
    estimator: Estimator | None = None,
    levels: int | None = None,
    steps: int | None = None,
    beside: Mapping[str, float] = NONE,
    examples: int = 500,
    seed: int = 0,
) -> CheckUp:
    """Return what is wrong with a VAE, trained or not, and what would help.

    The model's parameters, buffers, modes and gradients, and the random state, are left as they were.

    Args:
        model: A pair of functions (encoder, decoder); or a model that has `encode` and `decode`, or `encoder` and
            `decoder`, such as a `LightningModule`; or one of pythae, diffusers, Pyro or scvi-tools. The encoder returns
            a distribution or (mu, logvar). The decoder takes z and returns p(x|z), or a tensor with `likelihood`; one
            of two arguments is log p(x|z) as a function of x and z.
        data: Training examples as the model sees them: a tensor, an array, a data set or a loader.
        test: Examples that it was not trained on, likewise; all but the overfitting is measured on them.
        likelihood: From the tensor that the decoder returns to p(x|z).
        prior: p(z), if it is not the standard one of the latents' family.
        loss: The training loss of a batch x. With it, its weights are measured and not inferred.
        estimator: What the gradient is estimated by, if it is neither reparameterization nor a relaxation that q shows.
        levels: Number of levels of dequantized data; those of data that are whole numbers are found.
        steps: Number of training steps, for the schedule of a guide.
        beside: Figures of models of your own, by name, such as the same without z: in the unit of the bound, of which
            less is better.
        examples: Number of examples that are looked at.
        seed: Seed of the draws.

    Example:
        >>> encoder, decoder = torch.nn.Linear(4, 2 * 2), torch.nn.Linear(2, 4)
        >>> model = (lambda x: encoder(x).chunk(2, -1)), (lambda z: td.Normal(decoder(z), 1.0))
        >>> found = check_up(model, torch.randn(200, 4) + 3)
        >>> found.verdict, found.findings[0].name
        ('wrong', 'training')
    """
    with examined([model, likelihood, prior, loss], data, seed) as train:
        found = measurable(model, train[:4], likelihood, prior)
        found.loss, found.estimator = loss or found.loss, estimator or found.estimator
        x, split = train[:examples], "training"
        if test is not None:
            x, split = rows_of(test, examples).to(train), "test"
            if x.shape[1:] != train.shape[1:]:
                raise ShapeError(f"test examples have shape {tuple(x.shape[1:])}, training {tuple(train.shape[1:])}")
        name = "functions" if isinstance(model, tuple | list) else type(model).__name__
        return examine(Measurements(found, x, train, split, levels, steps, beside), name)


def check_loss(
    model: Any,
    data: Any,
    loss: Callable[[Tensor], Any],
    likelihood: Callable[[Tensor], td.Distribution] | None = None,
    prior: Prior | td.Distribution | None = None,
    seed: int = 0,
) -> LossUnits:
    """Return what a training loss weighs, in nats per example; arguments as in `check_up`."""
    with examined([model, likelihood, prior, loss], data, seed) as x:
        return loss_units(measurable(model, x[:4], likelihood, prior), x, loss)


def rows_of(data: Any, most: int) -> Tensor:
    """Return the first rows of a tensor, an array, a data set or a loader, whose batches begin with the examples."""
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=min(most, 500))
    if not isinstance(data, Iterable):
        raise DomainError(f"data has to be a tensor, an array, a data set or a loader, got {type(data).__name__}")
    batches, taken = iter([data[:most]] if isinstance(data, Tensor | np.ndarray) else data), list[Tensor]()
    while sum(map(len, taken)) < most and (batch := next(batches, None)) is not None:
        while isinstance(batch, tuple | list | dict):
            named = [*filter(batch.__contains__, NAMES), *batch] if isinstance(batch, dict) else [0]
            batch = batch[named[0]]
        taken.append(torch.as_tensor(batch))
    rows = torch.cat(taken)[:most] if taken else torch.empty(0, 1)
    if rows.dim() < 2 or len(rows) < 2 or rows[0].numel() == 0:
        raise ShapeError(f"data of shape {tuple(rows.shape)} are not examples (examples, *event_shape), two at least")
    return rows.detach()


@contextmanager
def examined(things: list[Any], data: Any, seed: int) -> Iterator[Tensor]:
    """Hold things in evaluation mode, and give examples in their precision and on their device.

    Draws are seeded, and arguments are not validated. Everything is as it was at the end.
    """
    whole = modules_of(things)
    buffers = {buffer: buffer.clone() for buffer in whole.buffers()}
    validated, states = td.Distribution._validate_args, (random.getstate(), np.random.get_state())
    like = [parameter for parameter in whole.parameters() if parameter.is_floating_point()]
    try:
        td.Distribution.set_default_validate_args(False)
        with evaluating(whole), seeded(seed, like[0].device if like else torch.device("cpu")), torch.no_grad():
            x = rows_of(data, MOST)
            yield x.to(like[0]) if like else x.to(torch.promote_types(x.dtype, torch.float32))
    finally:
        td.Distribution.set_default_validate_args(validated)
        random.setstate(states[0])
        np.random.set_state(states[1])
        for buffer, value in buffers.items():
            if not torch.equal(buffer, value):
                buffer.copy_(value)
