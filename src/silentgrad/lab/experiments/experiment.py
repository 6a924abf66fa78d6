"""The form of an experiment: runs, rows of them, columns of their figures, and a rule for what these say.

:class:`Declared` is a table, which :meth:`Declared.build` fills from finished runs. A table claims what its scale
allows: the runs of `smoke` see other data than their recipes name, for two epochs, so that their figures stand alone,
without a column that compares, a verdict or a best row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, get_args

from rich.progress import track
from torch import Tensor

from silentgrad.analysis import Decomposition
from silentgrad.guided import GuidedVAE
from silentgrad.lab.build import plan_for
from silentgrad.lab.data import Observations, load
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale, recipe_of
from silentgrad.lab.experiments.ledger import Ledger
from silentgrad.lab.experiments.recipes import read_recipe
from silentgrad.lab.experiments.results import Results, mean_of
from silentgrad.lab.experiments.runner import ExperimentError
from silentgrad.lab.experiments.tuning import Grid, compared_runs, trials
from silentgrad.lab.runs.findings import Findings
from silentgrad.lab.tables import Column, Content, Table
from silentgrad.lab.training import Settings, load_weights
from silentgrad.lab.training.measuring import kept_variances, training_batches

NO_CONVOLUTIONS: dict[Scale, str] = {"conv": "--scale conv is for the tables bpd, kld and mse"}


class Request(NamedTuple):
    """What a table is to be made of."""

    scale: Scale  # size of the runs
    seeds: int  # number of runs of each kind
    datasets: Sequence[str] = ("mnist",)  # the datasets of tables that have several
    root: Path | None = None  # folder that holds the datasets
    tune: bool = False  # whether options are chosen by validation with one seed, and the runs made with others

    @property
    def comparable(self) -> bool:
        """Whether the figures may be judged, and stand beside the paper's."""
        return self.scale != "smoke"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figures, with the runs behind them."""

    cells: Callable[[Request], list[Cell]]  # from a request to the runs
    grid: Callable[[Cell], Grid] = lambda cell: {}  # from a run to the values to choose from, by option
    block: Callable[[Cell], object] = lambda cell: (cell.dataset, cell.latent)  # what is tuned, then run, at a time
    of_folders: bool = False  # whether it looks into the folders of the runs, so that rows of a CSV are not enough
    refused: Mapping[Scale, str] = field(default_factory=dict)  # the scales that it does not have, each with the reason
    only_mnist: str = ""  # why it is of MNIST whatever datasets are asked for; empty if it is not
    datasets: Sequence[str] = tuple(paper.DATASETS)  # the datasets that it can have

    def build(self, results: Results, request: Request) -> Findings:
        """Return what finished runs say."""
        raise NotImplementedError

    def make(self, request: Request, ledger: Ledger, make: Callable[[Sequence[Cell]], None]) -> list[Cell]:
        """Make the runs, tuned if that is asked for, block by block, and return those of the table."""
        if not request.tune:
            cells = self.cells(request)
            make(cells)
            return cells
        found = []
        for kinds in self.blocks(request):
            make([trial for kind in kinds for trial in trials(kind, self.grid(kind))])
            cells = compared_runs(kinds, self.grid, ledger, request.seeds)
            make(cells)
            found += cells
        return found

    def blocks(self, request: Request) -> list[list[Cell]]:
        """Return the rows that are tuned, and then run, together."""
        kinds = self.cells(request._replace(seeds=1))
        return [list(rows) for _, rows in groupby(kinds, self.block)]

    def finished(self, request: Request, ledger: Ledger) -> list[Cell]:
        """Return the runs of the table that are in a ledger."""
        cells = self.cells(request)
        if request.tune:
            cells = [
                cell
                for kinds in self.blocks(request)
                for cell in compared_runs(kinds, self.grid, ledger, request.seeds)
            ]
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
        if self.only_mnist and list(request.datasets) != ["mnist"]:
            raise ExperimentError(f"{self.only_mnist}: leave --datasets out")
        if request.scale == "conv" and list(request.datasets) != ["mnist"]:
            raise ExperimentError("--scale conv has runs on mnist only: leave --datasets out")


class RunGroup(NamedTuple):
    """The runs of one row."""

    labels: Sequence[str]  # the row's first cells
    runs: Mapping[str, object]  # values of the fields that its runs have in common


class Filled(NamedTuple):
    """A row with its figures, which follow the labels."""

    group: RunGroup
    figures: Sequence[Content]


class Judgement(NamedTuple):
    """What the rows of a table say: the numbers of the best ones, and sentences."""

    best: list[int]
    verdicts: list[str]


@dataclass(frozen=True, kw_only=True)
class Declared(Experiment):
    """A table of runs."""

    name: str  # name of its files
    title: str  # its heading, in which `{data}` is replaced by the name of the data
    columns: Callable[[Scale], list[Column]]  # from the scale to the columns, those of the labels too
    rows: Callable[[Results, Request], list[RunGroup]]  # from the runs and the request to the rows
    # From the runs, a row and the request to the row's figures.
    figures: Callable[[Results, RunGroup, Request], list[Content]]
    judge: Callable[[list[Filled]], Judgement]  # verdict rule, from the filled rows to what they say
    # From the runs and the request to sentences that say how the table was made.
    notes: Callable[[Results, Request], list[str]]
    # From the runs to those whose curves are shown.
    curves: Callable[[Results], list[Cell]] = lambda results: results.where(seed=0)
    measuring: str = ""  # what a bar says while figures are measured, where that takes time

    def build(self, results: Results, request: Request) -> Findings:
        """Return the table of finished runs, with all that its scale allows it to say."""
        groups = self.rows(results, request)
        filled = []
        for group in track(groups, self.measuring, disable=not self.measuring):
            filled.append(Filled(group, self.figures(results, group, request)))
        best, verdicts = self.judge(filled)
        title = self.title.format(data=results.data())
        rows = [[*group.labels, *figures] for group, figures in filled]
        table = Table(title, self.columns(request.scale), rows, best, name=self.name)
        if not request.comparable:
            table, verdicts = replace(table.only(lambda column, _: not column.judges), best=[]), []
        notes, curves = self.notes(results, request), results.labels(self.curves(results))
        return Findings(self.name, title, [table], verdicts, notes, curves)


def best_of_blocks(filled: Sequence[Filled], place: int, tell: Callable[[Filled, Sequence[Filled]], str]) -> Judgement:
    """Judge rows by the lowest figure of each block, which is named by the first label.

    Rows that are of no method are not judged. `tell` makes a sentence of the best row and all judged in its block.
    """
    blocks: dict[str, list[Filled]] = {}
    for row in filled:
        if "method" in row.group.runs:
            blocks.setdefault(row.group.labels[0], []).append(row)
    winners = [min(rows, key=lambda row: mean_of(row.figures[place])) for rows in blocks.values()]
    verdicts = [tell(winner, rows) for winner, rows in zip(winners, blocks.values(), strict=True)]
    return Judgement([filled.index(winner) for winner in winners], verdicts)


def gradient_noise(
    results: Results,
    cell: Cell,
    epoch: int,
    request: Request,
    batches: int,
    measure: Callable[[GuidedVAE, Iterator[Tensor]], Decomposition],
) -> Decomposition:
    """Return the noise of a run's gradient at an epoch whose weights were kept; it is measured once."""
    run = results.run(cell)

    def measured(names: Sequence[str]) -> dict[str, Decomposition]:
        observations = _observations(cell.settings.data.name, request.root)
        drawn = training_batches(observations, cell.settings.data.batch_size, batches, seed=0)
        return dict.fromkeys(names, measure(load_weights(run.path, run.kept(epoch), observations), drawn))

    return kept_variances(run.kept_variance(epoch, request.scale), ["own"], measured)["own"]


