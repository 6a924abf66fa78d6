"""Tuned, then compared: each row's options are chosen by validation with one seed, and the row is run with others.

A stage of an experiment is a block of rows. Its trials have every combination of a row's values, with seed 0. The one
with the lowest figure of validation is then run with the seeds from 1 on, whose figures alone stand in tables. Figures
of the test choose nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.ledger import Ledger

TUNING_SEED = 0
Grid = Mapping[str, Sequence[Any]]  # option -> the values to choose from


def trials(kind: Cell, grid: Grid) -> list[Cell]:
    """Return the runs by which the options of a row are chosen."""
    return [kind.at(dict(zip(grid, values, strict=True)), TUNING_SEED) for values in product(*grid.values())]


def chosen(kind: Cell, grid: Grid, ledger: Ledger) -> Cell | None:
    """Return the trial of a row that is best in validation; None as long as one is missing."""
    best, least = None, math.inf
    for trial in trials(kind, grid):
        row = ledger.row(trial.settings)
        if row is None:
            return None
        figure = math.inf if row.valid is None else row.valid
        if best is None or figure < least:
            best, least = trial, figure
    return best


def compared_runs(kinds: Sequence[Cell], grid: Callable[[Cell], Grid], ledger: Ledger, seeds: int) -> list[Cell]:
    """Return the runs of the rows whose options are chosen, by seeds, so that every row soon has some."""
    best = [trial for kind in kinds if (trial := chosen(kind, grid(kind), ledger)) is not None]
    return [trial.at(dict(trial.point), TUNING_SEED + 1 + n) for n in range(seeds) for trial in best]
