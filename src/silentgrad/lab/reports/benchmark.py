"""The page of a benchmark: what it says, each setting's table and curves over steps and seconds, toys and notes."""

from pathlib import Path

from matplotlib.figure import Figure

from silentgrad.lab.reports import html
from silentgrad.lab.reports.compare import COLOURS, STYLES
from silentgrad.lab.reports.figures import DPI, dress
from silentgrad.lab.reports.tables import comma_separated, markdown_rows, row_texts
from silentgrad.lab.runs.benchmark import BenchmarkRecord, Panel, Progress, read_benchmark
from silentgrad.lab.runs.records import write_atomically
from silentgrad.lab.runs.tables import Table

TITLE = "Estimators of the gradient of bits, side by side"


def write_benchmark_page(path: Path) -> Path:
    """Writes a benchmark as a page, as Markdown and as CSV files beside its record; returns the page's path."""
    record = read_benchmark(path)
    write_atomically(path.with_suffix(".md"), _markdown(record).encode())
    for table in _tables(record):
        write_atomically(path.with_name(f"{table.name}.csv"), comma_separated(table).encode())
    page = path.with_suffix(".html")
    write_atomically(page, _page(record).encode())
    return page


def _tables(record: BenchmarkRecord) -> list[Table]:
    return [*[panel.table for panel in record.panels], record.orders, record.toys]


def _markdown(record: BenchmarkRecord) -> str:
    lines = [f"# {TITLE}", "", f"`{record.command}`", ""]
    for sentence in (*record.verdicts, *record.notes):
        lines.append(f"- {sentence}")
    for table in _tables(record):
        lines += ["", f"## {table.title}", "", *markdown_rows(table)]
    return "\n".join(lines) + "\n"


def _page(record: BenchmarkRecord) -> str:
    parts = [html.header(TITLE, html.command(record.command))]
    if record.verdicts:
        parts.append(html.section("What it says", "".join(map(html.paragraph, record.verdicts))))
    for panel in record.panels:
        parts.append(html.section(panel.table.title, _table(panel.table) + _picture(panel)))
    for table in (record.orders, record.toys):
        parts.append(html.section(table.title, _table(table)))
    parts.append(html.section("How it was made", "".join(map(html.paragraph, record.notes))))
    return html.document(TITLE, "".join(parts))


def _table(table: Table) -> str:
    names = [column.name for column in table.columns]
    return html.table(names, row_texts(table), table.title, table.best)


def _picture(panel: Panel) -> str:
    caption = "ELBO of training images in nats per image, first seed, over steps and over seconds of training."
    return html.picture(html.png(_curves(panel.curves)), caption, narrow=html.png(_curves(panel.curves, narrow=True)))


def _curves(curves: dict[str, Progress], narrow: bool = False) -> Figure:
    """The ELBO of all estimators, the exact one in a broad line; the panels above each other if narrow."""
    rows, columns, size = 1, 2, (1120 / DPI, 520 / DPI)
    if narrow:
        rows, columns, size = 2, 1, (480 / DPI, 1100 / DPI)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    over_steps, over_seconds = figure.subplots(rows, columns, sharey=True)
    for number, (name, progress) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        style = STYLES[number // len(COLOURS) % len(STYLES)]
        width = 1.3
        if name == "exact":
            width = 2.6
        for axes, across in ((over_steps, progress.steps), (over_seconds, progress.seconds)):
            axes.plot(across, progress.elbos, color=colour, linestyle=style, linewidth=width, label=name)
    over_steps.set_ylim(*_limits(list(curves.values())))
    dress(over_steps, "ELBO in nats per image", "step")
    dress(over_seconds, "ELBO in nats per image", "seconds")
    lines, names = over_steps.get_legend_handles_labels()
    if narrow:
        figure.legend(lines, names, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    else:
        figure.legend(lines, names, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _limits(curves: list[Progress]) -> tuple[float, float]:
    """The ends of the vertical axis: from what the slowest has after a tenth of the steps to the best of all."""
    lowest, highest = [], []
    for progress in curves:
        tenth = min(len(progress.elbos) - 1, 1 + len(progress.elbos) // 10)
        lowest.append(progress.elbos[tenth])
        highest.append(max(progress.elbos))
    margin = 0.05 * (max(highest) - min(lowest)) or 1.0
    return min(lowest) - margin, max(highest) + margin
