"""From finished runs and measurements to the benchmark's tables and what they say.

The papers' claims about which estimator varies less are held against what was measured: where both take the same
evaluations the variances are compared, elsewhere the variances times evaluations.
"""

import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from silentgrad.analysis import DRAWS, Decomposition
from silentgrad.lab.experiments.benchmark.gradients import ToyNoise, milliseconds_of, toys_of, variances_at
from silentgrad.lab.experiments.benchmark.protocol import BATCH, REFERENCE, BenchmarkPlan, Setting
from silentgrad.lab.experiments.benchmark.runs import Result, read_result, runs_by
from silentgrad.lab.experiments.results import paired, spread
from silentgrad.lab.runs.findings import Curves, ElboProgress, Findings
from silentgrad.lab.settings import EstimatorName
from silentgrad.lab.tables import Column, Content, Table

TITLE = "Estimators of the gradient of bits, side by side"
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


class Found(NamedTuple):
    """All that was found in a setting."""

    setting: Setting
    results: Mapping[EstimatorName, Sequence[Result]]  # the runs of each estimator that was trained, by seed
    noises: Noises  # the variance of each estimator's gradient, by step
    times: Mapping[str, float]  # milliseconds of a step
    tuned: Mapping[str, str] = MappingProxyType({})  # what validation chose, in words

    def bounds(self, name: EstimatorName) -> list[float]:
        """The test bounds of an estimator's runs; empty if one of them has none."""
        bounds = [result.test for result in self.results.get(name, [])]
        return [bound for bound in bounds if bound is not None] if None not in bounds else []

    def ranked(self, names: Sequence[EstimatorName]) -> list[EstimatorName]:
        """Estimators by their test bound, the exact one first and those that were not trained last."""

        def place(name: EstimatorName) -> tuple[bool, float]:
            bounds = self.bounds(name)
            return name != "exact", -statistics.fmean(bounds) if bounds else float("inf")

        return sorted(names, key=place)

    def row(self, name: EstimatorName) -> list[Content]:
        """The row of an estimator in the setting's own table."""
        return [name, *self._figures(name), self.times[name]]

    def long_row(self, title: str, name: EstimatorName) -> list[Content]:
        """The row of an estimator in the table of all figures."""
        noises = list(self.noises.values())
        last = noises[-1][name]
        assert last.evaluations is not None
        of_variance: list[Content] = [*(noise[name].est for noise in noises), last.squared_bias]
        of_variance += [*(last.error(draws) for draws in DRAWS), last.work, last.snr, last.cosine]
        return [title, *self.row(name), float(last.evaluations), "yes" if last.unbiased else "", *of_variance]

    def _figures(self, name: EstimatorName) -> list[Content]:
        """Test bound and training ELBO over seeds, and what was tuned."""
        if name not in self.results:
            return ["not trained", None, None]
        results = self.results[name]
        tuned = self.tuned.get(name) or "as in the papers"
        failed = sum(result.diverged is not None for result in results)
        if failed:
            return [f"diverged ({failed} of {len(results)})", None, tuned]
        return [spread(self.bounds(name)), spread([result.elbos[-1] for result in results]), tuned]

    def progress(self, name: EstimatorName) -> ElboProgress:
        """The curve of the first seed."""
        first = self.results[name][0]
        return ElboProgress(first.steps, [step * self.times[name] / 1e3 for step in first.steps], first.elbos)


def benchmark_findings(plan: BenchmarkPlan, command: str) -> Findings:
    """Return the whole benchmark."""
    parts: list[Table | Curves] = []
    verdicts = []
    noises: dict[str, Noises] = {}
    rows = []
    for setting in plan.settings:
        results, tuned = {}, {}
        for name in plan.trained(setting):
            runs = runs_by(plan, setting, name)
            results[name] = [read_result(plan.folder / run.name) for run in runs]
            tuned[name] = ", ".join(f"{word} {value:g}" for word, value in runs[0].tuned.items())
        by_step = {step: variances_at(plan, setting, step) for step in plan.size.measured}
        found = Found(setting, results, by_step, milliseconds_of(plan, setting), tuned)
        parts += _panel(plan, found)
        rows += [found.long_row(plan.title(setting), name) for name in found.ranked(plan.names(setting))]
        verdicts += _advantage(plan, found)
        noises[plan.title(setting)] = found.noises
    orders = orders_table(noises)
    verdicts += told(orders)
    if plan.scale == "smoke":
        verdicts = []
    parts += [_long_table(plan, rows), orders, _toy_table(toys_of(plan))]
    return Findings("benchmark", TITLE, parts, verdicts, _notes(plan), command=command)


def _heads() -> list[Column]:
    """The columns of a setting's own table."""
    return [
        Column("estimator"),
        Column("test bound", 1),
        Column("training ELBO", 1),
        Column("tuned"),
        Column("ms a step", 1),
    ]


