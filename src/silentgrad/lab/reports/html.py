"""What all pages share: one self-contained HTML file, no script, no request, readable years later from the file alone.

Titles, captions and cells are plain text and escaped here; arguments called `body` or `content` are HTML already.
"""

import base64
import io
import math
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Any

import yaml  # type: ignore[import-untyped]
from matplotlib.figure import Figure

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
dt, small, figcaption { color: var(--soft); font-size: .85rem }
dd { margin: 0; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
small { display: block; font-weight: 400 }
figure { margin: 0 }
img { display: block; max-width: 100%; height: auto; padding: .4rem; background: #fff; border-radius: 6px }
img.small { width: 30rem }
figcaption { margin-top: .4rem; overflow-wrap: anywhere }
.box { max-width: 100%; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap }
th { background: var(--card); font-weight: 600 }
td { border-top: 1px solid var(--line) }
.text { text-align: left }
tr.marked { font-weight: 600 }
details { margin-top: 1rem }
summary { padding: .3rem 0; font-weight: 600; cursor: pointer }
pre { margin: .4rem 0 0; padding: .8rem; background: var(--card); font: .85rem/1.45 ui-monospace, monospace }
"""


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
    """The page's heading and what stands under it."""
    return f"<header><h1>{escape(title)}</h1>{content}</header>"


def section(title: str, content: str) -> str:
    """A part of the page under its heading."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def paragraph(text: str) -> str:
    """A sentence or several."""
    return f"<p>{escape(text)}</p>"


def tiles(values: dict[str, tuple[object, str]]) -> str:
    """The figures that matter, in large: title -> (value, remark under it)."""
    return f"<dl>{''.join(_tile(title, *content) for title, content in values.items())}</dl>"


def _tile(title: str, value: object, remark: str) -> str:
    small = f"<small>{escape(remark)}</small>" if remark else ""
    return f"<div><dt>{escape(title)}</dt><dd>{escape(number(value))}{small}</dd></div>"


def png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def picture(content: bytes, caption: str, alt: str = "", small: bool = False) -> str:
    """A PNG inside the page, and its caption under it.

    Args:
        content: The PNG file.
        caption: What it shows, for everybody.
        alt: What it shows, for those who do not see it; the caption if absent.
        small: Not wider than about half a desk's screen.
    """
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    kind = ' class="small"' if small else ""
    image = f'<img src="{source}" alt="{escape(alt or caption)}"{kind}>'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def table(names: Sequence[str], rows: Iterable[Sequence[object]], label: str, marked: Collection[int] = ()) -> str:
    """A table that scrolls within the page's width; columns of numbers to the right, others to the left.

    Args:
        names: Names of the columns.
        rows: Cells for each column: numbers, text, or None for an empty one.
        label: What the table holds, for screen readers.
        marked: The rows set in bold.
    """
    body = [list(row) for row in rows]
    kinds = [' class="text"' if any(isinstance(row[i], str) for row in body) else "" for i in range(len(names))]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(names, kinds, strict=True))
    lines = "".join(_row(cells, kinds, position in marked) for position, cells in enumerate(body))
    # focusable, so that the keyboard can scroll it
    box = f'<div class="box" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{box}<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"


def _row(cells: Sequence[object], kinds: Sequence[str], marked: bool) -> str:
    inner = "".join(f"<td{kind}>{escape(number(cell))}</td>" for cell, kind in zip(cells, kinds, strict=True))
    return f'<tr class="marked">{inner}</tr>' if marked else f"<tr>{inner}</tr>"


def details(title: str, content: str) -> str:
    """Content behind a title that unfolds it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def listing(values: dict[str, Any]) -> str:
    """Named values as YAML."""
    return f'<pre class="box" tabindex="0">{escape(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))}</pre>'


def finite(value: object) -> float | None:
    """The number that a value is, or None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def number(value: object) -> str:
    """Four significant digits, whole numbers in full, nothing for None; anything else as it stands.

    Example:
        >>> [number(value) for value in (2.34567, 100000.5, 6, 5e-5, None, "exp")]
        ['2.346', '100,000', '6', '5.000e-05', '', 'exp']
    """
    if value is None:
        return ""
    if (known := finite(value)) is None or isinstance(value, bool):
        return str(value)
    return f"{known:,.0f}" if known.is_integer() or abs(known) >= 10_000 else f"{known:#.4g}"


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
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
