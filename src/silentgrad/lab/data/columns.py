"""Columns that stand beside the data: numbers, or categories with their names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silentgrad.lab.data.formats import DataError

MISSING = -1  # in place of a code


@dataclass(frozen=True)
class Column:
    """One value per row.

    Args:
        name: Name of the column.
        values: Numbers, NaN where there is none; or codes of categories, `MISSING` where there is none.
        categories: What the codes stand for; None for a column of numbers.
    """

    name: str
    values: NDArray[Any]
    categories: tuple[str, ...] | None = None

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Which rows have no value."""
        if self.categories is None:
            return np.isnan(self.values)
        return self.values == MISSING

    def require_values(self, path: Path) -> None:
        """Refuses a column that has no value in some row."""
        for row in self.absent.nonzero()[0][:1]:
            raise DataError(
                f"{path}: row {row + 1} has no value in the column {self.name!r}, expected one in every row"
            )


def of_numbers(name: str, numbers: NDArray[Any]) -> Column:
    """A column of numbers."""
    return Column(name, numbers.astype(np.float64))


def of_codes(name: str, codes: NDArray[Any], categories: Sequence[object]) -> Column:
    """A column of codes, with what they stand for in their order."""
    return Column(name, codes.astype(np.int64), tuple(map(str, categories)))


def of_cells(name: str, cells: Sequence[str]) -> Column:
    """A column of text: numbers if every cell that is not empty is one, else categories in the order of the alphabet.

    Example:
        >>> of_cells("batch", ["b", "a", "b"])
        Column(name='batch', values=array([1, 0, 1]), categories=('a', 'b'))
        >>> of_cells("age", ["3", "", "4.5"])
        Column(name='age', values=array([3. , nan, 4.5]), categories=None)
    """
    filled = set(cells) - {""}
    if filled and all(map(is_number, filled)):
        return of_numbers(name, np.array([float(cell or "nan") for cell in cells]))
    categories = sorted(filled)
    code_of = {category: code for code, category in enumerate(categories)}
    codes = [code_of.get(cell, MISSING) for cell in cells]
    return of_codes(name, np.array(codes, np.int64), categories)


def is_number(cell: str) -> bool:
    """Whether a cell is a number, finite or not: Python takes 1_000 for one too, no other program does."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def is_finite(cell: str) -> bool:
    """Whether a cell is a finite number."""
    return is_number(cell) and math.isfinite(float(cell))


def in_print(columns: Sequence[str], place: int) -> str:
    """How a column is called in print, by its place from 0 on and the columns' names, if they have any.

    Example:
        >>> in_print((), 2), in_print(("a", "b"), 1)
        ('column 3', 'column 2 (b)')
    """
    if not columns:
        return f"column {place + 1}"
    return f"column {place + 1} ({columns[place]})"


def require_column(path: Path, name: str, columns: Sequence[str], where: str) -> None:
    """Refuses the name of a column that is not there, or there more than once.

    Args:
        path: The file.
        name: Name of the column that is asked for.
        columns: Names of all columns; none if they have no names.
        where: What has these columns, in print.
    """
    count = list(columns).count(name)
    if count == 1:
        return
    if not columns:
        raise DataError(f"{path}: expected a column {name!r}, but {where} has no names of columns")
    if count > 1:
        raise DataError(f"{path}: expected one column {name!r}, found {count} of them in {where}")
    raise DataError(f"{path}: expected a column {name!r}, found {_listed(columns)} in {where}")


def _listed(names: Sequence[str]) -> str:
    """The first few names, and how many there are besides."""
    shown = ", ".join(map(repr, names[:10]))
    if len(names) > 10:
        shown += f" and {len(names) - 10} more"
    return shown
