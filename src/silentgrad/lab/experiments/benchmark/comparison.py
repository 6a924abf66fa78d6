"""From finished runs and measurements to the benchmark's tables and what they say.

The papers' claims about which estimator varies less are held against what was measured: where both take the same
evaluations the variances are compared, elsewhere the variances times evaluations.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from silentgrad.analysis import DRAWS, Decomposition
from silentgrad.lab.experiments.benchmark.gradients import ToyNoise, milliseconds_of, toys_of, variances_at
from silentgrad.lab.experiments.benchmark.protocol import BATCH, REFERENCE, BenchmarkPlan, BenchmarkRun, Setting
from silentgrad.lab.experiments.benchmark.runs import Result, read_result, runs_by
from silentgrad.lab.experiments.results import paired, spread
from silentgrad.lab.runs.findings import Curves, ElboProgress, Findings
from silentgrad.lab.settings import EstimatorName
from silentgrad.lab.tables import Column, Content, Table

TITLE = "Estimators of the gradient of bits, side by side"
HEADS = [  # of a setting's own table
    Column("estimator"),
    Column("test bound", 1),
    Column("training ELBO", 1),
    Column("tuned"),
    Column("ms a step", 1),
]
TOY_COLUMNS = [
    Column("problem"),
    Column("estimator"),
    Column("bias, % of the gradient"),
    Column("of which draws, %"),
    Column("variance / gradient²"),
    Column("evaluations", 0),
    Column("variance x evaluations"),
]
ORDERS = [  # the one of less variance, the one of more, and whose claim it is
    ("disarm", "arm", "Dong et al. 2020"),
    ("disarm", "rloo", "Dong et al. 2020"),
    ("arms", "rloo", "Dimitriev and Zhou 2021"),
    ("double-cv", "rloo", "Titsias and Shi 2022"),
    ("double-cv", "disarm", "Titsias and Shi 2022"),
    ("rebar", "reinforce", "Tucker et al. 2017"),
    ("relax", "rebar", "Grathwohl et al. 2018"),
    ("muprop", "reinforce", "Gu et al. 2016"),
    ("nvil", "reinforce", "Mnih and Gregor 2014"),
]

Noises = Mapping[int, Mapping[str, Decomposition]]  # by step and estimator


@dataclass(frozen=True)
class Found:
    """All that was found in a setting."""

    plan: BenchmarkPlan
    setting: Setting

    @cached_property
    def results(self) -> dict[EstimatorName, list[Result]]:
        """The runs of each estimator that was trained, by seed."""
        names = self.plan.trained(self.setting)
        return {name: [read_result(self.plan.folder / run.name) for run in self._runs(name)] for name in names}

    @cached_property
    def noises(self) -> Noises:
        """The variance of each estimator's gradient, by step."""
        return {step: variances_at(self.plan, self.setting, step) for step in self.plan.size.measured}

    @cached_property
    def times(self) -> dict[str, float]:
        """Milliseconds of a step."""
        return milliseconds_of(self.plan, self.setting)

    @cached_property
    def ranked(self) -> list[EstimatorName]:
        """Estimators by their test bound, the exact one first and those that were not trained last."""
        return sorted(self.plan.names(self.setting), key=lambda name: (name != "exact", -self.bound(name)))

    def _runs(self, name: EstimatorName) -> list[BenchmarkRun]:
        return runs_by(self.plan, self.setting, name)

    def bounds(self, name: EstimatorName) -> list[float]:
        """Return the test bounds of an estimator's runs; none if one of them has none."""
        bounds = [result.test for result in self.results.get(name, [])]
        return [bound for bound in bounds if bound is not None] if None not in bounds else []

    def bound(self, name: EstimatorName) -> float:
        """Return the mean test bound of an estimator; minus infinity without one."""
        bounds = self.bounds(name)
        return statistics.fmean(bounds) if bounds else -math.inf

    def row(self, name: EstimatorName) -> list[Content]:
        """Return the row of an estimator in the setting's own table."""
        return [name, *self._figures(name), self.times[name]]

    def _figures(self, name: EstimatorName) -> list[Content]:
        """Test bound and training ELBO over seeds, and what validation chose."""
        if name not in self.results:
            return ["not trained", None, None]
        results, tuned = self.results[name], self._runs(name)[0].tuned
        told = ", ".join(f"{word} {value:g}" for word, value in tuned.items()) or "as in the papers"
        failed = sum(result.diverged is not None for result in results)
        if failed:
            return [f"diverged ({failed} of {len(results)})", None, told]
        return [spread(self.bounds(name)), spread([result.elbos[-1] for result in results]), told]

    def long_row(self, name: EstimatorName) -> list[Content]:
        """Return the row of an estimator in the table of all figures."""
        last = self.noises[self.plan.size.measured[-1]][name]
        assert last.evaluations is not None
        figures = [*(noise[name].est for noise in self.noises.values()), last.squared_bias]
        figures += [*(last.error(draws) for draws in DRAWS), last.work, last.snr, last.cosine]
        unbiased = "yes" if last.unbiased else ""
        return [self.plan.title(self.setting), *self.row(name), float(last.evaluations), unbiased, *figures]

    def panel(self) -> tuple[Table, Curves]:
        """Return the table of the setting, and the curves of the first seed."""
        best = max(range(len(self.ranked)), key=lambda place: self.bound(self.ranked[place]))
        marked = [best] if self.plan.scale != "smoke" and self.bounds(self.ranked[best]) else []
        rows = [self.row(name) for name in self.ranked]
        lines = {}
        for name in self.ranked:
            if name in self.results:
                first = self.results[name][0]
                seconds = [step * self.times[name] / 1e3 for step in first.steps]
                lines[name] = ElboProgress(first.steps, seconds, first.elbos)
        return Table(self.plan.title(self.setting), HEADS, rows, marked, name=self.setting.name), Curves(lines)

    def advantage(self) -> list[str]:
        """By how much the exact gradient ends above the best that sample, and how soon it is where they end.

        These are the best of all, the best that is unbiased of each cost, and REINFORCE.
        """
        exact, sentences = self.bounds("exact"), []
        others = [name for name in self.ranked if name != "exact" and self.bounds(name)]
        named = [*others[:1], *(name for name in ("disarm", "arms", REFERENCE, "reinforce") if name in others)]
        for name in dict.fromkeys(named) if exact else ():
            change = paired(exact, self.bounds(name))
            assert change is not None
            gain, seeds = f"{change.mean:+.1f} nats of test bound", "one seed, no verdict"
            if change.margin is not None:
                gain += f" [{change.mean - change.margin:+.1f}, {change.mean + change.margin:+.1f}]"
                seeds = f"{len(exact)} seeds, interval of 95 %"
            steps = _reached(self.results["exact"], self.results[name])
            sentences.append(
                f"{self.plan.title(self.setting)}: exact against {name}: {gain}, {seeds}; "
                f"of {self.plan.size.steps:,} steps it needs {steps} to have the training ELBO with which {name} ends."
            )
        return sentences


