"""Curves over epochs and seconds, of one run or of several.

They are free `Figure` objects, outside pyplot, so that nothing global changes and no display is needed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from silentgrad.lab.kinds import Unit
from silentgrad.lab.printing import finite
from silentgrad.lab.store.files import Metrics
from silentgrad.lab.store.records import Run

DPI = 128  # a power of two: pixels / DPI is exact, so image pixels fall on whole figure pixels
# Okabe and Ito's colors, told apart by color-blind readers, without yellow, which is faint on white
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
BLUE, GREEN = COLORS[0], COLORS[2]
GRAY, INK, GRID = "#999999", "#222222", "#E4E4E4"
LIMIT = "pPCA limit"
WEIGHT = "tractable decoder's weight (right)"


class Points(NamedTuple):
    """The points of a line: where they stand on the horizontal axis, and their heights."""

    x: Sequence[float]
    y: Sequence[float]


NOTHING = Points((), ())
Line = tuple[Points, dict[str, Any]]  # and how matplotlib draws it


class Panel(NamedTuple):
    """Lines by their names, over epochs or seconds; `limit` is the height of a dashed line."""

    title: str
    clock: str
    lines: dict[str, Line]
    limit: float | None = None


def run_curves(metrics: Metrics, unit: Unit, limit: float | None = None) -> Figure:
    """Draw a run's metric over epochs and over seconds, and below them KLD and MSE, as far as they are recorded."""

    def lines(metric: str, clock: str) -> dict[str, Line]:
        own = points(metrics, clock, f"valid_{metric}")
        look = {"color": BLUE, "linewidth": 1.8, "marker": _marker(own), "markersize": 4}
        return {"validation": (own, look)} if own.y else {}

    return _figure(_panels(lines, unit, limit), 0.3, weight=points(metrics, "epoch", "weight"))


def comparison_curves(runs: Mapping[str, Run], unit: Unit, limit: float | None = None) -> Figure:
    """Draw the validation curves of all runs, each in its own color and line style, like those of one run."""

    def lines(metric: str, clock: str) -> dict[str, Line]:
        own = {name: points(run.metrics, clock, f"valid_{metric}") for name, run in runs.items()}
        return {name: (own[name], _look(place)) for place, name in enumerate(runs)}

    legend_height = 0.22 * math.ceil(len(runs) / _legend_columns(runs))
    return _figure(_panels(lines, unit, limit), legend_height)


def caption(unit: Unit, limit: float | None) -> str:
    """Return the sentences under the curves of one run or several."""
    told = f"Validation {unit.in_words} over epochs and over seconds; below, what else was recorded, over epochs."
    if limit is not None:
        told += " The dashed line is the probabilistic PCA limit of linear decoders on the test examples."
    return told


def _panels(lines: Callable[[str, str], dict[str, Line]], unit: Unit, limit: float | None) -> list[Panel]:
    """Return the panels of runs, by the lines of each metric and clock; KLD and MSE only where they are recorded."""
    plan = [(unit.metric, "epoch", limit), (unit.metric, "seconds", limit), ("kld", "epoch", None)]
    plan.append(("mse", "epoch", None))
    panels = [Panel(unit.axis_title(metric), clock, lines(metric, clock), own) for metric, clock, own in plan]
    return panels[:2] + [panel for panel in panels[2:] if any(own.y for own, _ in panel.lines.values())]


