"""Numbers and text in print: one rule of rounding for all pages, tables and commands, and templates filled by jinja2.

A number with an error has two significant digits of the error, and is itself rounded to the same place. Everything that
a page is given is escaped, unless it is a `markupsafe.Markup`. In Markdown, the filters `escaped`, `code` and `fenced`
see to it that text opens no tag, link or cell, and closes no block of code.
"""

import html
import math
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

SMALLEST, LARGEST = 1e-4, 1e7  # what is written without an exponent


def finite(value: object) -> float | None:
    """Return a value as a number; None if it is not a finite one."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def number(value: object) -> str:
    """Return a value in print: four significant digits, whole numbers in full, nothing for None, text as it stands.

    Example:
        >>> [number(value) for value in (2.34567, 1087.2, 100000.5, 6, 5e-5, None, "exp")]
        ['2.346', '1087', '100,000', '6', '5.000e-05', '', 'exp']
    """
    if value is None:
        return ""
    known = finite(value)
    if known is None or isinstance(value, bool):
        return str(value)
    if known.is_integer() or abs(known) >= 10_000:
        return f"{known:,.0f}"
    return f"{known:#.4g}".rstrip(".")


def with_error(value: float, error: float | None) -> str:
    """Return a number and its standard error or deviation in print; the number alone if the error is not known.

    Example:
        >>> with_error(139.2, 10.3), with_error(0.02143, 0.00332), with_error(183456, 5123)
        ('139 ± 10', '0.0214 ± 0.0033', '183,500 ± 5,100')
        >>> with_error(3.2145e-7, 2.5e-9), with_error(2.5, 0.0), with_error(2.34567, None)
        ('(3.215 ± 0.025)e-07', '2.500 ± 0', '2.346')
    """
    if error is None:
        return number(value)
    if not (math.isfinite(value) and math.isfinite(error)) or error == 0:
        return f"{number(value)} ± {number(error)}"
    largest = max(abs(value), abs(error))
    if SMALLEST <= largest < LARGEST:
        return _to_the_place_of(value, error)
    exponent = _exponent(largest, digits=4)
    scale = 10.0**exponent
    return f"({_to_the_place_of(value / scale, error / scale)})e{exponent:+03d}"


def with_interval(value: float, margin: float | None) -> str:
    """Return a difference and its interval, of twice the margin, in print; the difference alone if that is unknown.

    Example:
        >>> with_interval(-0.1712, 0.05), with_interval(12.34, 3.21), with_interval(0.02, None)
        ('-0.171 [-0.221, -0.121]', '+12.3 [+9.1, +15.6]', '+0.02000')
    """
    if margin is None or not math.isfinite(margin) or margin == 0:
        return f"{'+' if value > 0 else ''}{number(value)}"
    decimals = max(0, 1 - _exponent(margin, digits=2))
    low, high = value - margin, value + margin
    return f"{value:+,.{decimals}f} [{low:+,.{decimals}f}, {high:+,.{decimals}f}]"


def duration(seconds: float) -> str:
    """Return a time as people say it.

    Example:
        >>> [duration(seconds) for seconds in (2.34, 75, 7300, math.inf)]
        ['2.3 s', '1 min 15 s', '2 h 01 min', 'inf s']
    """
    if seconds < 60 or not math.isfinite(seconds):
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s"


def _to_the_place_of(value: float, error: float) -> str:
    """Round both to the second significant digit of the error."""
    decimals = 1 - _exponent(error, digits=2)
    shown = max(0, decimals)
    return f"{round(value, decimals):,.{shown}f} ± {round(error, decimals):,.{shown}f}"


def _exponent(value: float, digits: int) -> int:
    """Return the power of ten of the first digit, once the number is rounded to some significant digits."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def render(template: str, **values: object) -> str:
    """Return a template of `reports/templates` filled with everything that it names.

    Bytes of a file's name that are not text are written as their codes.
    """
    text = _environment().get_template(template).render(**values)
    return text.encode("utf-8", "backslashreplace").decode()


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # for pages only: tables need the functions below

    environment = Environment(
        loader=PackageLoader("silentgrad.lab", "reports/templates"),
        autoescape=lambda name: name is None or name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": number, "kind": lambda block: type(block).__name__}
    environment.filters |= {"code": code, "escaped": escaped, "fenced": fenced}
    return environment


def in_a_line(text: object) -> str:
    """Return text of one line; a file's name, or a value of a run's files, may hold anything."""
    return " ".join(str(text).split())


def escaped(text: object) -> str:
    r"""Return text that has no meaning in HTML, and in Markdown opens neither a link nor a cell.

    Example:
        >>> escaped("<b> [a](b) |")
        '&lt;b&gt; \\[a\\](b) \\|'
    """
    return re.sub(r"([\\\[\]|])", r"\\\1", html.escape(in_a_line(text), quote=False))


def code(name: str) -> str:
    """Return a name in code style."""
    return f"`{name.replace('`', chr(39))}`"


def fenced(text: str, language: str) -> str:
    """Return a block of code that nothing in it can close."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
