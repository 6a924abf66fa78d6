"""Which settings a sweep varies, checked against the configuration around which it goes."""

import dataclasses
from typing import Any

from silentgrad.lab.experiments.grid import Grid
from silentgrad.lab.experiments.study import SweepError
from silentgrad.lab.training import ModelConfig, Settings


def search_space(over: list[str], grid: Grid, around: Settings) -> dict[str, list[Any]]:
    """The grid over some of the settings.

    Raises:
        SweepError: One of them is unknown, or changes nothing in this configuration.
    """
    known = [entry.name for entry in dataclasses.fields(Grid)]
    if not over or set(over) - set(known) or len(set(over)) < len(over):
        raise SweepError(f"--over takes some of {', '.join(known)}, separated by commas; got {','.join(over)!r}")
    if "guided" in over:
        _require_two_estimators(around.model)
    if "cutoff" in over:
        _require_cutoffs(grid.cutoff, around)
    space = {}
    for name in over:
        space[name] = list(dict.fromkeys(getattr(grid, name)))
    if not all(space.values()):
        raise SweepError("there is nothing to try: a list of --grid is empty")
    return space


def _require_two_estimators(model: ModelConfig) -> None:
    if not model.decoders.guided or model.decoders.estimator == "none":
        raise SweepError(
            "guided needs a guide that gives way to another estimator: --model.tractable other than none, "
            "--model.nonlinear true and --model.estimator other than none"
        )


def _require_cutoffs(cutoffs: list[int], around: Settings) -> None:
    if not around.model.decoders.guided:
        raise SweepError("a cut-off needs a guided VAE: --model.tractable other than none and --model.nonlinear true")
    epochs = around.train.epochs
    late = [cutoff for cutoff in cutoffs if cutoff > epochs]
    if late:
        raise SweepError(f"cut-offs {late} come after the last of {epochs} epochs: give others by --grid.cutoff")
