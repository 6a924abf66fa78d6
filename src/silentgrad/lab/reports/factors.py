"""The latents of a table on a run's page: a picture of its rows, and the columns that weigh most."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from silentgrad.lab.reports import html
from silentgrad.lab.reports.figures import DPI, INK, drawable, dress, name_legend
from silentgrad.lab.runs.factors import Factors, Loading, Weighted

# Okabe and Ito's colours, told apart by colour-blind readers; the grey is for what has no colour of its own
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
GREY, OTHERS = "#999999", "others"
LATENTS = 32  # in the table of the page
LETTERS = 20  # of a name in the legend


def scatter(factors: Factors, label: str, narrow: bool = False) -> Figure:
    """The rows in the plane of their first two principal latents, coloured by their labels.

    Args:
        factors: The latents.
        label: Name of the labels.
        narrow: Whether the figure is for the screen of a telephone, with the legend below.
    """
    size = (8.0, 6.0)
    if narrow:
        size = (4.4, 5.2)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    if factors.labels is None:
        _dots(axes, factors.points, COLOURS[0])
    elif factors.label_names:
        _by_name(figure, axes, factors, factors.labels, label, narrow)
    else:
        _by_number(figure, axes, factors, factors.labels, label)
    first, second = factors.shares
    dress(axes, "", f"first principal latent ({first:.0%} of the variance)")
    axes.set_ylabel(f"second principal latent ({second:.0%})", fontsize=11, color=INK)
    return figure


def _dots(
    axes: Axes, points: Sequence[tuple[float, float]], colours: Sequence[str] | Sequence[float] | str
) -> PathCollection:
    """The points, the more there are the smaller."""
    across, up = zip(*points, strict=True)
    area = max(4.0, min(36.0, 20_000 / len(points)))
    return axes.scatter(across, up, s=area, c=colours, linewidths=0, alpha=0.8)


def _by_name(figure: Figure, axes: Axes, factors: Factors, labels: Sequence[float], label: str, narrow: bool) -> None:
    """A colour for each of the most frequent labels, grey for the others; in the order of the rows, which has none."""
    frequent = [code for code, _ in Counter(labels).most_common(len(COLOURS))]
    colours = dict(zip(sorted(frequent), COLOURS, strict=False))
    _dots(axes, factors.points, [colours.get(code, GREY) for code in labels])
    shown = {factors.label_names[int(code)]: colour for code, colour in colours.items()}
    if len(set(labels)) > len(frequent):
        shown[OTHERS] = GREY
    handles = [Line2D([], [], linestyle="", marker="o", color=colour) for colour in shown.values()]
    names = [""] * len(handles)
    if narrow:
        legend = figure.legend(
            handles, names, title=" ", frameon=False, fontsize=11, loc="outside lower center", ncols=2
        )
    else:
        legend = axes.legend(
            handles, names, title=" ", frameon=False, fontsize=11, loc="upper left", bbox_to_anchor=(1, 1)
        )
    name_legend(legend, map(_short, shown))
    legend.get_title().set_parse_math(False)
    legend.get_title().set_text(drawable(label))


def _short(name: str) -> str:
    """A name that leaves room for the picture."""
    if len(name) <= LETTERS:
        return name
    return f"{name[: LETTERS - 1]}…"


def _by_number(figure: Figure, axes: Axes, factors: Factors, labels: Sequence[float], label: str) -> None:
    """A colour by the number; rows without one are grey and lie below."""
    known = [math.isfinite(number) for number in labels]
    without = _points(factors, [not there for there in known])
    if without:
        _dots(axes, without, GREY)
    points = _points(factors, known)
    if not points:
        return
    dots = _dots(axes, points, list(itertools.compress(labels, known)))
    bar = figure.colorbar(dots, ax=axes)
    bar.ax.set_title(drawable(label), fontsize=11, color=INK, parse_math=False)


def _points(factors: Factors, chosen: Sequence[bool]) -> list[tuple[float, float]]:
    return list(itertools.compress(factors.points, chosen))


def loadings_section(loadings: Sequence[Loading], unit: str, file: str) -> str:
    """The latents that move the rows most, each with the columns that weigh most.

    Args:
        loadings: The latents.
        unit: What the weights are measured in.
        file: Name of the file that holds all weights.
    """
    rows = []
    for loading in loadings[:LATENTS]:
        rows.append([loading.latent, loading.spread, _listed(loading.up), _listed(loading.down)])
    told = (
        f"What a latent adds to each column per unit, in {unit}; the latents that move the rows most come first. "
        f"All weights are in {file}."
    )
    names = ["latent", "spread", "columns that rise", "columns that fall"]
    return html.section("Loadings", html.table(names, rows, "Loadings", wrapped=True) + html.caption(told))


def _listed(weighted: Sequence[Weighted]) -> str:
    return ", ".join(f"{name}\N{NO-BREAK SPACE}{weight:+.2f}" for name, weight in weighted)
