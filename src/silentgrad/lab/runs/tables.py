"""The records of an experiment: its tables and its figures, which experiments write and reports read.

A cell of a table is text, a number, nothing, or a figure over seeds.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from silentgrad.lab.runs.records import RecordError, read_json, write_json_atomically


@dataclass(frozen=True)
class Spread:
    """A figure over seeds.

    Args:
        mean: Its mean.
        std: Its standard deviation (n - 1); None for one seed.
        seeds: Number of seeds.
    """

    mean: float
    std: float | None
    seeds: int


Content = str | float | None | Spread


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name: Its head.
        digits: Number of digits to show after the point of a number without an error; four significant ones if absent.
    """

    name: str
    digits: int | None = None


@dataclass(frozen=True)
class Table:
    """A table of an experiment.

    Args:
        name: The name of its files.
        title: Its heading.
        columns: Its columns.
        rows: A cell for each column.
        best: The numbers of the rows that stand out.
        verdicts: What the table says, in sentences.
        notes: How it was made, in sentences.
        curves: The runs whose curves to show, label -> folder beside the table's files.
        command: The command that made it.
    """

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Content]]
    best: list[int] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    curves: dict[str, str] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True)
class PictureGroup:
    """Runs whose reconstructions stand above each other.

    Args:
        name: The name of its file.
        title: Its heading.
        caption: What stands below.
        runs: The runs, label -> folder beside the file.
    """

    name: str
    title: str
    caption: str
    runs: dict[str, str]


@dataclass(frozen=True)
class Pictures:
    """The figures of an experiment.

    Args:
        name: The name of their page.
        title: Its heading.
        groups: One for each figure.
        command: The command that made them.
    """

    name: str
    title: str
    groups: list[PictureGroup]
    command: str = ""


def write_record(folder: Path, record: Table | Pictures) -> Path:
    """Writes a record into the experiment's folder, and returns the path of its file."""
    path = folder / f"{record.name}.json"
    write_json_atomically(path, asdict(record))
    return path


def read_table(path: Path) -> Table:
    """Reads a table's record.

    Raises:
        RecordError: The file is missing or damaged.
    """
    content = read_json(path)
    try:
        return table_from(content)
    except (KeyError, TypeError) as error:
        raise RecordError(f"cannot read {path}: it holds no table ({error})") from error


def table_from(content: dict[str, Any]) -> Table:
    """A table from what JSON holds of it."""
    columns = [Column(**column) for column in content.pop("columns")]
    rows = []
    for row in content.pop("rows"):
        rows.append([_content(cell) for cell in row])
    return Table(columns=columns, rows=rows, **content)


def read_pictures(path: Path) -> Pictures:
    """Reads the record of an experiment's figures.

    Raises:
        RecordError: The file is missing or damaged.
    """
    content = read_json(path)
    try:
        groups = [PictureGroup(**group) for group in content.pop("groups")]
        return Pictures(groups=groups, **content)
    except (KeyError, TypeError) as error:
        raise RecordError(f"cannot read {path}: it holds no figures ({error})") from error


def _content(cell: Any) -> Content:
    if isinstance(cell, dict):
        return Spread(**cell)
    content: Content = cell
    return content
