"""Tables in text: `.csv` and `.tsv` files, with or without a header."""

import csv
import math
from array import array
from collections.abc import Iterable
from pathlib import Path

import torch

from silentgrad.lab.data.columns import in_print, is_finite, is_number, of_cells, require_column
from silentgrad.lab.data.formats import DataError, reading, require
from silentgrad.lab.data.table import Table
from silentgrad.lab.selection import Selection

DELIMITERS = {".csv": ",", ".tsv": "\t"}
HINT = "; --data.missing true takes it as an entry that was not observed"


def read_text(path: Path, selection: Selection) -> Table:
    """A table of finite numbers, and columns of any text beside them.

    Raises:
        DataError: The file is no such table; the message names the line and column of a cell that is no finite number.
    """
    with reading(path, "a table of numbers"), path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, delimiter=DELIMITERS[path.suffix], strict=True)
        first = next(lines, [])
        require(bool(first), path, "a table of numbers", "an empty file or first line")
        header: tuple[str, ...] = ()
        if _names(first):
            header = tuple(first)
        cells = _Cells(path, header, len(first), selection)
        if not header:
            cells.add(1, first)
        for row in lines:
            if row:  # a blank line has no cells
                cells.add(lines.line_num, row)
    return cells.table()


def _names(first: Iterable[str]) -> bool:
    """Whether the first line is a header: none of its cells is a number."""
    return not any(map(is_number, first))


class _Cells:
    """The cells of a table, line by line: numbers of the data, and text of the columns beside them."""

    def __init__(self, path: Path, header: tuple[str, ...], width: int, selection: Selection) -> None:
        self.path, self.header, self.width, self.missing = path, header, width, selection.missing
        self.beside: dict[str, list[str]] = {}
        self.places: dict[str, int] = {}
        for name in selection.beside:
            require_column(path, name, header, "the first line")
            self.beside[name] = []
            self.places[name] = header.index(name)
        taken = self.places.values()
        self.data = [place for place in range(width) if place not in taken]
        require(bool(self.data), path, "columns of data", "none that is not label, covariate or offset")
        self.numbers = array("d")

    def add(self, line: int, row: list[str]) -> None:
        """One more line."""
        if len(row) != self.width:
            raise DataError(f"{self.path}: line {line} has {len(row)} cells, expected {self.width} as in line 1")
        for name, place in self.places.items():
            self.beside[name].append(row[place])
        cells = row
        if self.places:
            cells = [row[place] for place in self.data]
        self.numbers.extend(self._numbers(line, cells))

    def _numbers(self, line: int, cells: list[str]) -> list[float]:
        if self.missing:
            cells = [cell.strip() or "nan" for cell in cells]
        try:
            numbers = list(map(float, cells))
        except ValueError:
            numbers = [math.inf]
        # Python takes 1_000 for a number, no other program does.
        if self._allowed(numbers) and "_" not in "".join(cells):
            return numbers
        raise self._wrong(line, cells)

    def _allowed(self, numbers: list[float]) -> bool:
        if self.missing:
            return not any(map(math.isinf, numbers))
        return all(map(math.isfinite, numbers))

    def _wrong(self, line: int, cells: list[str]) -> DataError:
        """The first cell of a line that is no number, in words."""
        fine = [is_finite(cell) or (self.missing and _is_missing(cell)) for cell in cells]
        place = fine.index(False)
        hint = ""
        if _is_missing(cells[place]):
            hint = HINT
        column = in_print(self.header, self.data[place])
        return DataError(f"{self.path}: line {line}, {column}: expected a finite number, found {cells[place]!r}{hint}")

    def table(self) -> Table:
        """All lines together."""
        require(bool(self.numbers), self.path, "rows of numbers", "a header only")
        values = torch.tensor(self.numbers, dtype=torch.float64).reshape(-1, len(self.data))
        columns = tuple(self.header[place] for place in self.data if self.header)
        beside = {name: of_cells(name, cells) for name, cells in self.beside.items()}
        return Table(self.path, values, columns, beside)


def _is_missing(cell: str) -> bool:
    """Whether a cell is empty, or NaN."""
    return not cell.strip() or (is_number(cell) and math.isnan(float(cell)))
