"""From finished runs and measurements to the benchmark's tables and what they say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from silentgrad.analysis import DRAWS, Decomposition
from silentgrad.lab.experiments.benchmark.gradients import variances_at
from silentgrad.lab.experiments.benchmark.protocol import BATCH, REFERENCE, BenchmarkPlan, Setting
from silentgrad.lab.experiments.cells import Cell, Request
from silentgrad.lab.experiments.experiment import FigureColumn, FilledRow, RowOfRuns, made, over_seeds
from silentgrad.lab.experiments.ledger import Ledger
from silentgrad.lab.experiments.results import Difference, Results, compared, mean_of
from silentgrad.lab.experiments.runner import Job, Workers, run_jobs
from silentgrad.lab.experiments.tuned import CHOSEN, Comparison
from silentgrad.lab.tables import Column, Content, Curves, Findings, Table

OF_FIGURES = ("test bound", "training ELBO", "against exact")
OF_RUNS = ("chosen by validation", *OF_FIGURES, "verdict", "steps to the level", "CPU seconds")
SHORT = "The papers train for 1,000,000 steps, so that none of their figures stands beside these."

OfNoise = Callable[[Decomposition], Content]


@dataclass(frozen=True, kw_only=True)
class Benchmark(Comparison):
    """A table of all settings, one of each with its curves, and the gradients' variances."""

    plan: BenchmarkPlan

    def make(self, request: Request, ledger: Ledger, make: Callable[[Sequence[Cell]], None]) -> list[Cell]:
        make([self.plan.reference(setting) for setting in self.plan.settings])
        return super().make(request, ledger, make)

    def rows(self, results: Results) -> list[RowOfRuns]:
        """Return the rows of each setting: the exact one first, then by test bound, and what has to be beaten."""
        titles = list(map(self.plan.title, self.plan.settings))

        def order(row: RowOfRuns) -> tuple[int, bool, bool, float, str]:
            test = mean_of(results.over_seeds("test", **row.runs))
            return titles.index(row.labels[0]), bool(row.model), row.labels[1] != "exact", test, row.labels[1]

        return sorted(super().rows(results), key=order)

    def figures(self, request: Request) -> list[FigureColumn]:
        *_, last = self.plan.size.measured
        at, measured = f", step {self.step(last):,}", partial(self._measured, last)
        return [
            over_seeds("test bound", "test"),
            over_seeds("training ELBO", "training"),
            FigureColumn(Column("against exact", judges=True), self._difference),
            FigureColumn(Column("verdict", judges=True), self._verdict),
            FigureColumn(Column("steps to the level", 0), self._steps),
            over_seeds("CPU seconds", "seconds", 0),
            measured("evaluations", lambda noise: float(noise.evaluations or 0), 0),
            measured("unbiased", lambda noise: "yes" if noise.unbiased else ""),
            *(
                self._measured(epoch, f"variance, step {self.step(epoch):,}", lambda noise: noise.est)
                for epoch in self.plan.size.measured
            ),
            measured(f"bias²{at}", lambda noise: noise.squared_bias),
            *(
                measured(f"squared error of {draws} draws{at}", partial(Decomposition.error, draws=draws))
                for draws in DRAWS
            ),
            measured(f"variance x evaluations{at}", lambda noise: noise.work),
            measured(f"signal-to-noise{at}", lambda noise: noise.snr),
            measured(f"cosine to exact{at}", lambda noise: noise.cosine, 3),
        ]

    def judge(self, filled: list[FilledRow]) -> list[str]:
        sentences = []
        for title in map(self.plan.title, self.plan.settings):
            own = [row for row in filled if row.row.labels[0] == title and not row.row.model]
            best = min(own, key=lambda row: mean_of(row.figures["test bound"]))
            sentences.append(f"{title}: the best test bound has {best.row.labels[1]}.")
        return sentences

    def build(self, results: Results, request: Request) -> Findings:
        found = super().build(results, request)
        (table,) = found.tables
        parts = [part for setting in self.plan.settings for part in self._panel(setting, table, results)]
        rows = [row for row in table.rows if row[1] in self.methods]
        gradients = replace(table, title="Gradients", rows=rows, name="gradients")
        return replace(found, parts=[*parts, gradients.only(lambda column, _: column.name not in OF_RUNS)])

    def step(self, epoch: int) -> int:
        """Return the number of steps up to the end of an epoch."""
        return epoch * self.plan.size.epoch_steps

    def notes(self, results: Results, request: Request) -> list[str]:
        size = self.plan.size
        return [
            *made(results, request),
            f"{self.step(size.epochs):,} steps of batches of {BATCH}, {size.latents} latents. Test bound: "
            f"importance-weighted, {size.samples} samples. Training ELBO: of as many training images as the test has, "
            "by samples or in closed form; for vimco too, which ascends another bound. Both of the epoch that is best "
            "in validation.",
            "Chosen by validation with seed 0: the learning rate among "
            f"{', '.join(f'{rate:g}' for rate in size.rates)}, and the temperature of those that have one. Runs in the "
            "table have other seeds."
            if request.tune
            else "Nothing was tuned: rates are the papers', temperatures the defaults.",
            "The level is where the worst run of the best row that samples ends in validation. Intervals of 95 % are "
            "Student's, over pairs of runs of one seed. A run whose ELBO is no better than the same likelihood without "
            "latents has failed.",
            f"Variance and signal-to-noise ratio: of the encoder's gradient, all on the weights of the {REFERENCE} run "
            f"of seed 0 at that step; {size.batches} batches, {size.draws} draws each. What an estimator learns it "
            f"first learned for {size.epoch_steps} steps on these weights.",
            "bias²: squared distance of the mean gradient from the exact one, or from that of the unbiased estimator "
            "that varies least; squared error of n draws: bias² + variance / n.",
            "In the Gaussian variant a test pixel that never changed in training costs up to thousands of nats, the "
            "same for all estimators.",
            *([] if self.plan.scale == "paper" else [SHORT]),
        ]

    def _difference(self, results: Results, row: RowOfRuns) -> Difference | None:
        """Return the difference in the test bound from exact runs, whether or not these are better than no latents."""
        ours, exact = (
            [replace(run, independent=None) for run in results.rows(**{**row.runs, "method": name})]
            for name in (row.runs["method"], self.reference)
        )
        return None if ours == exact else compared(ours, exact)

    def _measured(self, epoch: int, title: str, of: OfNoise, digits: int | None = None) -> FigureColumn:
        """Return the column of something about each estimator's gradient after an epoch of the reference run."""

        def content(results: Results, row: RowOfRuns) -> Content:
            setting = self.plan.setting(row.runs["dataset"], row.runs["variant"])
            return of(variances_at(self.plan, setting, epoch)[row.runs["method"]])

        return FigureColumn(Column(title, digits), content)

    def _panel(self, setting: Setting, table: Table, results: Results) -> tuple[Table, Curves]:
        """Return the table of a setting, and the validation curves of the first seed."""
        title, unit = self.plan.title(setting), f"{setting.unit.in_words}, lower is better"
        columns = [replace(one, unit=unit if one.name in OF_FIGURES else "") for one in table.columns]
        panel = Table(title, columns, [row for row in table.rows if row[0] == title], name=setting.name)
        own = {"dataset": setting.dataset, "variant": setting.variant}
        first = {name: results.where(**own, method=name)[0] for name in self.plan.names(setting)}
        curves = {name: cell.name for name, cell in first.items() if results.run(cell).summary.exists()}
        return panel.only(
            lambda column, found: column.name in ("method", *OF_RUNS) and any(cell not in (None, "") for cell in found)
        ), Curves(curves)


def benchmark_of(plan: BenchmarkPlan) -> Benchmark:
    """Return the experiment of a plan."""
    names = {name: name for setting in plan.settings for name in plan.names(setting)}
    return Benchmark(
        plan=plan,
        name="benchmark",
        title="Estimators of the gradient of bits, side by side",
        heads=["setting", *CHOSEN],
        cells=lambda request: plan.runs(request.seeds),
        grid=plan.grid,
        labels=lambda cell: [plan.title(plan.setting(cell.dataset, cell.variant))],
        methods=names,
        reference="exact",
        levels=[name for name in names if name != "exact"],
    )


def measure(plan: BenchmarkPlan, workers: Workers) -> None:
    """Measure the gradients' variances that are not known yet, side by side."""
    places = product(plan.settings, plan.size.measured)
    jobs = [Job(partial(variances_at, plan, setting, epoch)) for setting, epoch in places]
    run_jobs("noise of the gradients", jobs, len(jobs), workers)
