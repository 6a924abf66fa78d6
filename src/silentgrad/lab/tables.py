"""The laboratory's table: its cells, how they are rounded, how it is laid out in every medium, and what it belongs to.

Experiments and reports make tables. They are printed in a terminal, written as Markdown, LaTeX and CSV, and shown on
pages through the template `table.html.j2`. The findings of an experiment are tables, curves and pictures of runs, and
what they say; reports write them as files and as a page.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace

from rich.box import SIMPLE
from rich.table import Table as Grid
from rich.text import Text

from silentgrad.lab.printing import escaped, number, with_error, with_interval
from silentgrad.lab.store.files import csv_line

SHORT = 24  # letters of a name that stays on one line


@dataclass(frozen=True)
class Spread:
    """A figure over seeds, shown as mean ± standard deviation."""

    mean: float
    std: float | None  # with n - 1; None for one seed
    seeds: int


@dataclass(frozen=True)
class WithError:
    """A measured number, shown as value ± standard error; None if that is not known."""

    value: float
    error: float | None


@dataclass(frozen=True)
class Interval:
    """A difference, shown with its sign and confidence interval."""

    mean: float
    margin: float | None  # half the width; None if it is not known, as with one seed


Content = str | float | None | Spread | WithError | Interval


@dataclass(frozen=True)
class Column:
    """A column of a table. Numbers are set right, and a column that holds any text is set left."""

    name: str
    digits: int | None = None  # after the point of a number without an error; four significant ones if absent
    unit: str = ""  # of its numbers, or what they mean; stands under the table
    judges: bool = False  # the measured figures, or has those of a paper beside them
    wrapped: bool = False  # long text, which takes several lines


@dataclass(frozen=True)
class Table:
    """A table."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Content]]  # a cell for each column
    best: Sequence[int] = ()  # numbers of the rows that stand out
    notes: Sequence[str] = ()  # sentences under it
    name: str = ""  # of its files

    @property
    def heads(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def texts(self) -> list[list[str]]:
        digits = [column.digits for column in self.columns]
        return [list(map(shown, row, digits)) for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """True for each column that holds no text."""
        return [not any(isinstance(cell, str) for cell in self.column(place)) for place in range(len(self.columns))]

    @property
    def legend(self) -> str:
        """Units of the columns in a sentence; empty if no column has one.

        Example:
            >>> Table("", [Column("test BPD", unit="bits per dimension"), Column("KLD", unit="nats")], []).legend
            'test BPD: bits per dimension; KLD: nats.'
        """
        names: dict[str, list[str]] = {}
        for column in self.columns:
            if column.unit:
                names.setdefault(column.unit, []).append(column.name)
        return "; ".join(f"{', '.join(group)}: {unit}" for unit, group in names.items()) + "." * bool(names)

    @property
    def caption(self) -> str:
        """The legend and the notes: all that stands under the table."""
        return " ".join(filter(None, [self.legend, *self.notes]))

    def column(self, place: int) -> list[Content]:
        return [row[place] for row in self.rows]

    def only(self, wanted: Callable[[Column, Sequence[Content]], bool]) -> "Table":
        """Return the table with the columns that are wanted, by themselves and their cells."""
        kept = [place for place, column in enumerate(self.columns) if wanted(column, self.column(place))]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in kept], rows=rows)


@dataclass(frozen=True)
class Curves:
    """Runs whose validation curves stand under the table before them."""

    runs: Mapping[str, str]  # label -> name of the run's folder


@dataclass(frozen=True)
class Reconstructions:
    """Runs whose reconstructions stand above each other."""

    name: str  # of the picture's file
    title: str
    caption: str  # a sentence under the picture
    runs: Mapping[str, str]  # label -> name of the run's folder


@dataclass(frozen=True)
class Findings:
    """Everything that an experiment found."""

    name: str  # of its files
    title: str
    parts: Sequence[Table | Curves | Reconstructions]  # in their order
    verdicts: Sequence[str] = ()  # what they say, in sentences
    notes: Sequence[str] = ()  # how they were made, in sentences
    command: str = ""  # that makes all of it again

    @property
    def tables(self) -> list[Table]:
        return [part for part in self.parts if isinstance(part, Table)]


def shown(cell: Content, digits: int | None = None) -> str:
    """Return a cell as people read it, with some digits after the point of a number without an error.

    Example:
        >>> shown(Spread(6.7447, 0.0012, 3), 3), shown(6.718, 3), shown(None, 3), shown("no")
        ('6.7447 ± 0.0012', '6.718', '', 'no')
        >>> shown(183000.0), shown(Spread(6.7447, None, 1), 3), shown(Interval(-0.1712, 0.05))
        ('183,000', '6.745', '-0.171 [-0.221, -0.121]')
    """
    match cell:
        case Spread(mean, None):
            return shown(mean, digits)
        case Spread(value, error) | WithError(value, error):
            return with_error(value, error)
        case Interval(mean, None) if digits is not None:
            return f"{mean:+.{digits}f}"
        case Interval(mean, margin):
            return with_interval(mean, margin)
        case float() if digits is not None:
            return f"{cell:,.{digits}f}"
    return number(cell)


def markdown(table: Table) -> str:
    """Return the table in Markdown, with its legend and notes."""
    rules, rows = ["---:" if numeric else "---" for numeric in table.numeric], [list(map(escaped, table.heads))]
    for cells, texts in zip(table.rows, table.texts, strict=True):
        rows.append([escaped(text) if isinstance(cell, str) else text for cell, text in zip(cells, texts, strict=True)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|{'|'.join(rules)}|")
    if table.caption:
        lines += ["", table.caption]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """Return the table in LaTeX, with the rules of booktabs."""
    from pandas import DataFrame  # type: ignore[import-untyped]  # takes a moment, which others need not pay

    style = DataFrame(table.texts, columns=table.heads).style.hide(axis="index")
    style = style.format(escape="latex").format_index(escape="latex", axis="columns")
    alignment = "".join("r" if numeric else "l" for numeric in table.numeric)
    return str(style.to_latex(column_format=alignment, hrules=True))


def comma_separated(table: Table) -> str:
    """Return the table in CSV with all digits; a figure over seeds takes three columns."""
    heads: list[str] = []
    columns: list[list[object]] = []
    for place, column in enumerate(table.columns):
        cells = table.column(place)
        parts = next((list(asdict(cell)) for cell in cells if is_dataclass(cell)), [])
        heads += [f"{column.name} {part}" for part in parts] or [column.name]
        columns.append([getattr(cell, parts[0], cell) if parts else cell for cell in cells])
        columns += ([getattr(cell, part, None) for cell in cells] for part in parts[1:])
    return "".join(map(csv_line, [heads, *zip(*columns, strict=True)]))


def terminal(table: Table) -> Grid:
    """Return the table for a terminal, whole: what does not fit into its column takes several lines."""
    title = Text(table.title, style="bold") if table.title else None
    grid = Grid(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    texts = table.texts
    for place, (head, numeric) in enumerate(zip(table.heads, table.numeric, strict=True)):
        longest = max([len(row[place]) for row in texts], default=0)
        short = place == 0 and longest <= SHORT
        if numeric:
            head = textwrap.fill(head, max(longest, *map(len, head.split()), 1), break_on_hyphens=False)
        grid.add_column(Text(head), justify="right" if numeric else "left", no_wrap=short, overflow="fold")
    for place, row in enumerate(texts):
        grid.add_row(*map(Text, row), style="bold" if place in table.best else None)
    return grid
