"""The table of comparisons: each method, tuned or not, against the reference of its block, by pairs of seeds.

The figures are those of the runs' rows in the ledger. In each block stand models without latents, and the limit where
one is known.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from silentgrad.lab.experiments.cells import Cell, Request
from silentgrad.lab.experiments.experiment import Experiment, FigureColumn, FilledRow, RowOfRuns, made, over_seeds
from silentgrad.lab.experiments.results import Difference, Results, compared, spread
from silentgrad.lab.tables import Column, Content, Curves, Findings, Table, shown

CHOSEN = ("method", "chosen by validation")  # the last heads
FIGURES = {  # field of a run's row -> its name in print, and digits
    "elbo": ("sampled ELBO", 4),
    "test": ("test BPD", 4),
    "above_limit": ("above the limit", 4),
    "kld": ("KLD", 1),
    "mse": ("MSE", 2),
}
MODELS = {  # figures that stand beside those of runs, by their field of a run's row
    "independent": "no latents: the same likelihood",
    "histogram": "no latents: histogram",
    "limit": "limit: probabilistic PCA",
}
LEVEL = (
    "The level is where the worst run of the best of these rows ends in validation: {levels}. Steps to it are counted "
    "at the ends of epochs, and not before a variance that falls has come to its end."
)
READING = [
    "The interval of 95 % is Student's, over pairs of runs of one seed. A run that diverged, or is no better than the "
    "same likelihood without latents, has failed: nothing is compared with it.",
    "Every run is a row of the CSV in `results`, with the command that repeats it.",
]


@dataclass(frozen=True, kw_only=True)
class Comparison(Experiment):
    """A table of methods in blocks, which are runs of one dataset, variant and family of latents.

    Its first column of figures models without latents have too.
    """

    name: str  # name of its files
    title: str  # its heading
    heads: Sequence[str]  # of the columns with the labels of a row
    labels: Callable[[Cell], list[str]]  # from a run to the labels of its block
    methods: Mapping[str, str]  # methods in print, by name
    reference: str  # the method that the others are compared with
    metric: str = "test"  # the figure in which they are compared, among FIGURES
    better: int = -1  # 1 if more of it is better
    levels: Sequence[str] = ()  # the methods whose end is the level that steps are counted to
    models: Mapping[str, str] = field(default_factory=lambda: MODELS)  # without latents, in print
    beside: Sequence[FigureColumn] = ()  # columns that stand beside the figure
    told: Sequence[str] = ()  # sentences on how it was made
    curved: bool = False  # whether the curves of the first seed are shown; those of many blocks cover each other

    def build(self, results: Results, request: Request) -> Findings:
        """Return the table of finished runs, with all that its scale allows it to say, but for empty columns."""
        columns, filled = self.figures(request), []
        for row in self.rows(results):
            if row.model:
                figures = [results.first(row.model, **row.runs), *[None] * (len(columns) - 1)]
            else:
                figures = [column.of(results, row) for column in columns]
            filled.append(FilledRow(row, dict(zip([own.column.name for own in columns], figures, strict=True))))
        cells = [[*row.labels, *figures.values()] for row, figures in filled]
        heads = [*map(Column, self.heads), *(own.column for own in columns)]
        table = Table(self.title, heads, cells, name=self.name)
        table = table.only(lambda column, _: request.comparable or not column.judges)
        table = table.only(lambda _, found: any(cell not in (None, "") for cell in found))
        verdicts = self.judge(filled) if request.comparable else []
        first = results.where(seed=min(cell.seed for cell in results.cells))
        curves = [Curves(results.labels(first))] if self.curved else []
        return Findings(self.name, self.title, [table, *curves], verdicts, self.notes(results, request))

    def rows(self, results: Results) -> list[RowOfRuns]:
        """Return the rows: methods, and what has to be beaten."""
        rows: dict[str, RowOfRuns] = {}
        for cell in results.cells:
            own = {"dataset": cell.dataset, "variant": cell.variant, "latent": cell.latent}
            known = {results.first(model, **own): model for model in self.models}  # what whole levels beat is told once
            for figure, model in known.items() if self.metric in ("test", "elbo") else ():
                if figure is not None:
                    labels = [*self.labels(cell), self.models[model], ""]
                    rows.setdefault(f"{own} {model}", RowOfRuns(labels, own, model))
            labels = [*self.labels(cell), self.methods[cell.method], point_of(cell)]
            rows.setdefault(f"{own} {cell.method}", RowOfRuns(labels, {**own, "method": cell.method}))
        return list(rows.values())

    @property
    def against(self) -> str:
        return f"against {self.methods[self.reference]}"

    def figures(self, request: Request) -> list[FigureColumn]:
        """Return the columns of figures."""
        others = [field for field in FIGURES if field not in ("elbo", self.metric)]
        first, *rest = [over_seeds(FIGURES[field][0], field, FIGURES[field][1]) for field in (self.metric, *others)]
        return [
            first,
            *self.beside,
            FigureColumn(Column(self.against, 4, judges=True), self._difference),
            FigureColumn(Column("verdict", judges=True), self._verdict),
            *rest,
            FigureColumn(Column("steps to the level", 0), self._steps),
            over_seeds("CPU seconds", "seconds", 0),
            FigureColumn(Column("runs", 0), lambda results, row: float(len(results.rows(**row.runs)))),
        ]

    def reference_of(self, method: str) -> str:
        """Return what a method is compared with."""
        return self.reference

    def _difference(self, results: Results, row: RowOfRuns) -> Difference | None:
        reference = {**row.runs, "method": self.reference_of(row.runs["method"])}
        if reference == row.runs:
            return None
        return compared(results.rows(**row.runs), results.rows(**reference), self.metric)

    def _verdict(self, results: Results, row: RowOfRuns) -> Content:
        rows, difference = results.rows(**row.runs), self._difference(results, row)
        failed = sum(own.failed for own in rows)
        if failed:
            return f"failed ({failed} of {len(rows)})"
        return replace(difference, mean=-self.better * difference.mean).verdict if difference else None

    def _steps(self, results: Results, row: RowOfRuns) -> Content:
        ends = []
        for method in self.levels:
            others = results.rows(**{**row.runs, "method": method})
            ends.append(max((own.valid for own in others if own.valid is not None), default=math.inf))
        if not ends:
            return None
        level = min(ends) if min(ends) < math.inf else -math.inf
        runs, epochs = results.rows(**row.runs), results.epochs_to(level, **row.runs)
        if math.inf in epochs:
            return f"{len(epochs) - epochs.count(math.inf)} of {len(epochs)} runs reach it"
        return spread(epoch * own.steps / len(own.curve) for epoch, own in zip(epochs, runs, strict=True))

    def judge(self, filled: list[FilledRow]) -> list[str]:
        """Return what the filled rows say, in sentences."""
        sentences = []
        for row, figures in filled:
            change = figures[self.against]
            if isinstance(change, Difference) and change.margin is not None:
                *labels, method, _ = row.labels
                told = f"{method} {self.against} {shown(change)} in {FIGURES[self.metric][0]}: {figures['verdict']}."
                sentences.append(f"{', '.join(filter(None, labels))}: {told}")
        return sentences

    def notes(self, results: Results, request: Request) -> list[str]:
        """Return sentences that say how the table was made."""
        levels = ", ".join(self.methods[method] for method in self.levels)
        reading = [LEVEL.format(levels=levels)] * bool(levels) + READING
        return [*made(results, request), *self.told, *reading]


def point_of(cell: Cell) -> str:
    """Return what was chosen for a run, in print; of what stays as it is by default, nothing."""
    return ", ".join(f"{option.partition('.')[2]} {value}" for option, value in cell.point if value is not None)
