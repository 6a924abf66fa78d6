"""The page of a benchmark: what it says, each setting's table and curves over steps and seconds, toys and notes."""

from pathlib import Path

from matplotlib.figure import Figure

from silentgrad.lab.reports import html
from silentgrad.lab.reports.compare import COLOURS, STYLES
from silentgrad.lab.reports.figures import DPI, dress
from silentgrad.lab.reports.tables import comma_separated, markdown_rows, texts
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
    return [*[panel.table for panel in record.panels], record.toys]


def _markdown(record: BenchmarkRecord) -> str:
    lines = [f"# {TITLE}", "", f"`{record.command}`", ""]
    for sentence in (*record.verdicts, *record.notes):
        lines.append(f"- {sentence}")
    for table in _tables(record):
        lines += ["", f"## {table.title}", "", *markdown_rows(table)]
    return "\n".join(lines) + "\n"


def _page(record: BenchmarkRecord) -> str:
    parts = [html.header(TITLE, html.paragraph(f"Made by {record.command}"))]
    if record.verdicts:
        parts.append(html.section("What it says", "".join(map(html.paragraph, record.verdicts))))
    for panel in record.panels:
        parts.append(html.section(panel.table.title, _table(panel.table) + _picture(panel)))
    parts.append(html.section(record.toys.title, _table(record.toys)))
    parts.append(html.section("How it was made", "".join(map(html.paragraph, record.notes))))
    return html.document(TITLE, "".join(parts))


def _table(table: Table) -> str:
    names = [column.name for column in table.columns]
    return html.table(names, texts(table), table.title, table.best)


def _picture(panel: Panel) -> str:
    caption = "ELBO of training images in nats, first seed, over steps and over seconds of training."
    return html.picture(html.png(_curves(panel.curves)), caption)


def _curves(curves: dict[str, Progress]) -> Figure:
    figure = Figure(figsize=(1000 / DPI, 520 / DPI), dpi=DPI, layout="constrained")
    over_steps, over_seconds = figure.subplots(1, 2, sharey=True)
    lowest, highest = [], []
    for number, (name, progress) in enumerate(curves.items()):
        look = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
            "linewidth": 2.4 if name == "exact" else 1.3,
        }
        over_steps.plot(progress.steps, progress.elbos, label=name, **look)
        over_seconds.plot(progress.seconds, progress.elbos, **look)
        lowest.append(progress.elbos[min(len(progress.elbos) - 1, 1 + len(progress.elbos) // 10)])
        highest.append(max(progress.elbos))
    margin = 0.05 * (max(highest) - min(lowest)) or 1.0
    over_steps.set_ylim(min(lowest) - margin, max(highest) + margin)
    dress(over_steps, "ELBO in nats", "step")
    dress(over_seconds, "ELBO in nats", "seconds")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure
