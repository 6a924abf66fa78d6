"""Tables of numbers: `.csv` files with or without a header, and `.npy` files of two dimensions."""

import csv
import math
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data.formats import DataError, npy_header, reading, require, require_memory


class Table(NamedTuple):
    """A table of numbers.

    Args:
        values: Numbers `(rows, columns)` in double precision.
        columns: Names of the columns; none if the file has no header.
    """

    values: Tensor
    columns: tuple[str, ...]


def read_table(path: Path) -> Table:
    """A table of finite numbers.

    Raises:
        DataError: The file is no such table; the message names the file, and the line and column of a cell that is no
            finite number.
    """
    if path.suffix == ".csv":
        return _from_csv(path)
    return _from_npy(path)


def holds_images(path: Path) -> bool:
    """Whether a file holds images, not a table: anything but a `.csv` file or a `.npy` file of numbers in a table."""
    if path.suffix != ".npy":
        return path.suffix != ".csv"
    with reading(path, "a numpy array"), path.open("rb") as file:
        header = npy_header(file)
    return len(header.shape) != 2


def _from_npy(path: Path) -> Table:
    expected = "a table of numbers, (rows, columns)"
    with reading(path, expected):
        with path.open("rb") as file:
            header = npy_header(file)
        require(header.dtype.kind in "fiu" and len(header.shape) == 2, path, expected, header.kind)
        require(min(header.shape) > 0, path, expected, header.kind)
        header.require_size(path, path.stat().st_size)
        require_memory(8 * header.shape[0] * header.shape[1], path)
        values = torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float64))
    for row, column in (~values.isfinite()).nonzero()[:1].tolist():
        value = values[row, column].item()
        raise DataError(f"{path}: row {row + 1}, column {column + 1}: expected a finite number, found {value}")
    return Table(values, ())


def _from_csv(path: Path) -> Table:
    with reading(path, "a table of numbers"), path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, strict=True)
        first = next(lines, [])
        require(bool(first), path, "a table of numbers", "an empty file or first line")
        header: tuple[str, ...] = ()
        cells = array("d")
        if _names(first):
            header = tuple(first)
        else:
            cells.extend(_numbers(path, 1, first, header))
        for row in lines:
            if not row:  # a blank line
                continue
            _require_width(path, lines.line_num, row, len(first))
            cells.extend(_numbers(path, lines.line_num, row, header))
    require(bool(cells), path, "rows of numbers", "a header only")
    return Table(torch.tensor(cells, dtype=torch.float64).reshape(-1, len(first)), header)


def _names(first: Iterable[str]) -> bool:
    """Whether the first line is a header: none of its cells is a number."""
    return not any(map(_is_number, first))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _numbers(path: Path, line: int, row: list[str], header: tuple[str, ...]) -> list[float]:
    try:
        numbers = list(map(float, row))
    except ValueError:
        numbers = [math.nan]
    # Python takes 1_000 for a number, no other program does.
    if all(map(math.isfinite, numbers)) and "_" not in "".join(row):
        return numbers
    place = list(map(_is_finite, row)).index(False)
    column = f"column {place + 1}"
    if header:
        column += f" ({header[place]})"
    raise DataError(f"{path}: line {line}, {column}: expected a finite number, found {row[place]!r}")


def _is_finite(cell: str) -> bool:
    return _is_number(cell) and math.isfinite(float(cell))


def _require_width(path: Path, line: int, row: list[str], width: int) -> None:
    if len(row) != width:
        raise DataError(f"{path}: line {line} has {len(row)} cells, expected {width} as in line 1")