def _reached(ours: Sequence[Result], theirs: Sequence[Result]) -> str:
    """After which steps runs were first where others end, seed by seed, each number once."""
    found = [own.first_reach(other.elbos[-1]) for own, other in zip(ours, theirs, strict=True)]
    return ", ".join(dict.fromkeys("more than there are" if step is None else f"{step:,}" for step in found))


def benchmark_findings(plan: BenchmarkPlan, command: str) -> Findings:
    """Return the whole benchmark."""
    found = [Found(plan, setting) for setting in plan.settings]
    orders = orders_table({plan.title(one.setting): one.noises for one in found})
    parts = [part for one in found for part in one.panel()]
    verdicts = [*(sentence for one in found for sentence in one.advantage()), *told(orders)]
    rows = [one.long_row(name) for one in found for name in one.ranked]
    parts += [Table("All figures", _long_heads(plan), rows, name="benchmark"), orders, _toy_table(toys_of(plan))]
    return Findings("benchmark", TITLE, parts, verdicts if plan.scale != "smoke" else [], _notes(plan), command=command)


def _long_heads(plan: BenchmarkPlan) -> list[Column]:
    last = f"step {plan.size.measured[-1]:,}"
    return [
        *(Column("setting"), *HEADS, Column("evaluations", 0), Column("unbiased")),
        *(Column(f"variance, step {step:,}") for step in plan.size.measured),
        Column(f"bias², {last}"),
        *(Column(f"squared error of {draws} draws, {last}") for draws in DRAWS),
        Column(f"variance x evaluations, {last}"),
        Column(f"signal-to-noise, {last}"),
        Column(f"cosine to exact, {last}", 3),
    ]


