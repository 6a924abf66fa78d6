"""Several runs on one page: what differs in their settings, where they ended, how fast they got there.

Only runs of the same data are beside each other, since figures of different data say nothing about the runs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from silentgrad.lab.data import Unit
from silentgrad.lab.reports import html
from silentgrad.lab.reports.differences import Flat, differences, run_names
from silentgrad.lab.reports.figures import drawable, dress, name_legend, panels, points, y_limits
from silentgrad.lab.reports.reaches import reaches
from silentgrad.lab.reports.rounding import finite, number
from silentgrad.lab.reports.units import axis_title, common_unit, legend
from silentgrad.lab.runs.records import RecordError, Run, write_atomically
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.runs.tables import Column, Content, Table

# Okabe and Ito's colours without yellow, which is faint on white; then the same again with another line style
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
LIMIT_COLOUR = "#777777"


class Comparison(NamedTuple):
    """What a comparison of runs shows.

    Args:
        results: The final figures, one row per run.
        settings: Each run's settings, those that are not the same in all runs.
    """

    results: Table
    settings: dict[str, Flat]

    def joined(self) -> Table:
        """One table of the settings and the final figures."""
        first, *_ = self.settings.values()
        columns = [*self.results.columns, *map(Column, first)]
        rows: list[list[Content]] = []
        for row, own in zip(self.results.rows, self.settings.values(), strict=True):
            rows.append([*row, *own.values()])
        return Table("runs", "The runs, their settings and figures", columns, rows, self.results.best)


def write_comparison(folders: Sequence[Path], page: Path) -> dict[str, Comparison]:
    """Writes a page that compares runs, and returns what its tables hold, by the data of the runs.

    Raises:
        RecordError: A folder is no run, one of its files is damaged, or runs of the same data are told in different
            units.
    """
    if len(folders) < 2:
        raise RecordError("there is nothing to compare: give the folders of two runs or more")
    runs = dict(zip(run_names(folders), map(Run.read, folders), strict=True))
    groups = by_data(runs)
    compared = {}
    for data, alike in groups.items():
        compared[data] = comparison(alike)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, _page(groups, compared).encode())
    return compared


def by_data(runs: Mapping[str, Run]) -> dict[str, dict[str, Run]]:
    """The runs by the name of their data, in the order in which they were given."""
    groups: dict[str, dict[str, Run]] = {}
    for name, run in runs.items():
        groups.setdefault(str(run.config["data"]["name"]), {})[name] = run
    return groups


def comparison(runs: Mapping[str, Run]) -> Comparison:
    """The final figures of runs, and the settings in which they differ."""
    heads = _heads(runs)
    rows: list[list[Content]] = []
    configs = {}
    for name, run in runs.items():
        figures = _figures(run.summary, common_unit(runs))
        rows.append([name, *map(figures.get, heads), *_spent(run)])
        configs[name] = run.config
    columns = [Column("run"), *map(Column, heads), Column("epochs"), Column("time")]
    results = Table("results", "The runs and their figures", columns, rows, _best(runs))
    return Comparison(results, differences(configs))


def _heads(runs: Mapping[str, Run]) -> list[str]:
    """The heads of the columns of final figures, each of which at least one run has."""
    unit = common_unit(runs)
    heads = [_test_head(unit), _limit_head(unit)]
    found: set[str] = set()
    for run in runs.values():
        for head in _figures(run.summary, unit):
            found.add(head)
            if head not in heads:
                heads.append(head)
    return [head for head in heads if head in found]


def _figures(summary: Summary | None, unit: Unit) -> dict[str, Content]:
    """The final figures of a run by the heads of their columns."""
    if summary is None:
        return {}
    figures: dict[str, Content] = {_test_head(unit): summary.figure}
    if summary.limit is not None:
        figures[_limit_head(unit)] = summary.limit
    for name, value in summary.metrics.items():
        figures[name.upper()] = value
    return figures | {"KLD": summary.kld, "active": summary.active}


def _test_head(unit: Unit) -> str:
    if unit.of:
        return f"test {unit.title},{unit.of}"
    return f"test {unit.title}"


def _limit_head(unit: Unit) -> str:
    return f"limit {unit.title}"


def _best(runs: Mapping[str, Run]) -> list[int]:
    """The place of the finished run with the lowest test figure; empty if no run is finished."""
    finished: dict[int, float] = {}
    for place, run in enumerate(runs.values()):
        if run.summary is not None:
            finished[place] = run.summary.figure
    if not finished:
        return []
    return [min(finished, key=finished.__getitem__)]


def _spent(run: Run) -> tuple[Content, str]:
    """Epochs and time, by the summary or, of a run under way, by its last epoch."""
    if run.summary is not None:
        return run.summary.epochs, html.duration(run.summary.seconds)
    epochs = len(run.metrics["epoch"])
    seconds = finite(_last(run.metrics.get("seconds", [])))
    if seconds is None:
        return epochs, ""
    return epochs, html.duration(seconds)


def _last(column: list[float | None]) -> float | None:
    if not column:
        return None
    return column[-1]


def _page(groups: Mapping[str, Mapping[str, Run]], compared: Mapping[str, Comparison]) -> str:
    """The whole page; with runs of several data sets, a part for each."""
    title = f"{sum(map(len, groups.values()))} runs"
    if len(groups) == 1:
        (runs,), (found,) = groups.values(), compared.values()
        sections = [html.header(title, _results(runs, found.joined())), *_sections(runs)]
        return html.document(title, "\n".join(sections))
    sections = [html.header(title, html.paragraph(f"Of {len(groups)} data sets: {', '.join(groups)}."))]
    for data, runs in groups.items():
        sections.append(html.section(data, _results(runs, compared[data].joined())))
        sections += _sections(runs, f", {data}")
    return html.document(title, "\n".join(sections))


def _results(runs: Mapping[str, Run], table: Table) -> str:
    """What the figures say, the table, and the units of its columns."""
    told = html.caption(legend([column.name for column in table.columns], common_unit(runs)))
    return html.paragraph(_opening(runs, table)) + html.plain_table(table) + told


def _sections(runs: Mapping[str, Run], of: str = "") -> list[str]:
    """The curves of runs, and when they reached which figure; `of` ends the headings."""
    picture = html.picture(html.png(curves(runs)), _caption(runs), narrow=html.png(curves(runs, narrow=True)))
    sections = [html.section(f"Curves{of}", picture)]
    reached = reaches(runs)
    if reached is not None:
        sections.append(html.section(f"{reached.title}{of}", html.plain_table(reached)))
    return sections


def _opening(runs: Mapping[str, Run], table: Table) -> str:
    """What the figures are, which way is better, and which run is best."""
    unit = common_unit(runs)
    told = f"Figures of the test in {unit.words or unit.title}; lower is better."
    for place in table.best:
        best = runs[str(table.rows[place][0])].summary
        assert best is not None
        told += f" The best is {table.rows[place][0]} with {number(best.figure)}."
    return told


def _caption(runs: Mapping[str, Run]) -> str:
    told = common_unit(runs).in_words
    caption = f"Validation {told} over epochs and over seconds, then KL divergence and squared error over epochs."
    if _limit(runs) is not None:
        caption += " The dotted grey line is the probabilistic PCA limit of linear decoders."
    return caption


def _limit(runs: Mapping[str, Run]) -> float | None:
    """The limit, if it is the same for all runs that have one."""
    limits = set()
    for run in runs.values():
        if run.summary is not None and run.summary.limit is not None:
            limits.add(run.summary.limit)
    if len(limits) != 1:
        return None
    return limits.pop()


def curves(runs: Mapping[str, Run], narrow: bool = False) -> Figure:
    """Validation curves of all runs, each in its own colour and line style; the panels above each other if narrow."""
    unit = common_unit(runs)
    limit = _limit(runs)
    columns = _legend_columns(runs, narrow)
    figure, (by_epoch, by_second, kld, mse) = panels(narrow, 0.22 * math.ceil(len(runs) / columns))
    _panel(by_epoch, runs, unit.metric, "epoch", limit)
    _panel(by_second, runs, unit.metric, "seconds", limit)
    _panel(kld, runs, "kld", "epoch", None)
    _panel(mse, runs, "mse", "epoch", None)
    handles, labels = by_epoch.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=10)
    name_legend(legend, runs)
    return figure


def _legend_columns(names: Iterable[str], narrow: bool) -> int:
    """Number of columns of the legend: as many as fit beside each other, from one to four."""
    letters = 90
    if narrow:
        letters = 44
    longest = max(len(drawable(name)) for name in names)
    return max(1, min(4, letters // (6 + longest)))


def _panel(axes: Axes, runs: Mapping[str, Run], metric: str, clock: str, limit: float | None) -> None:
    values: list[float] = []
    for place, run in enumerate(runs.values()):
        curve = points(run.metrics, clock, f"valid_{metric}")
        values += curve.y
        colour = COLOURS[place % len(COLOURS)]
        style = STYLES[place // len(COLOURS) % len(STYLES)]
        axes.plot(curve.x, curve.y, color=colour, linestyle=style, linewidth=1.6, label=f"run {place}")
    if limit is not None:
        axes.axhline(limit, color=LIMIT_COLOUR, linestyle=":", linewidth=1.2)
    if values:
        axes.set_ylim(y_limits(values, limit))
    dress(axes, axis_title(metric, common_unit(runs)), clock)
