"""Pictures of a run: images that it reconstructs and draws, and the rows of a table in the plane of their latents."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from silentgrad.lab.reports.curves import COLORS, DPI, GRAY, INK, drawable, dress, name_legend
from silentgrad.lab.store.records import Factors, RunPictures

TILE, GAP, MARGIN, LABELS, LETTER = 128, 8, 8, 132, 13  # figure pixels
COLUMNS = 10
LETTERS = 20  # of a name in the legend


def reconstructions(of: Mapping[str, RunPictures]) -> Figure:
    """Draw originals, and under them each run's reconstructed means and, where they are learned, standard deviations.

    The rows are named on the left, by the names of the runs unless these are empty.
    """
    rows: dict[str, Tensor] = {}
    for name, pictures in of.items():
        rows.setdefault("original", pictures.originals)
        rows[name or "mean"] = pictures.means
        if pictures.stds is not None:
            rows[f"{name}, std. dev." if name else "std. dev."] = _unit_range(pictures.stds)
    count = min(COLUMNS, *map(len, rows.values()))
    return _rows_of(torch.cat([images[:count] for images in rows.values()]), count, list(rows))


def samples(images: Tensor, columns: int | None = None) -> Figure:
    """Draw images in a grid of so many columns, or of those that leave the fewest holes in the last row."""
    fullest = min(range(8, 13), key=lambda columns: -len(images) % columns)
    return _rows_of(images, columns or min(fullest, len(images)), [])


def _unit_range(images: Tensor) -> Tensor:
    """Return images moved and scaled so that the smallest number is 0 and the largest 1."""
    low, high = images.aminmax()
    return (images - low) / (high - low).clamp(min=1e-12)


def _rows_of(images: Tensor, columns: int, labels: list[str]) -> Figure:
    """Draw images row by row, one figure pixel or a whole number of them for each of theirs."""
    grid = _grid(images, columns)
    height, width = grid.shape[:2]
    left = max(LABELS, LETTER * (2 + max(map(len, labels)))) if labels else MARGIN
    full_width, full_height = left + width + MARGIN, height + 2 * MARGIN
    figure = Figure(figsize=(full_width / DPI, full_height / DPI), dpi=DPI)
    figure.figimage(grid.numpy(), left, MARGIN, origin="upper")
    for row, label in enumerate(labels):
        centre = MARGIN + height * (1 - (row + 0.5) / len(labels))
        place = (left - 12) / full_width, centre / full_height
        figure.text(*place, label, ha="right", va="center", fontsize=13)
    return figure


def _tiles(images: Tensor) -> Tensor:
    """Return images as RGB in [0, 1], enlarged by a whole factor, or reduced, to about TILE pixels."""
    images = images.detach().cpu().float().nan_to_num().clamp(0, 1).expand(-1, 3, -1, -1)
    longest = max(images.shape[-2:])
    if longest <= TILE:
        factor = TILE // longest
        return images.repeat_interleave(factor, -1).repeat_interleave(factor, -2)
    size = [max(1, side * TILE // longest) for side in images.shape[-2:]]
    return torch.nn.functional.interpolate(images, size=size, mode="area")


def _grid(images: Tensor, columns: int) -> Tensor:
    """Return one white-gapped image `(height, width, 3)` of the tiles of all images, row by row."""
    rows = math.ceil(len(images) / columns)
    tiles = torch.nn.functional.pad(_tiles(images), (0, GAP, 0, GAP, 0, 0, 0, rows * columns - len(images)), value=1.0)
    in_place = tiles.unflatten(0, (rows, columns)).permute(0, 3, 1, 4, 2)
    return in_place.flatten(0, 1).flatten(1, 2)[:-GAP, :-GAP]


def scatter(factors: Factors, label: str) -> Figure:
    """Draw the rows in the plane of their first two principal latents, colored by their labels, named `label`."""
    figure = Figure(figsize=(8.0, 6.0), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    if factors.labels is None:
        _dots(axes, factors.points, COLORS[0])
    elif factors.label_names:
        _by_name(axes, factors, factors.labels, label)
    else:
        _by_number(figure, axes, factors, factors.labels, label)
    first, second = factors.shares
    dress(axes, "", f"first principal latent ({first:.0%} of the variance)")
    axes.set_ylabel(f"second principal latent ({second:.0%})", fontsize=11, color=INK)
    return figure


def _dots(axes: Axes, points: Sequence[tuple[float, float]], colors: Sequence[str | float] | str) -> PathCollection:
    """Draw the points, the more there are the smaller."""
    area = max(4.0, min(36.0, 20_000 / len(points)))
    across, up = zip(*points, strict=True)
    return axes.scatter(across, up, s=area, c=colors, linewidths=0, alpha=0.8)


def _by_name(axes: Axes, factors: Factors, labels: Sequence[float], label: str) -> None:
    """Give each of the most frequent labels a color, and the others gray."""
    frequent = [code for code, _ in Counter(labels).most_common(len(COLORS))]
    colors = dict(zip(sorted(frequent), COLORS, strict=False))
    _dots(axes, factors.points, [colors.get(code, GRAY) for code in labels])
    shown = {factors.label_names[int(code)]: color for code, color in colors.items()}
    if len(set(labels)) > len(frequent):
        shown["others"] = GRAY
    handles = [Line2D([], [], linestyle="", marker="o", color=color) for color in shown.values()]
    names = [""] * len(handles)
    legend = axes.legend(handles, names, title=" ", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    name_legend(legend, [name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…" for name in shown], label)


def _by_number(figure: Figure, axes: Axes, factors: Factors, labels: Sequence[float], label: str) -> None:
    """Give each row a color by its number; rows without one are gray and lie below."""
    known = [math.isfinite(number) for number in labels]
    without = list(itertools.compress(factors.points, [not there for there in known]))
    if without:
        _dots(axes, without, GRAY)
    points = list(itertools.compress(factors.points, known))
    if points:
        bar = figure.colorbar(_dots(axes, points, list(itertools.compress(labels, known))), ax=axes)
        bar.ax.set_title(drawable(label), fontsize=11, color=INK, parse_math=False)
