"""The page of a sweep, from the `trials.json` in its folder."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from silentgrad.lab.reports import html
from silentgrad.lab.reports.figures import DPI, GREEN, SPLITS, dress, y_limits
from silentgrad.lab.runs.records import RecordError, write_atomically

BLUE, GREY = SPLITS["valid"][0], "#777777"
DONE = ("complete", "pruned", "diverged")
ORDER = (*DONE, "running", "waiting")
CAPTION = (
    "The best validation BPD of each trial, by the value of each setting (the line joins the best ones) and in the "
    "order of the trials. A trial that is not complete was pruned, has diverged or is still in training."
)

Trial = dict[str, Any]


def write_sweep_page(folder: Path) -> Path:
    """Writes a sweep's `sweep.html`, and returns its path.

    Raises:
        RecordError: The folder holds no sweep, or its file is damaged.
    """
    sweep = read_sweep(folder)
    page = folder / "sweep.html"
    write_atomically(page, _page(sweep).encode())
    return page


def setting(value: object) -> str:
    """A setting's value, without zeros that say nothing.

    Example:
        >>> setting(0.0001), setting(5e-05), setting(100)
        ('0.0001', '5e-05', '100')
    """
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def read_sweep(folder: Path) -> dict[str, Any]:
    """The records of a sweep: `study`, `size`, `settings`, the number of the `best` trial, and all `trials`."""
    path = folder / "trials.json"
    if not path.is_file():
        raise RecordError(f"{folder} holds no sweep: it has no {path.name}")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {name: content[name] for name in ("study", "size", "settings", "best", "trials")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"cannot read {path}: {error!r}") from error


def best_trial(sweep: dict[str, Any]) -> Trial | None:
    """The complete trial with the lowest validation BPD."""
    return next((trial for trial in sweep["trials"] if trial["number"] == sweep["best"]), None)


def points_done(sweep: dict[str, Any]) -> int:
    """How many points of the grid need no more training."""
    return len({str(trial["point"]) for trial in sweep["trials"] if trial["state"] in DONE})


def _page(sweep: dict[str, Any]) -> str:
    trials = sorted(sweep["trials"], key=_rank)
    sections = [html.header(sweep["study"], _headline(sweep))]
    if any(trial["valid_bpd"] is not None for trial in trials):
        figure = sweep_figure(sweep["trials"], sweep["settings"]["space"])
        sections.append(html.section("Validation BPD", html.picture(html.png(figure), CAPTION)))
    if trials:
        sections.append(html.section("Trials", _table(trials, list(sweep["settings"]["space"]))))
    sections.append(html.details("Settings of all trials", html.listing(sweep["settings"])))
    return html.document(sweep["study"], "\n".join(sections))


def _rank(trial: Trial) -> tuple[int, float]:
    bpd = trial["valid_bpd"]
    return ORDER.index(trial["state"]), float("inf") if bpd is None else bpd


def _headline(sweep: dict[str, Any]) -> str:
    states = [trial["state"] for trial in sweep["trials"]]
    counted = ", ".join(f"{states.count(state)} {state}" for state in ORDER if state in states)
    tiles: dict[str, tuple[object, str]] = {"points done": (f"{points_done(sweep)} of {sweep['size']}", counted)}
    best = best_trial(sweep)
    if best is None:
        return html.tiles(tiles) + html.paragraph("No trial is complete yet.")
    figures = {
        "best valid. BPD": (best["valid_bpd"], f"trial {best['number']}"),
        "its test BPD": (best["figures"].get("bpd"), ""),
        **{name: (setting(value), "") for name, value in best["point"].items()},
    }
    return html.tiles(figures | tiles)


def _table(trials: list[Trial], space: list[str]) -> str:
    names = ["trial", "state", "valid. BPD", "test BPD", *space, "epochs", "time", "folder", "remark"]
    rows = [
        [
            trial["number"],
            trial["state"],
            trial["valid_bpd"],
            trial["figures"].get("bpd"),
            *(setting(trial["point"][name]) if name in trial["point"] else None for name in space),
            trial["epochs"],
            None if trial["seconds"] is None else html.duration(trial["seconds"]),
            trial["folder"],
            trial["remark"],
        ]
        for trial in trials
    ]
    used = len(names) if any(trial["remark"] for trial in trials) else -1
    best = 0 if trials[0]["state"] == "complete" else None
    return html.table(
        names[:used], [row[:used] for row in rows], "Trials, the best first", marked=[] if best is None else [best]
    )


def sweep_figure(trials: list[Trial], space: dict[str, list[float]]) -> Figure:
    """The best validation BPD of each trial, by each setting and by its number."""
    rows = len(space) // 2 + 1
    figure = Figure(figsize=(8, 3.1 * rows), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    shown = [trial for trial in trials if trial["valid_bpd"] is not None]
    for place, name in enumerate(space):
        _by_setting(figure.add_subplot(grid[place // 2, place % 2]), shown, name, sorted(space[name]))
    history = figure.add_subplot(grid[-1, len(space) % 2 :])  # what is left of the last row
    _history(history, shown)
    for axes in figure.axes:
        axes.set_ylim(y_limits([trial["valid_bpd"] for trial in shown], None))
    handles, names = history.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False, fontsize=10)
    return figure


def _by_setting(axes: Axes, trials: list[Trial], name: str, values: list[float]) -> None:
    here = [trial for trial in trials if name in trial["point"]]
    _scatter(axes, here, [values.index(trial["point"][name]) for trial in here])
    best: dict[int, float] = {}
    for trial in (trial for trial in here if trial["state"] == "complete"):
        place = values.index(trial["point"][name])
        best[place] = min(trial["valid_bpd"], best.get(place, float("inf")))
    places = sorted(best)
    axes.plot(places, [best[place] for place in places], color=BLUE, linewidth=1.2)
    dress(axes, f"by {name}", name)
    axes.set_xticks(range(len(values)), [setting(value) for value in values])
    axes.set_xlim(-0.5, len(values) - 0.5)


def _history(axes: Axes, trials: list[Trial]) -> None:
    _scatter(axes, trials, [trial["number"] for trial in trials])
    complete = [trial for trial in trials if trial["state"] == "complete"]
    best = list(accumulate((trial["valid_bpd"] for trial in complete), min))
    axes.step(
        [trial["number"] for trial in complete], best, where="post", color=GREEN, linewidth=1.4, label="best so far"
    )
    dress(axes, "in their order", "trial")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _scatter(axes: Axes, trials: list[Trial], places: list[int]) -> None:
    """Complete trials as dots, the others as rings."""
    for label, face, edge in (("complete", BLUE, BLUE), ("not complete", "none", GREY)):
        picked = [i for i, trial in enumerate(trials) if (trial["state"] == "complete") == (label == "complete")]
        if picked:
            x, y = [places[i] for i in picked], [trials[i]["valid_bpd"] for i in picked]
            axes.scatter(x, y, s=26, facecolor=face, edgecolor=edge, label=label)
