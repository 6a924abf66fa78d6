"""The table of tuned comparisons: each row at its best options, against the reference row of its block.

The figures are those of the runs' rows in the ledger. In each block stand models without latents, and the limit where
one is known. A run that is no better than the model of the same likelihood without latents has failed: it gets no
verdict, and nothing is compared with it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.experiment import (
    MODELS,
    FigureColumn,
    FilledRow,
    Judgement,
    Request,
    RowOfRuns,
    TableOfRuns,
    made,
    over_seeds,
)
from silentgrad.lab.experiments.results import Difference, Results, compared, spread
from silentgrad.lab.tables import Column, Content, Interval, shown

CHOSEN = ("method", "chosen by validation")  # the last heads
READING = [
    "The level is where the worst run of the best of these rows ends in validation: {levels}. Steps to it are counted "
    "at the ends of epochs.",
    "The interval of 95 % is Student's, over pairs of runs of one seed. A run that diverged, or is no better than the "
    "same likelihood without latents, has failed: nothing is compared with it.",
    "Every run is in `results/{name}.csv`, with the command that repeats it.",
]


@dataclass(frozen=True, kw_only=True)
class Comparison(TableOfRuns):
    """A table of tuned rows."""

    labels: Callable[[Cell], list[str]]  # from a run to the labels of its block
    methods: dict[str, str]  # methods in print, by name
    reference: str  # the method that the others are compared with
    levels: Sequence[str]  # the methods whose end is the level that steps are counted to
    told: Sequence[str]  # sentences on how it was made
    curved: bool = False  # the curves of all blocks would cover each other

    def rows(self, results: Results, request: Request) -> list[RowOfRuns]:
        rows: dict[str, RowOfRuns] = {}
        for cell in results.cells:
            own = {"dataset": cell.dataset, "variant": cell.variant, "latent": cell.latent}
            for model, title in MODELS.items():
                if results.first(model, **own) is not None:
                    rows.setdefault(f"{own} {model}", RowOfRuns([*self.labels(cell), title, ""], own, model))
            labels = [*self.labels(cell), self.methods[cell.method], point_of(cell)]
            rows.setdefault(f"{own} {cell.method}", RowOfRuns(labels, {**own, "method": cell.method}))
        return list(rows.values())

    def figures(self, request: Request) -> list[FigureColumn]:
        against = f"against {self.methods[self.reference]}"
        return [
            over_seeds("test BPD", "test", 4),
            FigureColumn(Column(against, 4, judges=True), self._difference),
            FigureColumn(Column("verdict", judges=True), self._verdict),
            over_seeds("above the limit", "above_limit", 4),
            over_seeds("KLD", "kld", 1),
            over_seeds("MSE", "mse", 2),
            FigureColumn(Column("steps to the level", 0), self._steps),
            over_seeds("CPU seconds", "seconds", 0),
            FigureColumn(Column("runs", 0), lambda results, row: float(len(results.rows(**row.runs)))),
        ]

    def _difference(self, results: Results, row: RowOfRuns) -> Difference | None:
        if row.runs["method"] == self.reference:
            return None
        return compared(results.rows(**row.runs), results.rows(**{**row.runs, "method": self.reference}))

    def _verdict(self, results: Results, row: RowOfRuns) -> Content:
        rows, difference = results.rows(**row.runs), self._difference(results, row)
        failed = sum(own.failed for own in rows)
        if failed:
            return f"failed ({failed} of {len(rows)})"
        return difference.verdict if difference else None

    def _steps(self, results: Results, row: RowOfRuns) -> Content:
        ends = []
        for method in self.levels:
            others = results.rows(**{**row.runs, "method": method})
            ends.append(max((own.valid for own in others if own.valid is not None), default=math.inf))
        level = min(ends) if min(ends) < math.inf else -math.inf
        reached = [own.reach(level) for own in results.rows(**row.runs)]
        if None in reached:
            return f"{sum(step is not None for step in reached)} of {len(reached)} runs reach it"
        return spread(reached)

    def judge(self, filled: list[FilledRow]) -> Judgement:
        sentences, against = [], self.methods[self.reference]
        for row, figures in filled:
            change = figures[f"against {against}"]
            if isinstance(change, Interval) and change.margin is not None:
                *labels, method, _ = row.labels
                sentences.append(f"{', '.join(labels)}: {method} against {against} {shown(change)} BPD.")
        return Judgement([], sentences)

    def notes(self, results: Results, request: Request) -> list[str]:
        levels = ", ".join(self.methods[method] for method in self.levels)
        reading = [sentence.format(levels=levels, name=self.name) for sentence in READING]
        return [*made(results, request), *self.told, *reading]


def point_of(cell: Cell) -> str:
    """Return what was chosen for a run, in print."""
    return ", ".join(f"{option.partition('.')[2]} {value}" for option, value in cell.point)
