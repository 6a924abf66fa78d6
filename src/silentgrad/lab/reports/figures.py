"""Figures of a run: what it reconstructs, what it imagines, how it learned.

They are free `Figure` objects, outside pyplot, so that nothing global changes and no display is needed.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from silentgrad.lab.data import Unit
from silentgrad.lab.reports.units import axis_title, metric_of
from silentgrad.lab.runs.pictures import RunPictures
from silentgrad.lab.runs.records import Metrics

DPI = 128  # a power of two: pixels / DPI is exact, so image pixels fall on whole figure pixels
TILE, GAP, MARGIN, LABELS, LETTER = 128, 8, 8, 132, 13  # figure pixels
COLUMNS, NARROW_COLUMNS = 10, 5
HEADING = 40  # figure pixels above a row of images that is named there

# Okabe and Ito's colours, told apart by colour-blind readers
SPLITS = {"train": ("#999999", "training"), "valid": ("#0072B2", "validation"), "test": ("#D55E00", "test")}
GREEN, INK, GRID = "#009E73", "#222222", "#E4E4E4"


class Curve(NamedTuple):
    """The points of a line.

    Args:
        x: Where they stand on the horizontal axis.
        y: Their heights.
    """

    x: list[float]
    y: list[float]


def reconstructions(pictures: RunPictures, narrow: bool = False) -> Figure:
    """Originals, reconstructed means under them, and the learned standard deviations when there are any.

    Args:
        pictures: The pictures of a run.
        narrow: Whether the figure is for the screen of a telephone, as in all that follow.
    """
    rows = {"original": pictures.originals, "mean": pictures.means}
    if pictures.stds is not None:
        rows["std. dev."] = unit_range(pictures.stds)
    return stacked(rows, narrow)


def stacked(rows: dict[str, Tensor], narrow: bool = False) -> Figure:
    """The first images of each row, the rows above each other and named: on the left or, if narrow, above each row."""
    most = COLUMNS
    if narrow:
        most = NARROW_COLUMNS
    count = min(most, *map(len, rows.values()))
    first = {name: images[:count] for name, images in rows.items()}
    if narrow:
        return _named_above(first)
    return image_figure(torch.cat(list(first.values())), count, list(rows))


def samples(images: Tensor) -> Figure:
    """Decoded draws from the prior, in a grid."""
    fullest = min(range(8, 13), key=lambda columns: -len(images) % columns)  # fewest holes in the last row
    return image_figure(images, min(fullest, len(images)), [])


def panels(narrow: bool, legend_height: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Four panels, two by two or, if narrow, one above the other, and inches for a legend on top of them."""
    if narrow:
        figure = Figure(figsize=(4.2, 10.8 + legend_height), dpi=DPI, layout="constrained")
        return figure, list(figure.subplots(4, 1))
    figure = Figure(figsize=(8, 6 + legend_height), dpi=DPI, layout="constrained")
    return figure, list(figure.subplots(2, 2).flat)


def curves(metrics: Metrics, limit: float | None = None, unit: Unit | None = None, narrow: bool = False) -> Figure:
    """The run's metric over epochs and over seconds; below them KLD and MSE over epochs.

    Args:
        metrics: Columns of `metrics.csv`; missing columns and cells are left out.
        limit: The pPCA limit of the metric, drawn as a dashed line.
        unit: Unit of the metric; if absent, the one that the columns name.
        narrow: Whether the panels stand one above the other.
    """
    unit = unit or Unit(metric_of(metrics))
    figure, (by_epoch, by_second, kld, mse) = panels(narrow)
    _panel(by_epoch, metrics, unit.metric, "epoch", unit, limit)
    _panel(by_second, metrics, unit.metric, "seconds", unit, limit)
    _panel(kld, metrics, "kld", "epoch", unit)
    _panel(mse, metrics, "mse", "epoch", unit)
    _tractable_weight(by_epoch, metrics)
    handles: dict[str, Line2D] = {}
    for axes in figure.axes:
        handles |= _named_lines(axes)
    if handles:
        columns = 5
        if narrow:
            columns = 1
        lines = list(handles.values())
        figure.legend(handles=lines, loc="outside upper center", ncols=columns, frameon=False, fontsize=11)
    return figure


def _panel(axes: Axes, metrics: Metrics, metric: str, clock: str, unit: Unit, limit: float | None = None) -> None:
    values: list[float] = []
    for split, (colour, name) in SPLITS.items():
        curve = points(metrics, clock, f"{split}_{metric}")
        values += curve.y
        if curve.y:
            axes.plot(*curve, color=colour, label=name, linewidth=1.8, marker=_marker(curve), markersize=4)
    if limit is not None:
        axes.axhline(limit, color=INK, linestyle="--", linewidth=1.2, label="pPCA limit")
    if values:
        axes.set_ylim(y_limits(values, limit))
    else:
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="#777777")
    dress(axes, axis_title(metric, unit), clock)


def y_limits(values: list[float], limit: float | None) -> tuple[float, float]:
    """The ends of a vertical axis that shows all values or, if a few tower over the rest as in early epochs, the rest.

    Args:
        values: Heights of all points.
        limit: Height of a horizontal line that is shown too; None if there is none.
    """
    low, high = min(values), max(values)
    usual = torch.tensor(values, dtype=torch.float64).quantile(0.8).item()
    if usual > low:
        high = min(high, low + 2 * (usual - low))
    if limit is not None:
        low, high = min(low, limit), max(high, limit)
    margin = 0.06 * (high - low) or 0.1 * abs(min(values)) or 1.0
    return low - margin, high + margin


