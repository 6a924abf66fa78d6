"""From finished runs to the paper's tables, each figure beside the paper's."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale, reductions
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import read_json
from silentgrad.lab.runs.tables import Column, Content, Spread, Table

DIGITS = {"bpd": 3, "mse": 3, "kld": 2}
WANTED = {"bpd": "lower", "mse": "lower", "kld": "higher"}
GUIDED = "-sg"  # how the methods end that a linear decoder guides


class Results(NamedTuple):
    """What the runs of one table say.

    Args:
        folder: Where the runs are.
        cells: The runs.
    """

    folder: Path
    cells: Sequence[Cell]

    def over_seeds(self, metric: str, **wanted: object) -> Content:
        """A figure over the seeds of the runs that fit; text if one of them diverged."""
        runs = [self.run(cell) for cell in self.where(**wanted)]
        failed = sum(run.failure.exists() for run in runs)
        if failed:
            return f"diverged ({failed} of {len(runs)})"
        values = [read_json(run.summary).get(metric) for run in runs]
        return spread([value for value in values if value is not None])

    def where(self, **wanted: object) -> list[Cell]:
        """The runs whose fields have these values."""
        return [cell for cell in self.cells if all(getattr(cell, name) == value for name, value in wanted.items())]

    def run(self, cell: Cell) -> RunFolder:
        """The folder of a run."""
        return RunFolder(self.folder / cell.name)

    def finished(self, **wanted: object) -> list[Cell]:
        """The runs that fit and have a summary."""
        return [cell for cell in self.where(**wanted) if self.run(cell).summary.exists()]

    def first_seeds(self) -> dict[str, str]:
        """For curves: the first seed's run of each row, by the name of its folder."""
        return {_label(cell): cell.name for cell in self.finished(seed=0)}


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation (n - 1) of the figures of several seeds; None if there is no figure.

    Example:
        >>> spread([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951, seeds=2)
    """
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True)
class FixedRow:
    """A method of the fixed-variance table, with the variance's schedule or without; the paper has none with it."""

    block: str
    method: str
    scheduled: bool
    bpd: Content
    mse: Content
    seconds: Content
    paper_bpd: float | None
    paper_mse: float | None

    def cells(self) -> list[Content]:
        """In the order of the columns."""
        schedule = "yes" if self.scheduled else "no"
        figures = [self.bpd, self.paper_bpd, self.mse, self.paper_mse, self.seconds]
        return [self.block, self.method, schedule, *figures]

    def verdict(self) -> str:
        """What it says that this row is the best of its block."""
        schedule = "with" if self.scheduled else "without"
        silent = self.method == paper.METHODS["silent"]
        told = "as in the paper" if silent else "unlike in the paper, Silent Gradients"
        return f"{self.block}: the best is {self.method}, {schedule} the variance schedule; {told}."


FIXED_COLUMNS = [
    Column(""),
    Column("method"),
    Column("variance schedule"),
    Column("BPD", 4),
    Column("BPD (paper)", 3),
    Column("MSE", 3),
    Column("MSE (paper)", 3),
    Column("seconds", 0),
]


def fixed_table(results: Results, scale: Scale) -> Table:
    """The fixed-variance table, each method with and without the schedule, and the limit."""
    rows: list[list[Content]] = []
    best: list[int] = []
    verdicts: list[str] = []
    for latent, block in paper.BLOCKS.items():
        methods = [_fixed_row(results, latent, method, on) for method in _fixed_methods(latent) for on in (False, True)]
        winner = min(methods, key=lambda row: mean_of(row.bpd))
        best.append(len(rows) + methods.index(winner))
        verdicts.append(winner.verdict())
        rows += [row.cells() for row in methods]
        if latent == "gaussian":
            rows.append([block, "limit: probabilistic PCA", "", _limit(results), None, None, None, None])
    return Table(
        name="fixed",
        title="Linear decoder with fixed variance 0.01",
        columns=FIXED_COLUMNS,
        rows=rows,
        best=best,
        verdicts=verdicts,
        notes=notes(results, scale),
        curves=results.first_seeds(),
    )


def _fixed_methods(latent: str) -> list[str]:
    return [method for family, method in paper.FIXED if family == latent]


def _fixed_row(results: Results, latent: str, method: str, scheduled: bool) -> FixedRow:
    bpd, mse, seconds = (
        results.over_seeds(metric, latent=latent, method=method, scheduled=scheduled)
        for metric in ("bpd", "mse", "seconds")
    )
    paper_bpd, paper_mse = (None, None) if scheduled else paper.FIXED[latent, method]
    return FixedRow(paper.BLOCKS[latent], paper.METHODS[method], scheduled, bpd, mse, seconds, paper_bpd, paper_mse)


def _limit(results: Results) -> Content:
    """The limit of any finished run that has one."""
    for cell in results.finished(latent="gaussian"):
        limit: float | None = read_json(results.run(cell).summary).get("limit_bpd")
        if limit is not None:
            return limit
    return None


class Sides(NamedTuple):
    """A figure without SG and with it."""

    without: Content
    guided: Content

    def change(self) -> float | None:
        """What SG adds to the mean; None if a side has none."""
        change = mean_of(self.guided) - mean_of(self.without)
        return change if math.isfinite(change) else None


@dataclass(frozen=True)
class LearnedRow:
    """What SG does to one method on one dataset, as measured and in the paper."""

    metric: str
    names: tuple[str, str, str]
    ours: Sides
    paper: Sides
    seconds: Sides

    def cells(self) -> list[Content]:
        """In the order of the columns."""
        return [*self.names, *self.ours, *self.paper, self.helps(self.ours), *self.seconds]

    def helps(self, sides: Sides) -> str | None:
        """Whether SG changed the mean for the better, yes or no; None if that is not known."""
        change = sides.change()
        if change is None:
            return None
        better = change < 0 if WANTED[self.metric] == "lower" else change > 0
        return "yes" if better else "no"

    def verdict(self) -> str | None:
        """The row in a sentence; None if a side is missing."""
        change = self.ours.change()
        if change is None:
            return None
        did = "raises" if change > 0 else "lowers"
        same = self.helps(self.ours) == self.helps(self.paper)
        agreement = "as in the paper" if same else "unlike in the paper"
        amount = f"{abs(change):.{DIGITS[self.metric]}f}"
        return f"{', '.join(self.names)}: SG {did} {self.metric.upper()} by {amount}, {agreement}."


def learned_table(metric: str, results: Results, datasets: Iterable[str], scale: Scale) -> Table:
    """One of the three learned-variance tables: what SG does to each estimator."""
    rows = [
        _learned_row(metric, results, dataset, latent, method.removesuffix(GUIDED))
        for dataset in datasets
        for latent, method in paper.LEARNED[metric]
        if method.endswith(GUIDED)
    ]
    verdicts = [row.verdict() for row in rows]
    return Table(
        name=metric,
        title=f"{metric.upper()} with learned variance ({WANTED[metric]} is better)",
        columns=_learned_columns(metric),
        rows=[row.cells() for row in rows],
        verdicts=[verdict for verdict in verdicts if verdict is not None],
        notes=notes(results, scale),
        curves=results.first_seeds(),
    )


def _learned_columns(metric: str) -> list[Column]:
    shown, digits = metric.upper(), DIGITS[metric]
    return [
        Column(""),
        Column(""),
        Column("method"),
        Column(f"{shown} without SG", digits),
        Column(f"{shown} with SG", digits),
        Column("paper without", 2),
        Column("paper with", 2),
        Column("SG helps"),
        Column("seconds without", 0),
        Column("seconds with", 0),
    ]


def _learned_row(metric: str, results: Results, dataset: str, latent: str, method: str) -> LearnedRow:
    sides = (method, f"{method}{GUIDED}")
    ours = [results.over_seeds(metric, dataset=dataset, latent=latent, method=side) for side in sides]
    seconds = [results.over_seeds("seconds", dataset=dataset, latent=latent, method=side) for side in sides]
    theirs = [_in_paper(metric, dataset, latent, side) for side in sides]
    names = (paper.DATASETS[dataset], paper.BLOCKS[latent], paper.METHODS[method])
    return LearnedRow(metric, names, Sides(*ours), Sides(*theirs), Sides(*seconds))


def _in_paper(metric: str, dataset: str, latent: str, method: str) -> Content:
    known = paper.LEARNED[metric].get((latent, method))
    if known is None:
        return None
    figure = known[list(paper.DATASETS).index(dataset)]
    return figure.mean if figure.std is None else Spread(figure.mean, figure.std, paper.SEEDS)


def mean_of(content: Content) -> float:
    """The mean of a figure over seeds, or the figure; infinite if there is none."""
    if isinstance(content, Spread):
        return content.mean
    return content if isinstance(content, float) else math.inf


def notes(results: Results, scale: Scale) -> list[str]:
    """How the runs were made, in sentences."""
    seeds = 1 + max(cell.seed for cell in results.cells)
    plural = "s" if seeds > 1 else ""
    said = [f"Scale {scale}, {seeds} seed{plural}; test images; mean ± standard deviation over seeds."]
    if scale == "smoke":
        said.append("This scale shows that everything works; its figures mean nothing.")
    return said + _images(results) + reduced(results.cells, scale)


def reduced(cells: Sequence[Cell], scale: Scale) -> list[str]:
    """What was reduced with respect to the paper's scale, in sentences."""
    return [f"Reduced: {sentence}." for sentence in reductions(cells, scale)]


def _images(results: Results) -> list[str]:
    """How many images each dataset was trained on: a folder may hold a part of a dataset only."""
    counts: dict[str, int] = {}
    for cell in results.finished():
        count = read_json(results.run(cell).summary).get("train_images")
        if count is not None:
            counts[paper.DATASETS[cell.dataset]] = count
    return [f"{dataset}: {count:,} training images." for dataset, count in counts.items()]


def _label(cell: Cell) -> str:
    method = paper.METHODS[cell.method.removesuffix(GUIDED)]
    if cell.method.endswith(GUIDED):
        method += " + SG"
    if cell.scheduled:
        method += ", scheduled"
    return f"{paper.DATASETS[cell.dataset]} {paper.BLOCKS[cell.latent].lower()} {method}"