def _panel(plan: BenchmarkPlan, found: Found) -> tuple[Table, Curves]:
    """Return the table of a setting, and its curves."""
    names = found.ranked(plan.names(found.setting))
    rows, best = [found.row(name) for name in names], _best(plan, found, names)
    table = Table(plan.title(found.setting), _heads(), rows, best, name=found.setting.name)
    return table, Curves({name: found.progress(name) for name in names if found.results.get(name)})


def _long_table(plan: BenchmarkPlan, rows: Sequence[list[Content]]) -> Table:
    """Return all figures of all settings."""
    last = f"step {plan.size.measured[-1]:,}"
    columns = [
        Column("setting"),
        *_heads(),
        Column("evaluations", 0),
        Column("unbiased"),
        *(Column(f"variance, step {step:,}") for step in plan.size.measured),
        Column(f"bias², {last}"),
        *(Column(f"squared error of {draws} draws, {last}") for draws in DRAWS),
        Column(f"variance x evaluations, {last}"),
        Column(f"signal-to-noise, {last}"),
        Column(f"cosine to exact, {last}", 3),
    ]
    return Table("All figures", columns, rows, name="benchmark")


def _best(plan: BenchmarkPlan, found: Found, names: Sequence[EstimatorName]) -> list[int]:
    """The place of the estimator with the highest bound; none at a scale whose figures mean nothing."""
    trained = [place for place, name in enumerate(names) if found.bounds(name)]
    if plan.scale == "smoke" or not trained:
        return []
    return [max(trained, key=lambda place: statistics.fmean(found.bounds(names[place])))]


def _advantage(plan: BenchmarkPlan, found: Found) -> list[str]:
    """By how much the exact gradient ends above the best that sample, and how soon it is where they end.

    These are the best of all, the best that is unbiased of each cost, and REINFORCE.
    """
    exact = found.bounds("exact")
    others = [name for name in found.ranked(plan.trained(found.setting)) if name != "exact" and found.bounds(name)]
    named = dict.fromkeys(
        [*others[:1], *(name for name in ("disarm", "arms", REFERENCE, "reinforce") if name in others)]
    )
    sentences = []
    for name in named if exact else ():
        change = paired(exact, found.bounds(name))
        assert change is not None
        gain, seeds = f"{change.mean:+.1f} nats of test bound", "one seed, no verdict"
        if change.margin is not None:
            gain += f" [{change.mean - change.margin:+.1f}, {change.mean + change.margin:+.1f}]"
            seeds = f"{len(exact)} seeds, interval of 95 %"
        steps = _reached(found.results["exact"], found.results[name])
        sentences.append(
            f"{plan.title(found.setting)}: exact against {name}: {gain}, {seeds}; "
            f"of {plan.size.steps:,} steps it needs {steps} to have the training ELBO with which {name} ends."
        )
    return sentences


def _reached(ours: Sequence[Result], theirs: Sequence[Result]) -> str:
    """After which steps runs were first where others end, seed by seed; one number where all agree."""
    steps = []
    for own, other in zip(ours, theirs, strict=True):
        step = own.first_reach(other.elbos[-1])
        steps.append("more than there are" if step is None else f"{step:,}")
    if len(set(steps)) == 1:
        return steps[0]
    return ", ".join(steps)


def orders_table(noises: Mapping[str, Noises]) -> Table:
    """The papers' claims in every setting, by its title, at every step that was measured."""
    columns = [Column("setting"), Column("step")]
    for less, more, source in ORDERS:
        columns.append(Column(f"{less} / {more} ({source})", 2))
    rows: list[list[Content]] = []
    for title, by_step in noises.items():
        for step, found in by_step.items():
            rows.append([title, f"{step:,}", *(_ratio(found.get(less), found.get(more)) for less, more, _ in ORDERS)])
    return Table("Variances in the order of the papers: below 1 is as they say", columns, rows, name="orders")


def _ratio(less: Decomposition | None, more: Decomposition | None) -> float | None:
    """One variance in parts of another, each times evaluations where the two differ in them; None without either."""
    if less is None or more is None:
        return None
    if less.evaluations == more.evaluations:
        return less.est / more.est
    return less.work / more.work


def told(table: Table) -> list[str]:
    """How many of the claims hold, and which do not, in sentences."""
    held, broken = 0, []
    for setting, step, *parts in table.rows:
        for (less, more, _), part in zip(ORDERS, parts, strict=True):
            if isinstance(part, float) and part < 1:
                held += 1
            elif isinstance(part, float):
                broken.append(f"{less} below {more} ({setting}, step {step}: {part:.2f})")
    sentences = [f"Orders of variance that papers claim: {held} of {held + len(broken)} hold."]
    if broken:
        sentences.append(f"Not here: {'; '.join(broken)}.")
    return sentences


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
