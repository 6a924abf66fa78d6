"""Several runs on one page: what differs in their settings, where they ended, how fast they got there."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from silentgrad.lab.reports import html
from silentgrad.lab.reports.figures import DPI, drawable, dress, name_legend, points, y_limits
from silentgrad.lab.runs.records import Metrics, RecordError, Run, write_atomically

# Okabe and Ito's colours without yellow, which is faint on white; then the same again with another line style
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
FIGURES = {"bpd": "test BPD", "limit_bpd": "limit BPD", "mse": "MSE", "kld": "KLD", "active": "active"}
PANELS = (("bpd", "epoch"), ("bpd", "seconds"), ("kld", "epoch"), ("mse", "epoch"))


class Reach(NamedTuple):
    """When a level was reached first: the epoch and the seconds of training, None where they were not recorded."""

    epoch: float
    seconds: float | None


class Table(NamedTuple):
    """Names of columns and rows of cells: numbers, text, or None."""

    names: list[str]
    rows: Sequence[Sequence[object]]


class Comparison(NamedTuple):
    """One row of figures per run, and beside it the run's settings, those that are not the same in all runs."""

    figures: Table
    settings: list[dict[str, str]]

    def joined(self) -> Table:
        """All in one table."""
        names = [*self.figures.names, *self.settings[0]]
        return Table(names, [[*row, *own.values()] for row, own in zip(self.figures.rows, self.settings, strict=True)])


def first_reach(metrics: Metrics, level: float) -> Reach | None:
    """The first epoch at whose end the validation BPD was at most `level`.

    Example:
        >>> first_reach({"epoch": [1, 2, 3], "seconds": [5, 10, 15], "valid_bpd": [4.0, 3.0, 2.0]}, 3.5)
        Reach(epoch=2, seconds=10)
    """
    epochs = metrics["epoch"]
    seconds = metrics.get("seconds", [None] * len(epochs))
    for epoch, second, bpd in zip(epochs, seconds, metrics.get("valid_bpd", []), strict=False):
        if epoch is not None and bpd is not None and bpd <= level:
            return Reach(epoch, second)
    return None


def write_comparison(folders: Sequence[Path], page: Path) -> Comparison:
    """Writes a page that compares runs, and returns what its table holds.

    Raises:
        RecordError: A folder is no run, or one of its files is damaged.
    """
    if len(folders) < 2:
        raise RecordError("there is nothing to compare: give the folders of two runs or more")
    runs = dict(zip(run_names(folders), map(Run.read, folders), strict=True))
    compared = comparison(runs)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, _page(runs, compared.joined()).encode())
    return compared


