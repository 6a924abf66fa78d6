"""An experiment's table as Markdown, LaTeX, CSV and a page, all made from its record.

A figure over seeds is shown as mean ± standard deviation.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure

from silentgrad.lab.reports import compare, html
from silentgrad.lab.reports.figures import image_figure, unit_range
from silentgrad.lab.runs.records import Run, write_atomically
from silentgrad.lab.runs.rows import csv_line
from silentgrad.lab.runs.tables import Content, Spread, Table, read_pictures, read_table

PICTURED = 10  # images to a row of the figures


def write_tables(record: Path) -> Path:
    """Writes a record's table beside it as .md, .tex, .csv and .html, and returns the page's path."""
    table = read_table(record)
    runs = {label: Run.read(record.parent / name) for label, name in table.curves.items()}
    for suffix, text in (
        (".md", markdown(table)),
        (".tex", latex(table)),
        (".csv", comma_separated(table)),
        (".html", _page(table, runs)),
    ):
        write_atomically(record.with_suffix(suffix), text.encode())
    return record.with_suffix(".html")


def markdown(table: Table) -> str:
    """With what it says below it, and the command above."""
    lines = [f"## {table.title}", "", f"`{table.command}`", ""]
    lines += [_markdown_row(_heads(table)), "|" + "---|" * len(table.columns)]
    for position, row in enumerate(_texts(table)):
        if position in table.best:
            row = [f"**{text}**" if text else "" for text in row]
        lines.append(_markdown_row(row))
    lines += ["", *(f"- {sentence}" for sentence in (*table.verdicts, *table.notes)), ""]
    return "\n".join(lines)


def _markdown_row(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def latex(table: Table) -> str:
    """A booktabs table."""
    lines = [r"\begin{tabular}{" + "l" * len(table.columns) + "}", r"\toprule"]
    lines += [_latex_row([_tex(head) for head in _heads(table)]), r"\midrule"]
    for position, row in enumerate(_texts(table)):
        texts = [_tex(text) for text in row]
        if position in table.best:
            texts = [rf"\textbf{{{text}}}" if text else "" for text in texts]
        lines.append(_latex_row(texts))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(texts: list[str]) -> str:
    return " & ".join(texts) + r" \\"


def comma_separated(table: Table) -> str:
    """Full digits; a figure over seeds takes three columns."""
    spread = [any(isinstance(cell, Spread) for cell in column) for column in zip(*table.rows, strict=True)]
    heads: list[str] = []
    for name, over_seeds in zip(_heads(table), spread, strict=True):
        heads += [f"{name} mean", f"{name} std", f"{name} seeds"] if over_seeds else [name]
    lines = [csv_line(heads)]
    for row in table.rows:
        cells: list[object] = []
        for content, over_seeds in zip(row, spread, strict=True):
            cells += _three_cells(content) if over_seeds else [content]
        lines.append(csv_line(cells))
    return "".join(lines)


def _three_cells(content: Content) -> list[object]:
    if isinstance(content, Spread):
        return [content.mean, content.std, content.seeds]
    return [content, None, None]


def write_pictures(record: Path) -> Path:
    """Writes the page of reconstructions, and its pictures as PNG, from a record of rows of runs."""
    pictures = read_pictures(record)
    parts = [html.header(pictures.title, html.paragraph(f"Made by {pictures.command}"))]
    for group in pictures.groups:
        runs = {label: Run.read(record.parent / name) for label, name in group.runs.items()}
        content = html.png(_reconstructions(runs))
        write_atomically(record.with_name(f"{group.name}.png"), content)
        parts.append(html.section(group.title, html.picture(content, group.caption)))
    write_atomically(record.with_suffix(".html"), html.document(pictures.title, "".join(parts)).encode())
    return record.with_suffix(".html")


def _reconstructions(runs: dict[str, Run]) -> Figure:
    """The originals once, then each run's means and, where they are learned, standard deviations."""
    rows = {"original": next(iter(runs.values())).pictures["originals"]}
    for label, run in runs.items():
        rows[label] = run.pictures["means"]
        if "stds" in run.pictures:
            rows[f"{label}, std. dev."] = unit_range(run.pictures["stds"])
    return image_figure(torch.cat([images[:PICTURED] for images in rows.values()]), PICTURED, list(rows))


def _page(table: Table, runs: dict[str, Run]) -> str:
    parts = [html.header(table.title, html.paragraph(f"Made by {table.command}"))]
    rows = [[text or None for text in row] for row in _texts(table)]
    parts.append(html.table(_heads(table), rows, table.title, table.best))
    parts.append(html.section("What it says", "".join(map(html.paragraph, table.verdicts))))
    parts.append(html.section("What was reduced", "".join(map(html.paragraph, table.notes))))
    if len(runs) > 1:
        picture = html.picture(
            html.png(compare.curves(runs)), "Validation figures of each first seed, by epoch and time."
        )
        parts.append(html.section("Convergence", picture))
        reached = compare.reaches(runs)
        if reached is not None:
            parts.append(html.section("First reached", html.table(reached.names, reached.rows, "Levels of BPD")))
    return html.document(table.title, "".join(parts))


def _heads(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _texts(table: Table) -> Iterator[list[str]]:
    """The rows as people read them."""
    for row in table.rows:
        yield [shown(content, column.digits) for content, column in zip(row, table.columns, strict=True)]


def shown(content: Content, digits: int | None) -> str:
    """A cell as people read it.

    Example:
        >>> shown(Spread(6.7447, 0.0012, 3), 3), shown(6.718, 3), shown(None, 3), shown("no", None)
        ('6.745 ± 0.001', '6.718', '', 'no')
        >>> shown(183000.0, None)
        '1.83e+05'
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Spread):
        deviation = "" if content.std is None else f" ± {shown(content.std, digits)}"
        return shown(content.mean, digits) + deviation
    return f"{content:.3g}" if digits is None else f"{content:.{digits}f}"


def _tex(text: str) -> str:
    return text.replace("%", r"\%").replace("±", r"$\pm$").replace("_", r"\_")