@lru_cache(maxsize=1)  # rows of one dataset follow each other
def _observations(name: str, root: Path | None) -> Observations:
    return load(name, root)


def meaning(request: Request) -> list[str]:
    """Return what a reader has to know before the figures; nothing where they are what they seem."""
    if request.comparable:
        return []
    return ["This scale shows that everything works; its figures mean nothing."]


def made(results: Results, request: Request) -> list[str]:
    """Return scale and seeds in a sentence, and how many images there were: a folder may hold a part of a dataset."""
    counted = "1 seed" if request.seeds == 1 else f"{request.seeds} seeds"
    sentences = [f"Scale {request.scale}, {counted}; test images; mean ± standard deviation over seeds."]
    images = {cell.data: row.examples for cell in results.cells if (row := results.row(cell)) is not None}
    return sentences + meaning(request) + [f"{data}: {count:,} training images." for data, count in images.items()]


def reduced(cells: Sequence[Cell], request: Request) -> list[str]:
    """Return what differs from the paper's settings, by the settings themselves, a sentence for each set of runs.

    A run with our guide is compared with the paper's guided one.
    """
    if request.scale == "paper" or not request.comparable:
        return []
    concerned: dict[tuple[str, str], dict[str, None]] = {}  # data and variant, what differs -> methods
    for cell in cells:
        theirs = cell._replace(method=cell.method.replace(paper.OURS, paper.GUIDED))
        full = _described(read_recipe(recipe_of(theirs, "paper")))
        own = _described(cell.settings)
        differing = [name for name in full | own if own.get(name) != full.get(name)]
        changes = [f"{name} {own.get(name, DEFAULT)} instead of {full.get(name, DEFAULT)}" for name in differing]
        if changes:
            kind = " ".join(filter(None, (paper.DATASETS[cell.dataset], cell.variant)))
            concerned.setdefault((kind, ", ".join(changes)), {})[f"{cell.latent} {cell.method}"] = None
    return [f"Other than in the paper: {kind} ({', '.join(of)}): {change}." for (kind, change), of in concerned.items()]


DEFAULT = "by default"
OF_A_RUN = ("root", "seed", "keep", "accelerator", "devices", "guided")


def _described(settings: Settings) -> dict[str, object]:
    """Return every option of a run whose value is not the laboratory's default, and the annealing rate."""
    described: dict[str, object] = {}
    for group in plan_for(settings):
        standard = type(group)()
        for option in fields(group):
            value = getattr(group, option.name)
            if value != getattr(standard, option.name) and option.name not in OF_A_RUN:
                described[option.name] = value
    if settings.model.tractable != "none" and settings.model.nonlinear and settings.model.estimator != "none":
        described["annealing rate per epoch"] = round(1 / (settings.model.guided * settings.train.epochs), 5)
    return described
