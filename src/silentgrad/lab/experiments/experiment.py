"""The form of an experiment: rows of runs, columns of their figures, and a rule for what these say.

:class:`TableOfRuns` is filled from finished runs. A table claims what its scale allows: the runs of `smoke` see other
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
from pathlib import Path
from typing import Any, NamedTuple, get_args

from rich.progress import track

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale
from silentgrad.lab.experiments.ledger import Ledger
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import ExperimentError
from silentgrad.lab.runs.findings import Findings
from silentgrad.lab.tables import Column, Content, Table

TUNING_SEED = 0
MODELS = {  # figures that stand beside those of runs, by their field of a run's row
    "independent": "no latents: the same likelihood",
    "histogram": "no latents: histogram",
    "limit": "limit: probabilistic PCA",
}
Grid = Mapping[str, Sequence[Any]]  # option -> the values to choose from


class Request(NamedTuple):
    """A request for a table."""

    scale: Scale  # size of the runs
    seeds: int  # number of runs of each kind
    datasets: Sequence[str] = ("mnist",)  # the datasets of tables that have several
    root: Path | None = None  # folder that holds the datasets
    tune: bool = False  # whether options are chosen by validation with one seed, and the runs made with others

    @property
    def comparable(self) -> bool:
        """True if the figures may be judged, and stand beside the paper's."""
        return self.scale != "smoke"


def trials(kind: Cell, grid: Grid) -> list[Cell]:
    """Return the runs by which the options of a row are chosen."""
    return [kind.at(dict(zip(grid, values, strict=True)), TUNING_SEED) for values in product(*grid.values())]


def chosen(kind: Cell, grid: Grid, ledger: Ledger) -> Cell | None:
    """Return the trial of a row that is best in validation; None as long as one is missing."""
    figures = {}
    for place, trial in enumerate(tried := trials(kind, grid)):
        row = ledger.row(trial.settings)
        if row is None:
            return None
        figures[place] = math.inf if row.valid is None else row.valid
    return tried[min(figures, key=lambda place: figures[place])]


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
        cells = [cell for kinds in self.blocks(request) for cell in kinds]
        if request.tune:
            cells = compared_runs(cells, self.grid, ledger, request.seeds)
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
    model: str = ""  # of a model without latents, or a limit: its field of the runs' rows, among MODELS


class FigureColumn(NamedTuple):
    """A column of figures."""

    column: Column
    of: Callable[[Results, RowOfRuns], Content]  # from the runs and a row to the figure


def over_seeds(title: str, metric: str, digits: int | None = None) -> FigureColumn:
    """Return the column of a figure over seeds."""
    return FigureColumn(Column(title, digits), lambda results, row: results.over_seeds(metric, **row.runs))


class FilledRow(NamedTuple):
    """A row with its figures, by the names of their columns."""

    row: RowOfRuns
    figures: Mapping[str, Content]


@dataclass(frozen=True, kw_only=True)
class TableOfRuns(Experiment):
    """A table of runs, whose first column of figures models without latents have too."""

    name: str  # name of its files
    title: str  # its heading, in which `{data}` is replaced by the name of the data
    heads: Sequence[str]  # of the columns with the labels of a row
    curved: bool = True  # whether the curves of the first seed are shown
    measuring: str = ""  # what a bar says while figures are measured, where that takes time

    def rows(self, results: Results) -> list[RowOfRuns]:
        """Return the rows: methods, and what has to be beaten."""
        raise NotImplementedError

    def figures(self, request: Request) -> list[FigureColumn]:
        """Return the columns of figures."""
        raise NotImplementedError

    def judge(self, filled: list[FilledRow]) -> list[str]:
        """Return what the filled rows say, in sentences."""
        return []

    def notes(self, results: Results, request: Request) -> list[str]:
        """Return sentences that say how the table was made."""
        raise NotImplementedError

    def build(self, results: Results, request: Request) -> Findings:
        """Return the table of finished runs, with all that its scale allows it to say, but for empty columns."""
        columns, filled = self.figures(request), []
        for row in track(self.rows(results), self.measuring, disable=not self.measuring):
            figures: list[Content] = [None] * len(columns)
            if row.model:
                figures[0] = results.first(row.model, **row.runs)
            else:
                figures = [column.of(results, row) for column in columns]
            filled.append(FilledRow(row, dict(zip([own.column.name for own in columns], figures, strict=True))))
        title = self.title.format(data=results.data())
        cells = [[*row.labels, *figures.values()] for row, figures in filled]
        heads = [*map(Column, self.heads), *(own.column for own in columns)]
        table = Table(title, heads, cells, name=self.name)
        table = table.only(lambda column, found: request.comparable or not column.judges)
        table = table.only(lambda column, found: any(cell not in (None, "") for cell in found))
        verdicts = self.judge(filled) if request.comparable else []
        curves = results.labels(results.where(seed=min(cell.seed for cell in results.cells))) if self.curved else {}
        return Findings(self.name, title, [table], verdicts, self.notes(results, request), curves)


def meaning(request: Request) -> list[str]:
    """Return what a reader has to know before the figures; nothing where they are what they seem."""
    return [] if request.comparable else ["This scale shows that everything works; its figures mean nothing."]


def made(results: Results, request: Request) -> list[str]:
    """Return scale and seeds in a sentence, and how many images there were: a folder may hold a part of a dataset."""
    counted = "1 seed" if request.seeds == 1 else f"{request.seeds} seeds"
    sentences = [f"Scale {request.scale}, {counted}; test images; mean ± standard deviation over seeds."]
    images = {cell.data: results.known[cell.name].examples for cell in results.cells if cell.name in results.known}
    return sentences + meaning(request) + [f"{data}: {count:,} training images." for data, count in images.items()]
