"""The form of an experiment: rows of runs, columns of their figures, and a rule for what these say.

A table is filled from finished runs. It claims what its scale allows: the runs of `smoke` see other
data than their recipes name, for two epochs, so that their figures stand alone, without a column that compares, a
verdict or a best row.

Tuned, then compared: the rows of a block are chosen together. A row's trials have every combination of its values, with
seed 0. The one with the lowest figure of validation is then run with the seeds from 1 on, whose figures alone stand in
tables. Figures of the test choose nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from operator import itemgetter
from typing import Any, NamedTuple, get_args

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Request, Scale
from silentgrad.lab.experiments.ledger import Ledger
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import ExperimentError
from silentgrad.lab.kinds import BITS_PER_DIMENSION
from silentgrad.lab.tables import Column, Content, Findings

TUNING_SEED = 0
Grid = Mapping[str, Sequence[Any]]  # option -> the values to choose from


def trials(kind: Cell, grid: Grid) -> list[Cell]:
    """Return the runs by which the options of a row are chosen."""
    return [kind.at(dict(zip(grid, values, strict=True)), TUNING_SEED) for values in product(*grid.values())]


def chosen(kind: Cell, grid: Grid, ledger: Ledger) -> Cell | None:
    """Return the trial of a row that is best in validation; None as long as one is missing."""
    rows = [(trial, ledger.row(trial.settings)) for trial in trials(kind, grid)]
    figures = [(math.inf if row.valid is None else row.valid, trial) for trial, row in rows if row is not None]
    return min(figures, key=itemgetter(0))[1] if len(figures) == len(rows) else None


def compared_runs(kinds: Sequence[Cell], grid: Callable[[Cell], Grid], ledger: Ledger, seeds: int) -> list[Cell]:
    """Return the runs of the rows whose options are chosen, by seeds, so that every row soon has some."""
    best = [trial for kind in kinds if (trial := chosen(kind, grid(kind), ledger)) is not None]
    return [trial.at(dict(trial.point), TUNING_SEED + 1 + n) for n in range(seeds) for trial in best]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figures, with the runs behind them."""

    cells: Callable[[Request], list[Cell]]  # from a request to the runs
    grid: Callable[[Cell], Grid] = lambda cell: {}  # from a run to the values to choose from, by option
    of_folders: bool = False  # whether it looks into the folders of the runs, so that rows of a CSV are not enough
    refused: Mapping[Scale, str] = field(default_factory=dict)  # the scales that it does not have, each with the reason
    datasets: Sequence[str] = tuple(paper.DATASETS)  # the datasets that it can have

    def build(self, results: Results, request: Request) -> Findings:
        """Return what finished runs say."""
        raise NotImplementedError

    def make(self, request: Request, ledger: Ledger, make: Callable[[Sequence[Cell]], None]) -> list[Cell]:
        """Make the runs, tuned if that is asked for, block by block, and return those of the table."""
        found = []
        for kinds in self.blocks(request):
            make([trial for kind in kinds for trial in trials(kind, self.grid(kind))] if request.tune else kinds)
            if request.tune:
                make(kinds := compared_runs(kinds, self.grid, ledger, request.seeds))
            found += kinds
        return found

    def blocks(self, request: Request) -> list[list[Cell]]:
        """Return the rows that are tuned, and then run, together; all runs at once if nothing is tuned."""
        if not request.tune:
            return [self.cells(request)]
        kinds = groupby(self.cells(request._replace(seeds=1)), lambda cell: (cell.dataset, cell.variant, cell.latent))
        return [list(rows) for _, rows in kinds]

    def finished(self, request: Request, ledger: Ledger) -> list[Cell]:
        """Return the runs of the table that are in a ledger."""
        cells = self.make(request, ledger, lambda missing: None)
        return [cell for cell in cells if ledger.row(cell.settings) is not None]

    def require(self, request: Request) -> None:
        """Refuse a request that there are no runs for.

        Raises:
            ExperimentError: The scale or the datasets are not among those of the experiment.
        """
        unknown = sorted(set(request.datasets) - set(self.datasets))
        if unknown or not request.datasets:
            given = ", ".join(unknown) or "none"
            raise ExperimentError(f"--datasets takes some of {', '.join(self.datasets)}; got {given}")
        if request.scale in self.refused:
            *others, last = sorted(set(get_args(Scale)) - set(self.refused))
            scales = f"{', '.join(others)} or {last}"
            raise ExperimentError(f"{self.refused[request.scale]}: choose --scale {scales}")
        if list(request.datasets) != ["mnist"] and request.scale == "conv":
            raise ExperimentError("--scale conv has runs on mnist only: leave --datasets out")


class RowOfRuns(NamedTuple):
    """A row of a table: the runs whose figures stand in it."""

    labels: Sequence[str]  # the row's first cells
    runs: Mapping[str, Any]  # values of the fields that its runs have in common
    model: str = ""  # of a model without latents, or a limit: its field of the runs' rows, among MODELS of `tuned`


class FigureColumn(NamedTuple):
    """A column of figures."""

    column: Column
    of: Callable[[Results, RowOfRuns], Content]  # from the runs and a row to the figure


def over_seeds(title: str, metric: str, digits: int | None = None) -> FigureColumn:
    """Return the column of a figure over seeds."""
    return FigureColumn(
        Column(title, digits, BITS_PER_DIMENSION.counted_in(title)),
        lambda results, row: results.over_seeds(metric, **row.runs),
    )


class FilledRow(NamedTuple):
    """A row with its figures, by the names of their columns."""

    row: RowOfRuns
    figures: Mapping[str, Content]


def meaning(request: Request) -> list[str]:
    """Return what a reader has to know before the figures; nothing where they are what they seem."""
    return [] if request.comparable else ["This scale shows that everything works; its figures mean nothing."]


def made(results: Results, request: Request) -> list[str]:
    """Return scale and seeds in a sentence, and how many images there were: a folder may hold a part of a dataset."""
    counted = "1 seed" if request.seeds == 1 else f"{request.seeds} seeds"
    sentences = [f"Scale {request.scale}, {counted}; test images; mean ± standard deviation over seeds."]
    images = {cell.data: results.known[cell.name].examples for cell in results.cells if cell.name in results.known}
    return sentences + meaning(request) + [f"{data}: {count:,} training images." for data, count in images.items()]
