"""An experiment's table as Markdown, LaTeX, CSV and a page, all made from its JSON record.

A cell is text, a number, nothing, or a figure over seeds `{"mean": ..., "std": ..., "seeds": ...}`, which is shown as
mean ± standard deviation.
"""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from silentgrad.lab.reports import compare, html
from silentgrad.lab.reports.figures import image_figure, unit_range
from silentgrad.lab.runs.records import Run, read_json, write_atomically

PICTURED = 10  # images to a row of the figures


def write_tables(record: Path) -> Path:
    """Writes a record's table beside it as .md, .tex, .csv and .html, and returns the page's path."""
    table = read_json(record)
    runs = {label: Run.read(record.parent / name) for label, name in table["curves"].items()}
    for suffix, text in (
        (".md", markdown(table)),
        (".tex", latex(table)),
        (".csv", comma_separated(table)),
        (".html", _page(table, runs)),
    ):
        write_atomically(record.with_suffix(suffix), text.encode())
    return record.with_suffix(".html")


def markdown(table: dict[str, Any]) -> str:
    """With what it says below it, and the command above."""
    lines = [f"## {table['title']}", "", f"`{table['command']}`", ""]
    lines += ["| " + " | ".join(table["columns"]) + " |", "|" + "---|" * len(table["columns"])]
    for position, row in enumerate(_texts(table)):
        shown = [f"**{text}**" if position in table["best"] and text else text for text in row]
        lines.append("| " + " | ".join(shown) + " |")
    lines += ["", *(f"- {sentence}" for sentence in (*table["verdicts"], *table["notes"])), ""]
    return "\n".join(lines)


def latex(table: dict[str, Any]) -> str:
    """A booktabs table."""
    lines = [r"\begin{tabular}{" + "l" * len(table["columns"]) + "}", r"\toprule"]
    lines += [" & ".join(map(_tex, table["columns"])) + r" \\", r"\midrule"]
    for position, row in enumerate(_texts(table)):
        bold = position in table["best"]
        lines.append(" & ".join(rf"\textbf{{{_tex(text)}}}" if bold and text else _tex(text) for text in row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def comma_separated(table: dict[str, Any]) -> str:
    """Full digits; a figure over seeds takes three columns."""
    seeds = [any(isinstance(row[i], dict) for row in table["rows"]) for i in range(len(table["columns"]))]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(cell for name, over in zip(table["columns"], seeds, strict=True) for cell in _heads(name, over))
    for row in table["rows"]:
        writer.writerow(cell for content, over in zip(row, seeds, strict=True) for cell in _spread(content, over))
    return text.getvalue()


def write_pictures(record: Path) -> Path:
    """Writes the page of reconstructions, and its pictures as PNG, from a record of rows of runs."""
    pictures = read_json(record)
    parts = [html.header(pictures["title"], html.paragraph(f"Made by {pictures['command']}"))]
    for group in pictures["groups"]:
        runs = {label: Run.read(record.parent / name) for label, name in group["runs"].items()}
        content = html.png(_reconstructions(runs))
        write_atomically(record.with_name(f"{group['name']}.png"), content)
        parts.append(html.section(group["title"], html.picture(content, group["caption"])))
    write_atomically(record.with_suffix(".html"), html.document(pictures["title"], "".join(parts)).encode())
    return record.with_suffix(".html")


def _reconstructions(runs: dict[str, Run]) -> Figure:
    """The originals once, then each run's means and, where they are learned, standard deviations."""
    rows = {"original": next(iter(runs.values())).pictures["originals"]}
    for label, run in runs.items():
        rows[label] = run.pictures["means"]
        if "stds" in run.pictures:
            rows[f"{label}, std. dev."] = unit_range(run.pictures["stds"])
    return image_figure(torch.cat([images[:PICTURED] for images in rows.values()]), PICTURED, list(rows))


def _page(table: dict[str, Any], runs: dict[str, Run]) -> str:
    parts = [html.header(table["title"], html.paragraph(f"Made by {table['command']}"))]
    rows = [[text or None for text in row] for row in _texts(table)]
    parts.append(html.table(table["columns"], rows, table["title"], table["best"]))
    parts.append(html.section("What it says", "".join(map(html.paragraph, table["verdicts"]))))
    parts.append(html.section("What was reduced", "".join(map(html.paragraph, table["notes"]))))
    if len(runs) > 1:
        picture = html.picture(
            html.png(compare.curves(runs)), "Validation figures of each first seed, by epoch and time."
        )
        parts.append(html.section("Convergence", picture))
        reached = compare.reaches(runs)
        if reached is not None:
            parts.append(html.section("First reached", html.table(reached.names, reached.rows, "Levels of BPD")))
    return html.document(table["title"], "".join(parts))


def _texts(table: dict[str, Any]) -> Iterable[list[str]]:
    digits = [table["digits"].get(name) for name in table["columns"]]
    for row in table["rows"]:
        yield [shown(content, places) for content, places in zip(row, digits, strict=True)]


def shown(content: object, digits: int | None) -> str:
    """A cell as people read it.

    Example:
        >>> shown({"mean": 6.7447, "std": 0.0012, "seeds": 3}, 3), shown(6.718, 3), shown(None, 3), shown("no", None)
        ('6.745 ± 0.001', '6.718', '', 'no')
        >>> shown(183000.0, None)
        '1.83e+05'
    """
    if content is None:
        return ""
    if isinstance(content, dict):
        deviation = f" ± {shown(content['std'], digits)}" if "std" in content else ""
        return shown(content["mean"], digits) + deviation
    if isinstance(content, int | float):
        return f"{content:.3g}" if digits is None else f"{content:.{digits}f}"
    return str(content)


def _heads(name: str, over_seeds: bool) -> list[str]:
    return [f"{name} mean", f"{name} std", f"{name} seeds"] if over_seeds else [name]


def _spread(content: object, over_seeds: bool) -> list[object]:
    if not over_seeds:
        return [content]
    if isinstance(content, dict):
        return [content["mean"], content.get("std"), content["seeds"]]
    return [content, None, None]


def _tex(text: str) -> str:
    return text.replace("%", r"\%").replace("±", r"$\pm$").replace("_", r"\_")
