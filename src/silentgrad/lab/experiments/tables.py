"""From finished runs to the paper's tables, each figure beside the paper's."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Scale
from silentgrad.lab.experiments.claims import Comparison, as_claimed
from silentgrad.lab.experiments.notes import notes
from silentgrad.lab.experiments.results import Results, mean_of
from silentgrad.lab.runs.tables import Column, Content, Spread, Table
from silentgrad.latents.families import FAMILIES

DIGITS = {"bpd": 3, "mse": 3, "kld": 2}
WANTED = {"bpd": "lower", "mse": "lower", "kld": "higher"}


@dataclass(frozen=True)
class FixedRow:
    """A method of the fixed-variance table, with the variance's schedule or without; the paper has none with it."""

    block: str
    method: str
    scheduled: bool
    bpd: Content
    mse: Content
    seconds: Content
    paper_bpd: float | None = None
    paper_mse: float | None = None

    def cells(self) -> list[Content]:
        """The cells in the order of the columns."""
        schedule = "no"
        if self.scheduled:
            schedule = "yes"
        measured = [self.bpd, self.paper_bpd, self.mse, self.paper_mse, self.seconds]
        return [self.block, self.method, schedule, *measured]

    def verdict(self) -> str:
        """What it says that this row is the best of its block."""
        schedule = "without"
        if self.scheduled:
            schedule = "with"
        agreement = "unlike in the paper, Silent Gradients"
        if self.method == paper.METHODS["silent"]:
            agreement = "as in the paper"
        return f"{self.block}: the best is {self.method}, {schedule} the variance schedule; {agreement}."


FIXED_COLUMNS = [
    Column(""),
    Column("method"),
    Column("variance schedule"),
    Column("BPD", 4),
    Comparison("BPD (paper)", 3),
    Column("MSE", 3),
    Comparison("MSE (paper)", 3),
    Column("seconds", 0),
]


def fixed_table(results: Results, scale: Scale) -> Table:
    """The fixed-variance table, each method with and without the schedule, and the limit."""
    rows: list[list[Content]] = []
    best: list[int] = []
    verdicts: list[str] = []
    for latent, block in paper.BLOCKS.items():
        methods = _fixed_rows(results, latent)
        winner = min(methods, key=lambda row: mean_of(row.bpd))
        best.append(len(rows) + methods.index(winner))
        verdicts.append(winner.verdict())
        for row in methods:
            rows.append(row.cells())
        if FAMILIES[latent].gaussian:
            rows.append([block, "limit: probabilistic PCA", "", _limit(results, latent), None, None, None, None])
    table = Table(
        name="fixed",
        title="Linear decoder with fixed variance 0.01",
        columns=FIXED_COLUMNS,
        rows=rows,
        best=best,
        verdicts=verdicts,
        notes=notes(results, scale),
        curves=results.first_seeds(),
    )
    return as_claimed(table, scale)


def _fixed_rows(results: Results, latent: str) -> list[FixedRow]:
    """The rows of one family of latents."""
    rows = []
    for (family, method), scheduled in product(paper.FIXED, (False, True)):
        if family == latent:
            rows.append(_fixed_row(results, latent, method, scheduled))
    return rows


def _fixed_row(results: Results, latent: str, method: str, scheduled: bool) -> FixedRow:
    bpd = results.over_seeds("bpd", latent=latent, method=method, scheduled=scheduled)
    mse = results.over_seeds("mse", latent=latent, method=method, scheduled=scheduled)
    seconds = results.over_seeds("seconds", latent=latent, method=method, scheduled=scheduled)
    block, name = paper.BLOCKS[latent], paper.METHODS[method]
    if scheduled:
        return FixedRow(block, name, scheduled, bpd, mse, seconds)
    return FixedRow(block, name, scheduled, bpd, mse, seconds, *paper.FIXED[latent, method])


def _limit(results: Results, latent: str) -> float | None:
    """The limit of any finished run that has one."""
    for cell in results.finished(latent=latent):
        limit = results.summary(cell).limit
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
        if math.isfinite(change):
            return change
        return None