def _marker(curve: Curve) -> str | None:
    """Dots for a line of few points, which may be one point only."""
    if len(curve.x) < 20:
        return "o"
    return None


def _tractable_weight(axes: Axes, metrics: Metrics) -> None:
    """The tractable decoder's share of the loss, where a nonlinear one has the rest."""
    curve = points(metrics, "epoch", "weight")
    if not curve.y:
        return
    right = axes.twinx()
    name = "tractable decoder's weight (right)"
    right.plot(*curve, color=GREEN, linewidth=1, label=name, marker=_marker(curve), markersize=2)
    right.set_ylim(-0.05, 1.05)
    right.set_yticks([0, 1])
    right.tick_params(length=0, labelsize=10, labelcolor=GREEN)
    right.spines[:].set_visible(False)


def points(metrics: Metrics, x: str, y: str) -> Curve:
    """Two columns where both are finite, so that a line runs on over epochs without a measurement."""
    curve = Curve([], [])
    for across, up in zip(metrics.get(x, []), metrics.get(y, []), strict=False):
        if across is None or up is None:
            continue
        if math.isfinite(across) and math.isfinite(up):
            curve.x.append(across)
            curve.y.append(up)
    return curve


def dress(axes: Axes, title: str, clock: str) -> None:
    """Gives axes a title, a label of the horizontal axis, ticks and a quiet grid."""
    axes.set_title(title, loc="left", fontsize=12, color=INK)
    axes.set_xlabel(clock, fontsize=11, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=clock == "epoch", min_n_ticks=1))
    axes.tick_params(length=0, labelsize=10, labelcolor=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#BBBBBB")


def name_legend(legend: Legend, names: Iterable[str]) -> None:
    """Writes the user's names into a legend; as labels, `$x$` would be mathematics and `_x` would be left out."""
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(drawable(name))


def drawable(name: str) -> str:
    """A name in which characters that the font lacks are written as Python writes them."""
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    known = ""
    for letter in name:
        if font.get_char_index(ord(letter)):
            known += letter
        else:
            known += letter.encode("unicode_escape").decode()
    return known


def _named_lines(axes: Axes) -> dict[str, Line2D]:
    """The lines that a legend shows, by their labels."""
    named = {}
    for line in axes.get_lines():
        label = str(line.get_label())
        if not label.startswith("_"):
            named[label] = line
    return named


def unit_range(images: Tensor) -> Tensor:
    """Images moved and scaled so that the smallest number is 0 and the largest 1."""
    low, high = images.aminmax()
    return (images - low) / (high - low).clamp(min=1e-12)


def image_figure(images: Tensor, columns: int, labels: list[str]) -> Figure:
    """Images row by row, one figure pixel or a whole number of them for each of theirs."""
    grid = _grid(_tiles(images), columns)
    height, width = grid.shape[:2]
    left = _left_margin(labels)
    full_width, full_height = left + width + MARGIN, height + 2 * MARGIN
    figure = Figure(figsize=(full_width / DPI, full_height / DPI), dpi=DPI)
    axes = figure.add_axes((left / full_width, MARGIN / full_height, width / full_width, height / full_height))
    axes.imshow(grid.numpy(), interpolation="nearest", aspect="auto")  # the axes have the grid's own proportions
    axes.set_axis_off()
    for row, label in enumerate(labels):
        centre = (row + 0.5) / len(labels)
        axes.text(-12 / width, 1 - centre, label, transform=axes.transAxes, ha="right", va="center", fontsize=13)
    return figure


def _named_above(rows: dict[str, Tensor]) -> Figure:
    """Rows of images, each under its name."""
    strips = [_grid(_tiles(images), len(images)) for images in rows.values()]
    height, width = strips[0].shape[:2]
    full_width, full_height = width + 2 * MARGIN, len(strips) * (height + HEADING) + MARGIN
    figure = Figure(figsize=(full_width / DPI, full_height / DPI), dpi=DPI)
    for row, (name, strip) in enumerate(zip(rows, strips, strict=True)):
        top = (row + 1) * (height + HEADING)
        place = (MARGIN / full_width, 1 - top / full_height, width / full_width, height / full_height)
        axes = figure.add_axes(place)
        axes.imshow(strip.numpy(), interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        axes.text(0, 1 + 8 / height, name, transform=axes.transAxes, ha="left", va="bottom", fontsize=14)
    return figure


def _left_margin(labels: list[str]) -> int:
    if not labels:
        return MARGIN
    longest = max(map(len, labels))
    return max(LABELS, LETTER * (2 + longest))


def _tiles(images: Tensor) -> Tensor:
    """Images as RGB in [0, 1], enlarged by a whole factor, or reduced, to about TILE pixels."""
    images = images.detach().cpu().float().nan_to_num().clamp(0, 1).expand(-1, 3, -1, -1)
    longest = max(images.shape[-2:])
    if longest <= TILE:
        factor = TILE // longest
        return images.repeat_interleave(factor, -1).repeat_interleave(factor, -2)
    size = [max(1, side * TILE // longest) for side in images.shape[-2:]]
    return torch.nn.functional.interpolate(images, size=size, mode="area")


def _grid(tiles: Tensor, columns: int) -> Tensor:
    """One white-gapped image `(height, width, 3)` of all tiles, row by row."""
    count, _, height, width = tiles.shape
    rows = math.ceil(count / columns)
    grid = torch.ones(rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3)
    for i, tile in enumerate(tiles):
        y, x = i // columns * (height + GAP), i % columns * (width + GAP)
        grid[y : y + height, x : x + width] = tile.permute(1, 2, 0)
    return grid
