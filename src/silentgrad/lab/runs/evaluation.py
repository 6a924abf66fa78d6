"""The evaluation: one figure for one model, whoever asks for it.

Training's validation and test, `silentgrad evaluate`, the paper's tables and the examples all call
:func:`evaluate_model`. Its batches have a size of their own; what is random in it is a function of the split and of the
batch's place alone, drawn from generators of its own, so that the figure depends neither on the batch size of training,
nor on its seed, nor on the number of processes, and the global random state is left as it was.

Dequantization noise is integrated out where the decoder is Gaussian given z: the encoder sees the centre of each bin,
and :math:`E (y - u)^2 = (c - u)^2 + 1 / (12 L^2)` for a bin of centre c. It is a bound of the same kind as the one with
drawn noise: :math:`E_U \\log p(y|z) - k \\log L \\le \\log P(x|z)` for every z.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.beside import Beside
from silentgrad.evaluation import Evaluation as BatchEvaluation
from silentgrad.evaluation import evaluate, exactness
from silentgrad.exactness import Exactness
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations, Rows, SplitName, Unit, mixed
from silentgrad.lab.runs.metrics import METRICS

BATCH = 250
PLACES: dict[SplitName, int] = {"train": 0, "valid": 1, "test": 2}
ACTIVE = 0.01  # nats: a latent whose KL divergence is below that on average is not used


@dataclass(frozen=True)
class Evaluation:
    """What a model is worth on some examples; averages are per example.

    Args:
        unit: Unit in which the figure is told.
        figure: The bound in that unit: the lower, the better.
        elbo: The bound in nats of x as the model sees it: the ELBO, or the importance-weighted bound.
        metrics: The mean of each of `silentgrad.lab.runs.metrics`, by name.
        kld: KL divergence from the prior, in nats.
        active: Number of latents that are used.
        exactness: What the bound is to the expectation in the ELBO: exact, lower bound, approximation or sampled.
        samples: Number of samples of the importance-weighted bound; 1 for the ELBO.
        sampled: The ELBO by samples in the same unit, where the bound is another number; else None.
        examples: Number of examples.
    """

    unit: Unit
    figure: float
    elbo: float
    metrics: Mapping[str, float]
    kld: float
    active: int
    exactness: str
    samples: int
    sampled: float | None
    examples: int


class Share(NamedTuple):
    """The part of an evaluation that one of several processes does: every so many batches one.

    Args:
        rank: This process's number.
        processes: How many there are.
        total: The sum of a tensor over all of them.
    """

    rank: int
    processes: int
    total: Callable[[Tensor], Tensor]


ALONE = Share(0, 1, lambda sums: sums)


@torch.no_grad()
def evaluate_model(
    model: GuidedVAE, observations: Observations, split: SplitName = "test", samples: int = 1, share: Share = ALONE
) -> Evaluation:
    """The figures of a model on a split.

    Args:
        model: The model, on any device.
        observations: What it is judged on.
        split: Which part of them.
        samples: Samples of the importance-weighted bound, which is higher than the ELBO; 1 is the ELBO.
        share: What this process does of it; all processes get the same figures, to the bit those of one.
    """
    rows = observations.rows(split)
    like = next(model.parameters(), torch.empty(0))
    with evaluating(model), _own_draws(like.device) as seed, torch.autocast(like.device.type, enabled=False):
        probe = _probe(model, observations, rows, like, samples)
        batches = math.ceil(len(rows) / BATCH)
        sums = torch.zeros(batches, 3 + len(METRICS) + probe.latents, dtype=torch.float64)
        for place in range(share.rank, len(sums), share.processes):
            batch = rows.between(BATCH * place, BATCH * (place + 1)).to(like.device)
            first, second = mixed(PLACES[split], place, 0), mixed(PLACES[split], place, 1)
            x = _seen(observations, batch, probe.noise, first).to(like)
            beside = batch.beside.to(x)
            seed(second)
            found = evaluate(model, x, samples, probe.noise, beside)
            bounds = torch.stack([found.elbo, found.sampled, found.kld])
            sums[place] = torch.cat([bounds, _metrics(x, found, probe.noise, beside), found.kld_per_latent])
    elbo, sampled, kld, *rest = (share.total(sums).sum(0) / len(rows)).tolist()
    metrics = dict(zip(METRICS, rest, strict=False))
    per_latent = rest[len(METRICS) :]
    sampled_figure = None
    if samples > 1 or probe.exactness not in (Exactness.EXACT, "sampled"):
        sampled_figure = figure_of(observations, sampled, rows)
    return Evaluation(
        unit=observations.unit,
        figure=figure_of(observations, elbo, rows),
        elbo=elbo,
        metrics=metrics,
        kld=kld,
        active=sum(nats > ACTIVE for nats in per_latent),
        exactness=probe.exactness,
        samples=samples,
        sampled=sampled_figure,
        examples=len(rows),
    )


def figure_of(observations: Observations, elbo: float, rows: Rows) -> float:
    """A bound in the unit of the observations, over the entries of some rows that were observed."""
    if rows.mask is None:
        return observations.figure(elbo)
    return observations.figure(elbo, rows.mask.double().mean(0))


def _metrics(x: Tensor, found: BatchEvaluation, noise: float, beside: Beside) -> Tensor:
    """The sum of each metric over a batch; with noise around x, the mean over one deviation to either side.

    An entry that was not observed is taken to be what the model expects.
    """
    if beside.mask is not None:
        x = x.where(beside.mask, found.likelihood.mean)
    sums = []
    for metric in METRICS.values():
        either_side = metric(x - noise, found.likelihood) + metric(x + noise, found.likelihood)
        sums.append(either_side.sum() / 2)
    return torch.stack(sums)


class _Probe(NamedTuple):
    """What one example tells about all: latents with a KL divergence each, noise to integrate out, exactness."""

    latents: int
    noise: float
    exactness: str


def _probe(model: GuidedVAE, observations: Observations, rows: Rows, like: Tensor, samples: int) -> _Probe:
    first = rows.between(0, 1).to(like.device)
    x = _seen(observations, first, 0.0, 0).to(like)
    found = evaluate(model, x, beside=first.beside.to(x))
    noise = 0.0
    if _normal(found.likelihood):
        noise = observations.noise_deviation
    latents = len(found.kld_per_latent)
    q = model.encode(x, first.beside.to(x))
    return _Probe(latents, noise, exactness(model, q, samples))


def _normal(decoded: td.Distribution) -> bool:
    """Whether the outputs are Gaussian given z."""
    if isinstance(decoded, td.Independent):
        decoded = decoded.base_dist
    return isinstance(decoded, td.Normal)


def _seen(observations: Observations, rows: Rows, noise: float, seed: int) -> Tensor:
    """x with the noise that the seed gives, or without any if it is to be integrated out."""
    if noise > 0:
        return observations.centre(rows)
    return observations.as_seen(rows, torch.Generator(rows.device).manual_seed(seed))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every part is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def _own_draws(device: torch.device) -> Iterator[Callable[[int], object]]:
    """A way to seed a device's draws; afterwards the random state is what it was."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield torch.default_generator.manual_seed
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            yield torch.get_device_module(device).manual_seed