@dataclass(frozen=True)
class LearnedRow:
    """What SG does to one method on one dataset, as measured and in the paper.

    Args:
        metric: Name of the metric.
        names: Dataset, block and method in print.
        ours: The metric as measured.
        paper: The metric in the paper.
        seconds: Training time as measured.
    """

    metric: str
    names: tuple[str, str, str]
    ours: Sides
    paper: Sides
    seconds: Sides

    def cells(self) -> list[Content]:
        """The cells in the order of the columns."""
        return [*self.names, *self.ours, *self.paper, self.helps(self.ours), *self.seconds]

    def helps(self, sides: Sides) -> str | None:
        """Whether SG changed the mean for the better, yes or no; None if that is not known."""
        change = sides.change()
        if change is None:
            return None
        if WANTED[self.metric] == "lower":
            change = -change
        if change > 0:
            return "yes"
        return "no"

    def verdict(self) -> str | None:
        """The row in a sentence; None if a side is missing."""
        change = self.ours.change()
        if change is None:
            return None
        verb = "lowers"
        if change > 0:
            verb = "raises"
        agreement = "unlike in the paper"
        if self.helps(self.ours) == self.helps(self.paper):
            agreement = "as in the paper"
        amount = f"{abs(change):.{DIGITS[self.metric]}f}"
        return f"{', '.join(self.names)}: SG {verb} {self.metric.upper()} by {amount}, {agreement}."


def learned_table(metric: str, results: Results, datasets: Iterable[str], scale: Scale) -> Table:
    """One of the three learned-variance tables: what SG does to each estimator."""
    rows: list[list[Content]] = []
    verdicts: list[str] = []
    for dataset, (latent, method) in product(datasets, paper.LEARNED[metric]):
        if not method.endswith(paper.GUIDED):
            continue
        row = _learned_row(metric, results, dataset, latent, method)
        rows.append(row.cells())
        verdict = row.verdict()
        if verdict is not None:
            verdicts.append(verdict)
    table = Table(
        name=metric,
        title=f"{metric.upper()} with learned variance ({WANTED[metric]} is better)",
        columns=_learned_columns(metric),
        rows=rows,
        verdicts=verdicts,
        notes=notes(results, scale),
        curves=results.first_seeds(),
    )
    return as_claimed(table, scale)


def _learned_columns(metric: str) -> list[Column]:
    title, digits = metric.upper(), DIGITS[metric]
    return [
        Column(""),
        Column(""),
        Column("method"),
        Column(f"{title} without SG", digits),
        Column(f"{title} with SG", digits),
        Comparison("paper without", 2),
        Comparison("paper with", 2),
        Comparison("SG helps"),
        Column("seconds without", 0),
        Column("seconds with", 0),
    ]


def _learned_row(metric: str, results: Results, dataset: str, latent: str, guided: str) -> LearnedRow:
    alone = guided.removesuffix(paper.GUIDED)
    return LearnedRow(
        metric=metric,
        names=(results.data(dataset=dataset), paper.BLOCKS[latent], paper.METHODS[alone]),
        ours=Sides(
            results.over_seeds(metric, dataset=dataset, latent=latent, method=alone),
            results.over_seeds(metric, dataset=dataset, latent=latent, method=guided),
        ),
        paper=Sides(
            _in_paper(metric, dataset, latent, alone),
            _in_paper(metric, dataset, latent, guided),
        ),
        seconds=Sides(
            results.over_seeds("seconds", dataset=dataset, latent=latent, method=alone),
            results.over_seeds("seconds", dataset=dataset, latent=latent, method=guided),
        ),
    )


def _in_paper(metric: str, dataset: str, latent: str, method: str) -> Content:
    by_dataset = paper.LEARNED[metric].get((latent, method))
    if by_dataset is None:
        return None
    mean, deviation = by_dataset[list(paper.DATASETS).index(dataset)]
    if deviation is None:
        return mean
    return Spread(mean, deviation, paper.SEEDS)
