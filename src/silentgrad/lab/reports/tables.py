"""An experiment's table as Markdown, LaTeX, CSV and a page, all made from its record.

A figure over seeds is shown as mean ± standard deviation.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from silentgrad.lab.reports import compare, html
from silentgrad.lab.reports.figures import stacked, unit_range
from silentgrad.lab.reports.reaches import reaches
from silentgrad.lab.reports.rounding import number, with_error
from silentgrad.lab.reports.units import common_unit, legend
from silentgrad.lab.runs.records import Run, write_atomically
from silentgrad.lab.runs.rows import csv_line
from silentgrad.lab.runs.tables import Content, Spread, Table, read_pictures, read_table


def write_tables(record: Path) -> Path:
    """Writes a record's table beside it as .md, .tex, .csv and .html, and returns the page's path."""
    table = read_table(record)
    _write(record, ".md", markdown(table))
    _write(record, ".tex", latex(table))
    _write(record, ".csv", comma_separated(table))
    return _write(record, ".html", _page(table, _read_runs(record.parent, table.curves)))


def _write(record: Path, suffix: str, text: str) -> Path:
    path = record.with_suffix(suffix)
    write_atomically(path, text.encode())
    return path


def _read_runs(folder: Path, names: dict[str, str]) -> dict[str, Run]:
    """The runs of a record by their labels, from folders beside it."""
    runs = {}
    for label, name in names.items():
        runs[label] = Run.read(folder / name)
    return runs


def markdown(table: Table) -> str:
    """The table in Markdown, the command above it, verdicts and notes below."""
    lines = [f"## {table.title}", "", f"`{table.command}`", "", *markdown_rows(table), ""]
    for sentence in (*table.verdicts, *table.notes):
        lines.append(f"- {sentence}")
    return "\n".join(lines) + "\n"


def markdown_rows(table: Table) -> list[str]:
    """The lines of the table itself in Markdown."""
    lines = [_markdown_row(_heads(table)), "|" + "---|" * len(table.columns)]
    for position, row in enumerate(row_texts(table)):
        if position in table.best:
            row = _wrapped(row, "**", "**")
        lines.append(_markdown_row(row))
    return lines


def _wrapped(texts: list[str], before: str, after: str) -> list[str]:
    """Texts between two marks; an empty one stays empty."""
    wrapped = []
    for text in texts:
        if text:
            text = before + text + after
        wrapped.append(text)
    return wrapped


def _markdown_row(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def latex(table: Table) -> str:
    """The table in LaTeX, with the rules of booktabs."""
    lines = [r"\begin{tabular}{" + "l" * len(table.columns) + "}", r"\toprule"]
    lines += [_latex_row(map(_tex, _heads(table))), r"\midrule"]
    for position, row in enumerate(row_texts(table)):
        texts = list(map(_tex, row))
        if position in table.best:
            texts = _wrapped(texts, r"\textbf{", "}")
        lines.append(_latex_row(texts))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(texts: Iterable[str]) -> str:
    return " & ".join(texts) + r" \\"


def comma_separated(table: Table) -> str:
    """The table in CSV with all digits; a figure over seeds takes three columns."""
    heads: list[object] = []
    columns: list[Sequence[object]] = []
    for name, cells in zip(_heads(table), zip(*table.rows, strict=True), strict=True):
        if any(isinstance(cell, Spread) for cell in cells):
            heads += [f"{name} mean", f"{name} std", f"{name} seeds"]
            columns += zip(*map(_three_cells, cells), strict=True)
        else:
            heads.append(name)
            columns.append(cells)
    return "".join(map(csv_line, [heads, *zip(*columns, strict=True)]))


def _three_cells(content: Content) -> tuple[object, object, object]:
    if isinstance(content, Spread):
        return content.mean, content.std, content.seeds
    return content, None, None


def write_pictures(record: Path) -> Path:
    """Writes the page of reconstructions, and its pictures as PNG, from a record of rows of runs."""
    pictures = read_pictures(record)
    parts = [html.header(pictures.title, html.command(pictures.command))]
    for group in pictures.groups:
        rows = _image_rows(_read_runs(record.parent, group.runs))
        content, narrow = html.png(stacked(rows)), html.png(stacked(rows, narrow=True))
        write_atomically(record.with_name(f"{group.name}.png"), content)
        parts.append(html.section(group.title, html.picture(content, group.caption, narrow=narrow)))
    return _write(record, ".html", html.document(pictures.title, "".join(parts)))


def _image_rows(runs: dict[str, Run]) -> dict[str, Tensor]:
    """The originals once, then each run's means and, where they are learned, standard deviations."""
    rows: dict[str, Tensor] = {}
    for label, run in runs.items():
        if run.pictures is None:
            continue
        rows.setdefault("original", run.pictures.originals)
        rows[label] = run.pictures.means
        if run.pictures.stds is not None:
            rows[f"{label}, std. dev."] = unit_range(run.pictures.stds)
    return rows


def _page(table: Table, runs: dict[str, Run]) -> str:
    parts = [html.header(table.title, html.command(table.command))]
    parts.append(html.table(_heads(table), row_texts(table), table.title, table.best))
    if runs:
        parts.append(html.caption(legend(_heads(table), common_unit(runs))))
    for title, sentences in (("What it says", table.verdicts), ("How it was made", table.notes)):
        if sentences:
            parts.append(html.section(title, "".join(map(html.paragraph, sentences))))
    if len(runs) > 1:
        parts += _convergence(runs)
    return html.document(table.title, "".join(parts))


def _convergence(runs: dict[str, Run]) -> list[str]:
    caption = "Validation figures of each first seed, by epoch and time."
    wide, narrow = compare.curves(runs), compare.curves(runs, narrow=True)
    picture = html.picture(html.png(wide), caption, narrow=html.png(narrow))
    sections = [html.section("Convergence", picture)]
    reached = reaches(runs)
    if reached is not None:
        sections.append(html.section(reached.title, html.plain_table(reached)))
    return sections


def _heads(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def row_texts(table: Table) -> Iterator[list[str]]:
    """The rows as people read them."""
    for row in table.rows:
        yield [shown(cell, column.digits) for cell, column in zip(row, table.columns, strict=True)]


def shown(content: Content, digits: int | None) -> str:
    """A cell as people read it.

    Args:
        content: The cell.
        digits: Number of digits after the point of a number without an error.

    Example:
        >>> shown(Spread(6.7447, 0.0012, 3), 3), shown(6.718, 3), shown(None, 3), shown("no", None)
        ('6.7447 ± 0.0012', '6.718', '', 'no')
        >>> shown(183000.0, None)
        '183,000'
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Spread):
        if content.std is None:
            return shown(content.mean, digits)
        return with_error(content.mean, content.std)
    if digits is None:
        return number(content)
    return f"{content:.{digits}f}"


def _tex(text: str) -> str:
    return text.replace("%", r"\%").replace("±", r"$\pm$").replace("_", r"\_")
