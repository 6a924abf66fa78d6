"""Gradient variance of runs: the batches and estimators to measure it with, and files that keep it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from silentgrad.analysis import Decomposition
from silentgrad.estimators import Estimator, GumbelSoftmax, Reparameterized
from silentgrad.lab.build import build_estimator
from silentgrad.lab.data import Observations
from silentgrad.lab.settings import (
    ConfigError,
    EstimatorName,
    ModelConfig,
    estimator_class,
    family_named,
    require_decoders,
)
from silentgrad.lab.store.files import read_json, write_json_atomically
from silentgrad.lab.store.records import record_of

Row = dict[str, Any]
FIGURES = ("batch", "est", "est_percent", "snr")


def training_batches(observations: Observations, size: int, count: int, seed: int) -> Iterator[Tensor]:
    """Yield batches as a model sees them, each drawn from all training rows, independent of each other."""
    generator = torch.Generator().manual_seed(seed)
    rows = observations.rows("train")
    if rows.between(0, 1).side_info:
        raise ConfigError(f"gradients are measured on x alone, and {observations.name} has more beside it")
    size = min(size, len(rows))
    for _ in range(count):
        chosen = torch.randperm(len(rows), generator=generator)[:size]
        yield observations.as_seen(rows.index_select(0, chosen), generator)


def kept_variances(
    path: Path, names: Sequence[str], measure: Callable[[Sequence[str]], Mapping[str, Decomposition]]
) -> dict[str, Decomposition]:
    """Return gradient variances that a file keeps, by estimator; those that it lacks are measured first."""
    kept: dict[str, Any] = read_json(path) if path.exists() else {}
    missing = [name for name in names if name not in kept]
    if missing:
        kept |= {name: dataclasses.asdict(measured) for name, measured in measure(missing).items()}
        write_json_atomically(path, kept)
    return {name: record_of(Decomposition, kept[name]) for name in names}


def estimators_of(config: ModelConfig, names: Sequence[EstimatorName] | None, epoch: int) -> list[Estimator]:
    """Build estimators with a run's settings; without names, all of the paper's that its latents and decoder allow."""
    if names is None:
        family, names = family_named(config.latent), ["reinforce"]
        if Reparameterized.suits(family):
            names = ["reparameterized"]
        elif GumbelSoftmax.suits(family):
            names = ["gumbel-softmax", "reinforce"]
        names = names if config.decoders.nonlinear else ["exact", *names]
    if not names:
        raise ConfigError("--estimators is empty: there is nothing to measure")
    if "none" in names:
        raise ConfigError("none is no estimator: leave it out of --estimators")
    estimators = []
    for name in names:
        estimator_class("--estimators", name)
        try:
            chosen = dataclasses.replace(config, estimator=name)
            require_decoders(chosen)  # its other options are those of the run's own estimator
        except ConfigError as error:
            raise ConfigError(f"--estimators {name} does not go with this run: {error}") from None
        estimator = build_estimator(chosen)
        estimator.on_epoch(epoch)
        estimators.append(estimator)
    return estimators


def rows_of(results: Mapping[str, Decomposition]) -> list[Row]:
    """Return a row for each estimator, with standard errors, and one for each layer's part."""
    rows: list[Row] = []
    for name, found in results.items():
        figures = {figure: getattr(found, figure) for figure in FIGURES}
        errors = {f"{figure}_error": getattr(found.errors, figure) for figure in FIGURES}
        cosine = "" if found.cosine is None else found.cosine
        rows.append({"estimator": name, "layer": "all", **figures, "cosine": cosine, **errors})
        for layer, part in found.groups.items():
            rows.append({"estimator": name, "layer": layer, **part._asdict()})
    return rows
