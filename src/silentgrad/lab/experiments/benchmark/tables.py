"""From finished runs and measurements to the benchmark's tables and what they say."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from silentgrad.lab.experiments.benchmark.measuring import Noise, read_noise
from silentgrad.lab.experiments.benchmark.orders import orders_table, told
from silentgrad.lab.experiments.benchmark.plan import Plan, read_times, read_toys
from silentgrad.lab.experiments.benchmark.protocol import BATCH, REFERENCE, BenchmarkRun, Setting
from silentgrad.lab.experiments.benchmark.records import Result, read_result
from silentgrad.lab.experiments.benchmark.toys import ToyNoise
from silentgrad.lab.experiments.paired import paired
from silentgrad.lab.experiments.results import spread
from silentgrad.lab.runs.benchmark import BenchmarkRecord, Panel, Progress
from silentgrad.lab.runs.tables import Column, Content, Table
from silentgrad.lab.training.suitable import EstimatorName

TOY_COLUMNS = [
    Column("problem"),
    Column("estimator"),
    Column("bias, % of the gradient"),
    Column("of which draws, %"),
    Column("variance / gradient²"),
    Column("evaluations", 0),
    Column("variance x evaluations"),
]


class Found(NamedTuple):
    """All that was found in a setting.

    Args:
        setting: The setting.
        results: The runs of each estimator that was trained, by seed.
        noises: The noise of each estimator, by step.
        times: Milliseconds of a step.
    """

    setting: Setting
    results: dict[EstimatorName, list[Result]]
    noises: dict[int, dict[str, Noise]]
    times: dict[str, float]

    def ends(self, name: EstimatorName) -> list[float]:
        """The last ELBO of an estimator's runs; empty if one of them diverged."""
        ends = []
        for result in self.results.get(name, []):
            if result.diverged is not None:
                return []
            ends.append(result.curve.elbos[-1])
        return ends

    def ranked(self, names: Sequence[EstimatorName]) -> list[EstimatorName]:
        """Estimators by their last ELBO, the exact one first and those that were not trained last."""

        def place(name: EstimatorName) -> tuple[bool, float]:
            ends = self.ends(name)
            if not ends:
                return name != "exact", float("inf")
            return name != "exact", -statistics.fmean(ends)

        return sorted(names, key=place)


def benchmark_record(plan: Plan, command: str) -> BenchmarkRecord:
    """The whole benchmark."""
    panels, verdicts = [], []
    noises: dict[str, dict[int, dict[str, Noise]]] = {}
    for setting in plan.settings:
        found = _found(plan, setting)
        panels.append(_panel(plan, found))
        verdicts += _advantage(plan, found)
        noises[setting.title(plan.scale)] = found.noises
    orders = orders_table(noises)
    verdicts += told(orders)
    if plan.scale == "smoke":
        verdicts = []
    return BenchmarkRecord(panels, orders, _toy_table(read_toys(plan)), verdicts, _notes(plan), command)


def _found(plan: Plan, setting: Setting) -> Found:
    results: dict[EstimatorName, list[Result]] = {}
    for name in plan.trained(setting):
        results[name] = []
        for seed in range(plan.seeds_of(setting)):
            results[name].append(read_result(plan.folder / BenchmarkRun(setting, name, seed).name))
    noises = {step: read_noise(plan.noise_file(setting, step)) for step in plan.size.measured}
    return Found(setting, results, noises, dict(read_times(plan, setting)))


def _panel(plan: Plan, found: Found) -> Panel:
    names = found.ranked(plan.names(found.setting))
    rows: list[list[Content]] = []
    curves: dict[str, Progress] = {}
    for name in names:
        rows.append(_row(found, name))
        if found.results.get(name):
            curves[name] = _progress(found, name)
    table = Table(found.setting.name, found.setting.title(plan.scale), _columns(plan), rows, _best(plan, found, names))
    return Panel(_without_empty_columns(table), curves)


def _best(plan: Plan, found: Found, names: Sequence[EstimatorName]) -> list[int]:
    """The place of the estimator with the highest ELBO; none at a scale whose figures mean nothing."""
    trained = [place for place, name in enumerate(names) if found.ends(name)]
    if plan.scale == "smoke" or not trained:
        return []
    return [max(trained, key=lambda place: statistics.fmean(found.ends(names[place])))]


def _without_empty_columns(table: Table) -> Table:
    """The table without columns that hold nothing: the cosine to the exact gradient, where there is none."""
    kept = []
    for place in range(len(table.columns)):
        if any(row[place] is not None for row in table.rows):
            kept.append(place)
    columns = [table.columns[place] for place in kept]
    rows: list[list[Content]] = []
    for row in table.rows:
        rows.append([row[place] for place in kept])
    return replace(table, columns=columns, rows=rows)


def _columns(plan: Plan) -> list[Column]:
    columns = [Column("estimator"), Column("training ELBO", 1), Column(f"test bound, {plan.size.samples} samples", 1)]
    for step in plan.size.measured:
        columns.append(Column(f"variance, step {step:,}"))
    last = plan.size.measured[-1]
    columns.append(Column(f"variance x evaluations, step {last:,}"))
    columns.append(Column(f"signal-to-noise, step {last:,}"))
    columns.append(Column(f"cosine to exact, step {last:,}", 3))
    return [*columns, Column("evaluations", 0), Column("ms a step", 1)]


