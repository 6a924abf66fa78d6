"""Rows of CSV files: how they are written, and how they are read."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Columns = dict[str, list[float | None]]


def csv_line(cells: Iterable[object]) -> str:
    r"""A row as a line of a file.

    Example:
        >>> csv_line(["a, b", 1.5, None])
        '"a, b",1.5,\n'
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as the content of a file; the first one names the columns, of which later ones may lack some."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_columns(path: Path) -> Columns:
    """The columns of a file of numbers, without a last line that a kill cut short; None for an empty cell.

    Raises:
        ValueError: A row has more or fewer cells than there are columns, or a cell that is no number.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(line for line in file if line.endswith("\n"))
        columns: Columns = {name: [] for name in next(rows, [])}
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"line {rows.line_num} has {len(row)} cells, expected {len(columns)}")
            for column, cell in zip(columns.values(), row, strict=True):
                column.append(_number(cell))
    return columns


def _number(cell: str) -> float | None:
    if not cell.strip():
        return None
    return float(cell)