def run_names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or as much of their paths as tells them apart."""
    paths = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = [str(Path(*path.parts[-depth:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise RecordError("the same run was given twice")


def comparison(runs: dict[str, Run]) -> Comparison:
    """The final figures of runs, and the settings in which they differ."""
    figures = {key: title for key, title in FIGURES.items() if any(key in run.summary for run in runs.values())}
    rows = [[name, *(run.summary.get(key) for key in figures), *_spent(run)] for name, run in runs.items()]
    settings = differences({name: run.config for name, run in runs.items()})
    return Comparison(Table(["run", *figures.values(), "epochs", "time"], rows), list(settings.values()))


def differences(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Run -> setting -> value, for the settings that are not the same in all runs; '' where a run has none."""
    flat = {name: _flattened(config) for name, config in configs.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    differing = [key for key in keys if len({settings.get(key, "") for settings in flat.values()}) > 1]
    names = dict(zip(differing, _short(differing), strict=True))
    return {run: {names[key]: settings.get(key, "") for key in differing} for run, settings in flat.items()}


def _short(keys: list[str]) -> list[str]:
    """Settings by their last name, where that is no other's too."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def _flattened(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        flat |= _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": str(value)}
    return flat


def _spent(run: Run) -> tuple[object, str]:
    """Epochs and time, by the summary or, of a run under way, by its last epoch."""
    done = [epoch for epoch in run.metrics["epoch"] if epoch is not None]
    seconds = html.finite(run.summary.get("seconds", next(iter(run.metrics.get("seconds", [])[-1:]), None)))
    return run.summary.get("epochs", len(done)), "" if seconds is None else html.duration(seconds)


def _page(runs: dict[str, Run], table: Table) -> str:
    title = f"{len(runs)} runs"
    finished = [bpd for run in runs.values() if (bpd := html.finite(run.summary.get("bpd"))) is not None]
    best = [run.summary.get("bpd") for run in runs.values()].index(min(finished)) if finished else None
    sections = [
        html.header(
            title, html.table(*table, "The runs, their settings and figures", marked=[] if best is None else [best])
        ),
        html.section("Curves", html.picture(html.png(curves(runs)), _caption(runs))),
    ]
    if reached := reaches(runs):
        sections.append(html.section("First to reach a validation BPD of", html.table(*reached, "Epochs and times")))
    return html.document(title, "\n".join(sections))


def _caption(runs: dict[str, Run]) -> str:
    limit = " The dotted grey line is the probabilistic PCA limit of linear decoders." if _limit(runs) else ""
    return f"Validation BPD over epochs and over seconds, then KL divergence and squared error over epochs.{limit}"


def _limit(runs: dict[str, Run]) -> float | None:
    """The limit, if it is the same for all runs that have one."""
    limits = {limit for run in runs.values() if (limit := html.finite(run.summary.get("limit_bpd"))) is not None}
    return limits.pop() if len(limits) == 1 else None


def curves(runs: dict[str, Run]) -> Figure:
    """Validation curves of all runs, each in its own colour and line style."""
    columns = max(1, min(4, 90 // (6 + max(len(drawable(name)) for name in runs))))
    legend_height = 0.22 * math.ceil(len(runs) / columns)
    figure = Figure(figsize=(8, 6 + legend_height), dpi=DPI, layout="constrained")
    for axes, (metric, clock) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        _panel(axes, runs, metric, clock)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=10)
    name_legend(legend, runs)
    return figure


def _panel(axes: Axes, runs: dict[str, Run], metric: str, clock: str) -> None:
    values: list[float] = []
    for number, run in enumerate(runs.values()):
        times, column = points(run.metrics, clock, f"valid_{metric}")
        values += column
        style = STYLES[number // len(COLOURS) % len(STYLES)]
        axes.plot(
            times, column, color=COLOURS[number % len(COLOURS)], linestyle=style, linewidth=1.6, label=f"run {number}"
        )
    limit = _limit(runs) if metric == "bpd" else None
    if limit is not None:
        axes.axhline(limit, color="#777777", linestyle=":", linewidth=1.2)
    if values:
        axes.set_ylim(y_limits(values, limit))
    dress(axes, metric.upper(), clock)


def reaches(runs: dict[str, Run]) -> Table | None:
    """When each run reached levels of the validation BPD, from the ones all reach to those that only the best does."""
    levels = _levels(runs)
    if not levels:
        return None
    rows: list[list[object]] = [
        [name, *(_reached(run.metrics, level) for level in levels)] for name, run in runs.items()
    ]
    return Table(["run", *(f"{level:g}" for level in levels)], rows)


def _levels(runs: dict[str, Run]) -> list[float]:
    """Round numbers, from what is usual after the first epochs down to the best."""
    values = [value for run in runs.values() for value in points(run.metrics, "epoch", "valid_bpd")[1]]
    if not values:
        return []
    best, usual = min(values), y_limits(values, None)[1]
    levels = MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]).tick_values(best, usual)
    return [float(level) for level in reversed(levels) if best <= level <= usual]


def _reached(metrics: Metrics, level: float) -> str:
    reach = first_reach(metrics, level)
    if reach is None:
        return "not reached"
    return f"epoch {reach.epoch:.0f}" + ("" if reach.seconds is None else f", {html.duration(reach.seconds)}")
