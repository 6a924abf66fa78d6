"""The page of a sweep, from the records in its folder."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from silentgrad.lab.data import Unit
from silentgrad.lab.reports import html
from silentgrad.lab.reports.figures import DPI, GREEN, SPLITS, Curve, dress, y_limits
from silentgrad.lab.reports.html import Tile
from silentgrad.lab.reports.rounding import number
from silentgrad.lab.runs.folder import SweepFolder
from silentgrad.lab.runs.records import write_atomically
from silentgrad.lab.runs.trials import STATES, SweepRecord, Trial, read_sweep

BLUE, GREY = SPLITS["valid"][0], "#777777"


def write_sweep_page(folder: Path) -> Path:
    """Writes the page of a sweep, and returns its path.

    Raises:
        RecordError: The folder holds no sweep, or its file is damaged.
    """
    sweep = read_sweep(folder)
    page = SweepFolder(folder).page
    write_atomically(page, _page(sweep).encode())
    return page


def setting(value: object) -> str:
    """A setting's value, without zeros that say nothing.

    Example:
        >>> setting(0.0001), setting(5e-05), setting(100)
        ('0.0001', '5e-05', '100')
    """
    if isinstance(value, int | float):
        return f"{value:g}"
    return str(value)


def _page(sweep: SweepRecord) -> str:
    trials = sorted(sweep.trials, key=_rank)
    sections = [html.header(sweep.study, _headline(sweep))]
    measured = _measured(sweep.trials)
    if measured:
        wide, narrow = sweep_figure(measured, sweep.space), sweep_figure(measured, sweep.space, narrow=True)
        picture = html.picture(html.png(wide), _caption(sweep.unit), narrow=html.png(narrow))
        sections.append(html.section(f"Validation {sweep.unit.title}", picture))
    if trials:
        told = html.caption(f"{sweep.unit.title}: {sweep.unit.words}.")
        sections.append(html.section("Trials", _table(trials, list(sweep.space), sweep.unit) + told))
    settings = sweep.settings | {"space": sweep.space}
    sections.append(html.details("Settings of all trials", html.listing(settings)))
    return html.document(sweep.study, "\n".join(sections))


def _caption(unit: Unit) -> str:
    return (
        f"The best validation {unit.in_words} of each trial, by the value of each setting (the line joins the best "
        "ones) and in the order of the trials. A trial that is not complete was pruned, has diverged or is "
        "still in training."
    )


def _measured(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that have finished an epoch."""
    return [trial for trial in trials if trial.valid is not None]


def _rank(trial: Trial) -> tuple[int, float]:
    return STATES.index(trial.state), trial.reached


def _headline(sweep: SweepRecord) -> str:
    done = Tile("points done", f"{sweep.points_done()} of {sweep.size}", _count_by_state(sweep.trials))
    best = sweep.best_trial()
    if best is None:
        return html.tiles([done]) + html.paragraph("No trial is complete yet.")
    title, words = sweep.unit.title, sweep.unit.words
    tiles = [Tile(f"best valid. {title}", best.valid, words), Tile(f"its test {title}", best.test, words)]
    for name, value in best.point.items():
        tiles.append(Tile(name, setting(value)))
    return html.paragraph(_opening(sweep, best)) + html.tiles([*tiles, done])


def _opening(sweep: SweepRecord, best: Trial) -> str:
    """What was tried, and which trial is best."""
    names = " and ".join(sweep.space)
    return (
        f"{sweep.points_done()} of {sweep.size} trainings that differ in {names}, judged by {sweep.unit.in_words} in "
        f"validation; lower is better. The best is trial {best.number} with {number(best.valid)}."
    )


def _count_by_state(trials: Sequence[Trial]) -> str:
    """How many trials are in each state, as in '2 complete, 1 pruned'."""
    counts = Counter(trial.state for trial in trials)
    parts = []
    for state in STATES:
        if counts[state]:
            parts.append(f"{counts[state]} {state}")
    return ", ".join(parts)


def _table(trials: list[Trial], space: list[str], unit: Unit) -> str:
    figures = [f"valid. {unit.title}", f"test {unit.title}"]
    names = ["trial", "state", *figures, *space, "epochs", "time", "folder", "remark"]
    rows = [_row(trial, space) for trial in trials]
    if not any(trial.remark for trial in trials):
        names.remove("remark")
        for row in rows:
            row.pop()
    best = []
    if trials[0].state == "complete":
        best.append(0)
    return html.table(names, rows, "Trials, the best first", marked=best)


def _row(trial: Trial, space: list[str]) -> list[object]:
    row: list[object] = [trial.number, trial.state, trial.valid, trial.test]
    for name in space:
        value = trial.point.get(name)
        if value is not None:
            value = setting(value)
        row.append(value)
    time = None
    if trial.seconds is not None:
        time = html.duration(trial.seconds)
    return [*row, trial.epochs, time, trial.folder, trial.remark]


def sweep_figure(trials: Sequence[Trial], space: dict[str, list[float]], narrow: bool = False) -> Figure:
    """The best validation figure of each trial, by each setting and by its number.

    Args:
        trials: Trials that have finished an epoch.
        space: The values of each setting that is varied.
        narrow: Whether the panels stand one above the other.
    """
    columns = 2
    if narrow:
        columns = 1
    rows = len(space) // columns + 1
    figure = Figure(figsize=(4.1 * columns, 3.1 * rows), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(rows, columns)
    for place, name in enumerate(space):
        _by_setting(figure.add_subplot(grid[place // columns, place % columns]), trials, name, sorted(space[name]))
    history = figure.add_subplot(grid[-1, len(space) % columns :])  # what is left of the last row
    _history(history, trials)
    heights = y_limits([trial.reached for trial in trials], None)
    for axes in figure.axes:
        axes.set_ylim(heights)
    handles, names = history.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2 * columns, frameon=False, fontsize=10)
    return figure


def _by_setting(axes: Axes, trials: Sequence[Trial], name: str, values: list[float]) -> None:
    complete, others = Curve([], []), Curve([], [])
    best: dict[int, float] = {}
    for trial in trials:
        if name not in trial.point:
            continue
        place = values.index(trial.point[name])
        if trial.state == "complete":
            _add(complete, place, trial)
            best[place] = min(trial.reached, best.get(place, math.inf))
        else:
            _add(others, place, trial)
    _scatter(axes, complete, others)
    places = sorted(best)
    axes.plot(places, [best[place] for place in places], color=BLUE, linewidth=1.2)
    dress(axes, f"by {name}", name)
    axes.set_xticks(range(len(values)), list(map(setting, values)))
    axes.set_xlim(-0.5, len(values) - 0.5)


def _history(axes: Axes, trials: Sequence[Trial]) -> None:
    complete, others = Curve([], []), Curve([], [])
    for trial in trials:
        if trial.state == "complete":
            _add(complete, trial.number, trial)
        else:
            _add(others, trial.number, trial)
    _scatter(axes, complete, others)
    best = list(accumulate(complete.y, min))
    axes.step(complete.x, best, where="post", color=GREEN, linewidth=1.4, label="best so far")
    dress(axes, "in their order", "trial")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _add(curve: Curve, place: float, trial: Trial) -> None:
    curve.x.append(place)
    curve.y.append(trial.reached)


def _scatter(axes: Axes, complete: Curve, others: Curve) -> None:
    """Complete trials as dots, the others as rings."""
    if complete.x:
        axes.scatter(*complete, s=26, facecolor=BLUE, edgecolor=BLUE, label="complete")
    if others.x:
        axes.scatter(*others, s=26, facecolor="none", edgecolor=GREY, label="not complete")