def orders_table(noises: Mapping[str, Noises]) -> Table:
    """Return the papers' claims in every setting, by its title, at every step that was measured."""
    columns = [Column("setting"), Column("step")]
    columns += [Column(f"{less} / {more} ({source})", 2) for less, more, source in ORDERS]
    rows: list[list[Content]] = []
    for title, by_step in noises.items():
        for step, found in by_step.items():
            rows.append([title, f"{step:,}", *(_ratio(found.get(less), found.get(more)) for less, more, _ in ORDERS)])
    return Table("Variances in the order of the papers: below 1 is as they say", columns, rows, name="orders")


def _ratio(less: Decomposition | None, more: Decomposition | None) -> float | None:
    """One variance in parts of another, each times evaluations where the two differ in them; None without either."""
    if less is None or more is None:
        return None
    return less.est / more.est if less.evaluations == more.evaluations else less.work / more.work


def told(table: Table) -> list[str]:
    """Return how many of the claims hold, and which do not, in sentences."""
    held, broken = 0, []
    for setting, step, *parts in table.rows:
        for (less, more, _), part in zip(ORDERS, parts, strict=True):
            if isinstance(part, float) and part < 1:
                held += 1
            elif isinstance(part, float):
                broken.append(f"{less} below {more} ({setting}, step {step}: {part:.2f})")
    sentences = [f"Orders of variance that papers claim: {held} of {held + len(broken)} hold."]
    return [*sentences, f"Not here: {'; '.join(broken)}."] if broken else sentences


def _toy_table(noises: Sequence[ToyNoise]) -> Table:
    rows: list[list[Content]] = []
    for noise in noises:
        bias = 100 * noise.bias if noise.biased else "within the draws"
        figures: list[Content] = [100 * noise.bias_error, noise.variance, float(noise.evaluations), noise.work]
        rows.append([noise.toy, noise.estimator, bias, *figures])
    return Table("Toy problems, whose gradient is known", TOY_COLUMNS, rows, name="toys")


def _notes(plan: BenchmarkPlan) -> list[str]:
    size = plan.size
    notes = [
        f"Scale {plan.scale}: {size.steps:,} steps of batches of {BATCH}, {size.latents} latents; mean ± standard "
        "deviation over seeds where there are several.",
        f"Test bound: importance-weighted, nats per image, {size.samples} samples, {size.examples:,} test images. "
        f"Training ELBO: the mean over {size.examples:,} fixed training images, by one sample or in closed form; for "
        "vimco too, which ascends another bound.",
        "Tuned: what the validation bound of seed 0 chose, where it is not the protocol's rate or the default "
        f"temperature, of the rates {', '.join(f'{rate:g}' for rate in size.rates)} and two temperatures."
        if plan.tune
        else "Nothing was tuned: rates are the papers', temperatures the defaults.",
        f"Variance and signal-to-noise ratio: of the encoder's gradient, all on the weights of the {REFERENCE} run of "
        f"seed 0 at that step; {size.batches} batches, {size.draws} draws each. What an estimator learns it first "
        f"learned for {size.learning} steps on these weights.",
        "bias²: squared distance of the mean gradient from the exact one, or from that of the unbiased estimator that "
        "varies least; squared error of n draws: bias² + variance / n.",
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
