"""What a file of rows holds, whatever its format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from silentgrad.lab.data.columns import Column
from silentgrad.lab.data.sparse import SparseMatrix


@dataclass(frozen=True)
class Table:
    """Rows of numbers, and what stands beside them.

    Args:
        path: The file.
        values: Numbers `(rows, columns)` in double precision, NaN where an entry is missing; or a sparse matrix.
        columns: Names of the columns; none if the file has no names.
        beside: The columns that were asked for by name and are not data.
        row_names: Names of the rows; none if the file has no names.
    """

    path: Path
    values: Tensor | SparseMatrix
    columns: tuple[str, ...] = ()
    beside: Mapping[str, Column] = field(default_factory=dict)
    row_names: tuple[str, ...] = ()
