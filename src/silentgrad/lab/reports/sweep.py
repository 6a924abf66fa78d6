"""The page of a sweep, from the records in its folder."""

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from silentgrad.lab.reports import html
from silentgrad.lab.reports.figures import DPI, GREEN, SPLITS, dress, y_limits
from silentgrad.lab.runs.folder import SweepFolder
from silentgrad.lab.runs.records import write_atomically
from silentgrad.lab.runs.trials import STATES, SweepRecord, Trial, read_sweep

BLUE, GREY = SPLITS["valid"][0], "#777777"
CAPTION = (
    "The best validation BPD of each trial, by the value of each setting (the line joins the best ones) and in the "
    "order of the trials. A trial that is not complete was pruned, has diverged or is still in training."
)


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
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _page(sweep: SweepRecord) -> str:
    trials = sorted(sweep.trials, key=_rank)
    sections = [html.header(sweep.study, _headline(sweep))]
    if any(trial.valid_bpd is not None for trial in trials):
        figure = sweep_figure(sweep.trials, sweep.space)
        sections.append(html.section("Validation BPD", html.picture(html.png(figure), CAPTION)))
    if trials:
        sections.append(html.section("Trials", _table(trials, list(sweep.space))))
    sections.append(html.details("Settings of all trials", html.listing(sweep.settings)))
    return html.document(sweep.study, "\n".join(sections))


def _rank(trial: Trial) -> tuple[int, float]:
    return STATES.index(trial.state), trial.reached


def _headline(sweep: SweepRecord) -> str:
    states = [trial.state for trial in sweep.trials]
    counted = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    tiles: dict[str, tuple[object, str]] = {"points done": (f"{sweep.points_done()} of {sweep.size}", counted)}
    best = sweep.best_trial()
    if best is None:
        return html.tiles(tiles) + html.paragraph("No trial is complete yet.")
    figures = {
        "best valid. BPD": (best.valid_bpd, f"trial {best.number}"),
        "its test BPD": (best.test_bpd, ""),
        **{name: (setting(value), "") for name, value in best.point.items()},
    }
    return html.tiles(figures | tiles)


def _table(trials: list[Trial], space: list[str]) -> str:
    names = ["trial", "state", "valid. BPD", "test BPD", *space, "epochs", "time", "folder", "remark"]
    rows = [
        [
            trial.number,
            trial.state,
            trial.valid_bpd,
            trial.test_bpd,
            *(setting(trial.point[name]) if name in trial.point else None for name in space),
            trial.epochs,
            None if trial.seconds is None else html.duration(trial.seconds),
            trial.folder,
            trial.remark,
        ]
        for trial in trials
    ]
    if not any(trial.remark for trial in trials):
        names, rows = names[:-1], [row[:-1] for row in rows]
    best = [0] if trials[0].state == "complete" else []
    return html.table(names, rows, "Trials, the best first", marked=best)


def sweep_figure(trials: Sequence[Trial], space: dict[str, list[float]]) -> Figure:
    """The best validation BPD of each trial, by each setting and by its number."""
    rows = len(space) // 2 + 1
    figure = Figure(figsize=(8, 3.1 * rows), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    shown = [trial for trial in trials if trial.valid_bpd is not None]
    for place, name in enumerate(space):
        _by_setting(figure.add_subplot(grid[place // 2, place % 2]), shown, name, sorted(space[name]))
    history = figure.add_subplot(grid[-1, len(space) % 2 :])  # what is left of the last row
    _history(history, shown)
    for axes in figure.axes:
        axes.set_ylim(y_limits([trial.reached for trial in shown], None))
    handles, names = history.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False, fontsize=10)
    return figure


def _by_setting(axes: Axes, trials: list[Trial], name: str, values: list[float]) -> None:
    here = [trial for trial in trials if name in trial.point]
    _scatter(axes, here, [values.index(trial.point[name]) for trial in here])
    best: dict[int, float] = {}
    for trial in (trial for trial in here if trial.state == "complete"):
        place = values.index(trial.point[name])
        best[place] = min(trial.reached, best.get(place, math.inf))
    places = sorted(best)
    axes.plot(places, [best[place] for place in places], color=BLUE, linewidth=1.2)
    dress(axes, f"by {name}", name)
    axes.set_xticks(range(len(values)), [setting(value) for value in values])
    axes.set_xlim(-0.5, len(values) - 0.5)


def _history(axes: Axes, trials: list[Trial]) -> None:
    _scatter(axes, trials, [trial.number for trial in trials])
    complete = [trial for trial in trials if trial.state == "complete"]
    best = list(accumulate((trial.reached for trial in complete), min))
    axes.step([trial.number for trial in complete], best, where="post", color=GREEN, linewidth=1.4, label="best so far")
    dress(axes, "in their order", "trial")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _scatter(axes: Axes, trials: list[Trial], places: list[int]) -> None:
    """Complete trials as dots, the others as rings."""
    for label, face, edge in (("complete", BLUE, BLUE), ("not complete", "none", GREY)):
        picked = [i for i, trial in enumerate(trials) if (trial.state == "complete") == (label == "complete")]
        if picked:
            x, y = [places[i] for i in picked], [trials[i].reached for i in picked]
            axes.scatter(x, y, s=26, facecolor=face, edgecolor=edge, label=label)
