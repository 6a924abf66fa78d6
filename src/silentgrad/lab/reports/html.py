"""What all pages share: one self-contained HTML file, no script, no request, readable years later from the file alone.

Titles, captions and cells are plain text and escaped here; arguments called `body` or `content` are HTML already.
"""

import base64
import io
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]
from matplotlib.figure import Figure

from silentgrad.lab.reports.rounding import number
from silentgrad.lab.runs.tables import Table

TELEPHONE = "40rem"  # up to this width
MANY = 12  # columns, above which a table is set closer
CSS = """
:root { color-scheme: light dark; --ink: #1d2125; --soft: #5b646d; --paper: #fff; --card: #f4f5f7; --line: #d9dde1 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #a3abb3; --paper: #15181b; --card: #1f2428; --line: #363d44 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { margin: 0 0 1rem; font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.1rem }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; margin: 0 }
dl div { padding: .6rem .8rem; background: var(--card); border-radius: 6px }
dt, small, figcaption, .caption { color: var(--soft); font-size: .85rem }
dd { margin: 0; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
small { display: block; font-weight: 400 }
figure { margin: 0 }
img { display: block; max-width: 100%; height: auto; padding: .4rem; background: #fff; border-radius: 6px }
img.small { width: 30rem }
figcaption, .caption { margin: .4rem 0 0; overflow-wrap: anywhere }
.box { max-width: 100%; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px }
.wide { position: relative; left: 50%; width: max-content; min-width: 100%; max-width: calc(100vw - 2rem);
  transform: translateX(-50%) }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap }
.many th, .many td { padding: .3rem .35rem; font-size: .78rem }
th { background: var(--card); font-weight: 600; vertical-align: bottom; white-space: normal }
th:first-child, td:first-child { position: sticky; left: 0 }
td:first-child { background: var(--paper) }
td { border-top: 1px solid var(--line) }
.text { text-align: left }
.wrapped td { vertical-align: top }
.wrapped td.text { min-width: 15rem; white-space: normal }
tr.marked { font-weight: 600 }
@media (max-width: 40rem) {
  .text:first-child { max-width: 9.5rem; white-space: normal; overflow-wrap: break-word }
}
@media (min-width: 40.01rem) { td.text { white-space: normal } }
details { margin-top: 1rem }
summary { padding: .3rem 0; font-weight: 600; cursor: pointer }
.command span { display: inline-block; max-width: 100% }
pre { margin: .4rem 0 0; padding: .8rem; background: var(--card); font: .85rem/1.45 ui-monospace, monospace }
pre.command { margin-bottom: 1rem; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere;
  user-select: all }
"""


class Tile(NamedTuple):
    """A figure in large.

    Args:
        title: What it is.
        value: A number or text.
        remark: What stands under it in small print.
    """

    title: str
    value: object
    remark: str = ""


def document(title: str, body: str) -> str:
    """A whole page, in which bytes of a file's name that are no text are written as their codes."""
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · silentgrad</title>
<style>{CSS}</style>
</head>
<body><main>
{body}
</main></body>
</html>
"""
    return page.encode("utf-8", "backslashreplace").decode()


def header(title: str, content: str) -> str:
    """The page's heading and the content under it."""
    return f"<header><h1>{escape(title)}</h1>{content}</header>"


def section(title: str, content: str) -> str:
    """A part of the page under its heading."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def paragraph(text: str) -> str:
    """A paragraph of one sentence or several."""
    return f"<p>{escape(text)}</p>"


def caption(text: str) -> str:
    """What stands under a table, in sentences."""
    return f'<p class="caption">{escape(text)}</p>'


def tiles(values: Iterable[Tile]) -> str:
    """The figures that matter, in large."""
    return f"<dl>{''.join(map(_tile, values))}</dl>"


def _tile(tile: Tile) -> str:
    value = escape(number(tile.value))
    if tile.remark:
        value += f"<small>{escape(tile.remark)}</small>"
    return f"<div><dt>{escape(tile.title)}</dt><dd>{value}</dd></div>"


def png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def picture(content: bytes, caption: str, alt: str = "", small: bool = False, narrow: bytes | None = None) -> str:
    """A PNG inside the page, and its caption under it.

    Args:
        content: The content of the PNG file.
        caption: What the picture shows, for everybody.
        alt: What the picture shows, for those who do not see it; the caption if absent.
        small: Whether the picture takes at most about half the width of a desktop screen.
        narrow: The content of the PNG file that is shown on a telephone instead, if there is one.
    """
    attributes = f'src="{_address(content)}" alt="{escape(alt or caption)}"'
    if small:
        attributes += ' class="small"'
    image = f"<img {attributes}>"
    if narrow is not None:
        image = f'<picture><source media="(max-width: {TELEPHONE})" srcset="{_address(narrow)}">{image}</picture>'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _address(content: bytes) -> str:
    """A PNG as the address of itself."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def command(text: str) -> str:
    """A command to copy: a click chooses all of it. Its lines end between options."""
    first, *options = escape(text).split(" --")
    words = [first]
    for option in options:
        words.append(f"<span>--{option}</span>")
    return f'<pre class="command" tabindex="0">{" ".join(words)}</pre>'


def table(
    names: Sequence[str],
    rows: Iterable[Sequence[object]],
    label: str,
    marked: Collection[int] = (),
    wrapped: bool = False,
) -> str:
    """A table that scrolls within the page's width; columns of numbers to the right, others to the left.

    Args:
        names: Names of the columns.
        rows: Cells for each column: numbers, text, or None for an empty one.
        label: What the table holds, for screen readers.
        marked: Numbers of the rows set in bold.
        wrapped: Whether long text takes several lines.
    """
    body = list(rows)
    classes = _classes(len(names), body)
    head = ""
    for name, attribute in zip(names, classes, strict=True):
        head += f'<th scope="col"{attribute}>{escape(name)}</th>'
    lines = ""
    for position, cells in enumerate(body):
        opening = "<tr>"
        if position in marked:
            opening = '<tr class="marked">'
        lines += f"{opening}{_cells(cells, classes)}</tr>"
    # focusable, so that the keyboard can scroll it
    kind = "box wide"
    if len(names) > MANY:
        kind = "box wide many"
    if wrapped:
        kind = "box wrapped"
    box = f'<div class="{kind}" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{box}<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"


def plain_table(record: Table) -> str:
    """A recorded table of numbers and text, its best rows marked."""
    names = [column.name for column in record.columns]
    return table(names, record.rows, record.title, record.best)


def _classes(count: int, rows: Sequence[Sequence[object]]) -> list[str]:
    """The class attribute of each column's cells: a column that holds any text is set as text."""
    classes = [""] * count
    for row in rows:
        for place, cell in enumerate(row):
            if isinstance(cell, str):
                classes[place] = ' class="text"'
    return classes


def _cells(cells: Sequence[object], classes: Sequence[str]) -> str:
    inner = ""
    for cell, attribute in zip(cells, classes, strict=True):
        inner += f"<td{attribute}>{escape(number(cell))}</td>"
    return inner


def details(title: str, content: str) -> str:
    """Content behind a title that unfolds it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def listing(values: dict[str, Any]) -> str:
    """Named values as YAML."""
    return f'<pre class="box" tabindex="0">{escape(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))}</pre>'


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> [duration(seconds) for seconds in (2.34, 75, 7300)]
        ['2.3 s', '1 min 15 s', '2 h 01 min']
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s"
