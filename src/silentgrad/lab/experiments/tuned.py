"""The table of tuned comparisons: each row at its best options, against the reference row of its block.

The figures are those of the runs' rows in the ledger. In each block stand models without latents, and the limit where
one is known. A run that is no better than the model of the same likelihood without latents has failed: it gets no
verdict, and nothing is compared with it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.experiment import Declared, Filled, Judgement, Request, RunGroup, made
from silentgrad.lab.experiments.results import Results, compared, spread
from silentgrad.lab.experiments.tuning import Grid
from silentgrad.lab.tables import Column, Content, Interval, shown

SIMPLE = {
    "independent": "no latents: the same likelihood",
    "histogram": "no latents: histogram",
    "limit": "limit: probabilistic PCA",
}
FIGURES = [
    Column("chosen by validation"),
    Column("test BPD", 4),
    Column("above the limit", 4),
    Column("KLD", 1),
    Column("MSE", 2),
    Column("steps to the level", 0),
    Column("CPU seconds", 0),
    Column("runs", 0),
]
READING = [
    "The level is where the worst run of the best of these rows ends in validation: {levels}. Steps to it are counted "
    "at the ends of epochs.",
    "The interval of 95 % is Student's, over pairs of runs of one seed. A run that diverged, or is no better than the "
    "same likelihood without latents, has failed: nothing is compared with it.",
    "Every run is in `results/{name}.csv`, with the command that repeats it.",
]


@dataclass(frozen=True)
class Comparison:
    """What is compared in a table of tuned rows.

    Args:
        name: Name of the table's files.
        title: Its heading.
        heads: Heads of the columns that name a block.
        labels: Function from a run to the labels of its block.
        methods: Methods in print, by name.
        reference: The method that the others are compared with.
        levels: The methods whose end is the level that steps are counted to.
        notes: Sentences on how it was made.
    """

    name: str
    title: str
    heads: Sequence[str]
    labels: Callable[[Cell], list[str]]
    methods: dict[str, str]
    reference: str
    levels: Sequence[str]
    notes: Sequence[str]

    def declared(
        self, cells: Callable[[Request], list[Cell]], grid: Callable[[Cell], Grid], datasets: Sequence[str]
    ) -> Declared:
        """Return the experiment, from the function that makes its runs and the values to choose from."""
        against = [Column(f"against {self.methods[self.reference]}", 4, judges=True), Column("verdict", judges=True)]
        columns = [*map(Column, self.heads), Column("method"), *FIGURES[:2], *against, *FIGURES[2:]]
        return Declared(
            name=self.name,
            title=self.title,
            columns=lambda scale: columns,
            rows=self.rows,
            figures=self.figures,
            judge=self.verdicts,
            notes=self.all_notes,
            cells=cells,
            grid=grid,
            block=_block,
            refused=dict.fromkeys(("paper", "conv"), f"{self.name} is not in the paper"),
            datasets=datasets,
        )

    def rows(self, results: Results, request: Request) -> list[RunGroup]:
        """Return a row for each method, after those of the simple models of its block."""
        rows: dict[str, RunGroup] = {}
        for cell in results.cells:
            own = {"dataset": cell.dataset, "variant": cell.variant, "latent": cell.latent}
            for field, title in SIMPLE.items():
                if any(getattr(row, field) is not None for row in results.rows(**own)):
                    rows.setdefault(f"{own} {field}", RunGroup([*self.labels(cell), title, ""], own))
            title = self.methods[cell.method]
            rows.setdefault(
                f"{own} {title}", RunGroup([*self.labels(cell), title, point_of(cell)], {**own, "method": cell.method})
            )
        return list(rows.values())

    def figures(self, results: Results, group: RunGroup, request: Request) -> list[Content]:
        """Return the figures of a row."""
        rows = results.rows(**group.runs)
        if "method" not in group.runs:
            field = next(field for field, title in SIMPLE.items() if title in group.labels)
            return [next(getattr(row, field) for row in rows), *[None] * 8]
        others = results.rows(**{**group.runs, "method": self.reference})
        difference = None if group.runs["method"] == self.reference else compared(rows, others)
        failed = f"failed ({sum(row.failed for row in rows)} of {len(rows)})"
        level = self._level(results, group)
        reached = [row.reach(level) for row in rows]
        steps = [float(step) for step in reached if step is not None]
        return [
            results.over_seeds("test", **group.runs),
            difference,
            failed if any(row.failed for row in rows) else difference.verdict if difference else None,
            spread(row.test - row.limit for row in rows if row.test is not None and row.limit is not None),
            results.over_seeds("kld", **group.runs),
            results.over_seeds("mse", **group.runs),
            spread(steps) if len(steps) == len(reached) else f"{len(steps)} of {len(reached)} runs reach it",
            results.over_seeds("seconds", **group.runs),
            float(len(rows)),
        ]

    def _level(self, results: Results, group: RunGroup) -> float:
        ends: dict[str, float] = {}
        block = {name: value for name, value in group.runs.items() if name != "method"}
        for method in self.levels:
            valid = [row.valid for row in results.rows(**block, method=method) if row.valid is not None]
            if valid:
                ends[method] = max(valid)
        return min(ends.values(), default=-math.inf)

    def verdicts(self, filled: list[Filled]) -> Judgement:
        """Return each row's change against the reference of its block, in sentences."""
        sentences = []
        for group, figures in filled:
            change = figures[1]
            if isinstance(change, Interval) and change.margin is not None:
                *labels, method, _ = group.labels
                against = self.methods[self.reference]
                sentences.append(f"{', '.join(labels)}: {method} against {against} {shown(change)} BPD.")
        return Judgement([], sentences)

    def all_notes(self, results: Results, request: Request) -> list[str]:
        """Return how the table was made and how it is to be read."""
        levels = ", ".join(self.methods[method] for method in self.levels)
        reading = [sentence.format(levels=levels, name=self.name) for sentence in READING]
        return [*made(results, request), *self.notes, *reading]


def point_of(cell: Cell) -> str:
    """Return what was chosen for a run, in print."""
    return ", ".join(f"{option.partition('.')[2]} {value}" for option, value in cell.point)


def _block(cell: Cell) -> object:
    return cell.dataset, cell.variant, cell.latent