def _figure(panels: Sequence[Panel], legend_height: float, weight: Points = NOTHING) -> Figure:
    """Draw panels, two in a row, under a legend of so many inches; the first has the weight too."""
    rows = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(8.0, 3.0 * rows + legend_height), dpi=DPI, layout="constrained")
    figure.subplots(rows, 2)
    drawn: dict[str, Line2D] = {}
    for axes in figure.axes[len(panels) :]:
        axes.remove()
    for axes, panel in zip(figure.axes, panels, strict=True):
        values: list[float] = []
        for name, (own, style) in panel.lines.items():
            (drawn[name],) = axes.plot(*own, **style)
            values += own.y
        if panel.limit is not None:
            drawn[LIMIT] = axes.axhline(panel.limit, color=INK, linestyle="--", linewidth=1.2)
        if not values:
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="#777777")
        else:
            axes.set_ylim(*_y_limits(values, panel.limit))
        dress(axes, panel.title, panel.clock)
    if weight.y:
        drawn[WEIGHT] = _tractable_weight(figure.axes[0], weight)
    if drawn:
        look: dict[str, Any] = {"ncols": _legend_columns(drawn), "frameon": False, "fontsize": 10}
        legend = figure.legend([*drawn.values()], [""] * len(drawn), loc="outside upper center", **look)
        name_legend(legend, drawn)
    return figure


def _look(place: int) -> dict[str, Any]:
    """Return the style of the line at a place, of a color and dashes of its own."""
    color, dashes = COLORS[place % len(COLORS)], STYLES[place // len(COLORS) % len(STYLES)]
    return {"color": color, "linestyle": dashes, "linewidth": 1.6}


def _y_limits(values: Sequence[float], limit: float | None) -> tuple[float, float]:
    """Return the ends of an axis that shows a limit and all values, but for a few early ones that tower over them."""
    low, high = min(values), max(values)
    usual = torch.tensor(values, dtype=torch.float64).quantile(0.8).item()
    if usual > low:
        high = min(high, low + 2 * (usual - low))
    if limit is not None:
        low, high = min(low, limit), max(high, limit)
    margin = 0.06 * (high - low) or 0.1 * abs(min(values)) or 1.0
    return low - margin, high + margin


def _marker(curve: Points) -> str | None:
    """Return dots for a line of few points, which may be one point only."""
    return "o" if len(curve.x) < 20 else None


def _tractable_weight(axes: Axes, weight: Points) -> Line2D:
    """Draw the tractable decoder's share of the loss, where a nonlinear one has the rest."""
    right = axes.twinx()
    (line,) = right.plot(*weight, color=GREEN, linewidth=1, marker=_marker(weight), markersize=2)
    right.set_ylim(-0.05, 1.05)
    right.set_yticks([0, 1])
    right.tick_params(length=0, labelsize=10, labelcolor=GREEN)
    right.spines[:].set_visible(False)
    return line


def points(metrics: Metrics, x: str, y: str) -> Points:
    """Return two columns where both are finite, so that a line runs on over epochs without a measurement."""
    cells = zip(map(finite, metrics.get(x, [])), map(finite, metrics.get(y, [])), strict=False)
    pairs = [(across, up) for across, up in cells if across is not None and up is not None]
    return Points([across for across, _ in pairs], [up for _, up in pairs])


def dress(axes: Axes, title: str, clock: str) -> None:
    """Give axes a title, a label of the horizontal axis, ticks and a quiet grid."""
    axes.set_title(title, loc="left", fontsize=12, color=INK)
    axes.set_xlabel(clock, fontsize=11, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=clock == "epoch", min_n_ticks=1))
    axes.tick_params(length=0, labelsize=10, labelcolor=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#BBBBBB")


def _legend_columns(names: Iterable[str]) -> int:
    """Return the number of a legend's columns: as many as fit beside each other, from one to four."""
    longest = max([len(drawable(name)) for name in names], default=0)
    return max(1, min(4, 90 // (6 + longest)))


def name_legend(legend: Legend, names: Iterable[str], title: str = "") -> None:
    """Write the user's names into a legend; as labels, `$x$` would be mathematics and `_x` would be left out."""
    for text, name in zip([legend.get_title(), *legend.get_texts()], [title, *names], strict=True):
        text.set_parse_math(False)
        text.set_text(drawable(name))


def drawable(name: str) -> str:
    """Return a name in which characters that the font lacks are written as Python writes them."""
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    known = ""
    for letter in name:
        known += letter if font.get_char_index(ord(letter)) else letter.encode("unicode_escape").decode()
    return known