def _row(found: Found, name: EstimatorName) -> list[Content]:
    row: list[Content] = [name, *_figures(found, name)]
    for noises in found.noises.values():
        row.append(noises[name].variance)
    last = list(found.noises.values())[-1][name]
    row += [last.variance * last.evaluations, last.snr, last.cosine, float(last.evaluations)]
    return [*row, found.times[name]]


def _figures(found: Found, name: EstimatorName) -> list[Content]:
    """Training ELBO and test bound over seeds."""
    results = found.results.get(name, [])
    if not results:
        return ["not trained", None]
    failed = [result for result in results if result.diverged is not None]
    if failed:
        return [f"diverged ({len(failed)} of {len(results)})", None]
    tests = [result.test for result in results if result.test is not None]
    return [spread(found.ends(name)), spread(tests)]


def _progress(found: Found, name: EstimatorName) -> Progress:
    """The curve of the first seed."""
    curve = found.results[name][0].curve
    seconds = [step * found.times[name] / 1e3 for step in curve.steps]
    return Progress(curve.steps, seconds, curve.elbos)


def _advantage(plan: Plan, found: Found) -> list[str]:
    """By how much the exact gradient ends above each of the best that sample, and how soon it is where they end."""
    exact = found.ends("exact")
    if not exact:
        return []
    sentences = []
    others = [name for name in found.ranked(plan.trained(found.setting)) if name != "exact" and found.ends(name)]
    for name in _named(others):
        change = paired(exact, found.ends(name))
        assert change is not None
        gain = f"{change.mean:+.1f} nats"
        if change.margin is not None:
            gain += f" [{change.mean - change.margin:+.1f}, {change.mean + change.margin:+.1f}]"
        steps = _reached(found.results["exact"], found.results[name])
        sentences.append(
            f"{found.setting.title(plan.scale)}: exact against {name}: {gain}, {_seeds(len(exact))}; "
            f"of {plan.size.steps:,} steps it needs {steps} to be where {name} ends."
        )
    return sentences


def _reached(ours: Sequence[Result], theirs: Sequence[Result]) -> str:
    """After which steps runs were first where others end, seed by seed; one number where all agree."""
    steps = []
    for own, other in zip(ours, theirs, strict=True):
        step = own.curve.first_reach(other.curve.elbos[-1])
        if step is None:
            steps.append("more than there are")
        else:
            steps.append(f"{step:,}")
    if len(set(steps)) == 1:
        return steps[0]
    return ", ".join(steps)


def _named(names: Sequence[EstimatorName]) -> list[EstimatorName]:
    """Of the estimators in their order: the best, the best that is unbiased of each cost, REINFORCE."""
    wanted = [*names[:1]]
    for name in ("disarm", "arms", REFERENCE, "reinforce"):
        if name in names and name not in wanted:
            wanted.append(name)
    return wanted


def _seeds(count: int) -> str:
    if count == 1:
        return "one seed, no verdict"
    return f"{count} seeds, interval of 95 %"


def _toy_table(noises: Sequence[ToyNoise]) -> Table:
    rows: list[list[Content]] = []
    for noise in noises:
        bias: Content = 100 * noise.bias
        if not noise.biased:
            bias = "within the draws"
        figures: list[Content] = [100 * noise.bias_error, noise.variance, float(noise.evaluations), noise.work]
        rows.append([noise.toy, noise.estimator, bias, *figures])
    return Table("toys", "Toy problems, whose gradient is known", TOY_COLUMNS, rows)


def _notes(plan: Plan) -> list[str]:
    size = plan.size
    notes = [
        f"Scale {plan.scale}: {size.steps:,} steps of batches of {BATCH}, {size.latents} latents; mean ± standard "
        "deviation over seeds where there are several.",
        f"Training ELBO: nats per image, the mean over {size.examples:,} fixed training images, by one sample or in "
        f"closed form; for vimco too, which ascends another bound. Test bound: importance-weighted, {size.tested:,} "
        "test images.",
        f"Variance and signal-to-noise ratio: of the encoder's gradient, all on the weights of the {REFERENCE} run of "
        f"seed 0 at that step; {size.batches} batches, {size.draws} draws each. What an estimator learns it first "
        f"learned for {size.learning} steps on these weights.",
        "Orders: the one's variance in parts of the other's, each times its evaluations where these differ.",
        f"Milliseconds: forward and backward, median of {size.rounds} rounds in which the estimators take turns.",
        "An estimator that was not trained takes too many evaluations a step at this scale.",
        "In the Gaussian variant a test pixel that never changed in training costs up to thousands of nats, the same "
        "for all estimators.",
    ]
    if plan.scale == "smoke":
        notes.insert(0, "This scale shows that everything works, on the digits; its figures mean nothing.")
    if plan.scale != "paper":
        notes.append("The papers train for 1,000,000 steps, so that none of their figures stands beside these.")
    return notes
