"""Counts: what is one, the smallest type that holds them, and the sums of rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silentgrad.lab.data.columns import in_print
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.matrices import pieces
from silentgrad.lab.data.sparse import Array, SparseMatrix

TYPES = (np.uint8, np.int16, np.int32, np.int64)  # those that torch can calculate with
TOO_LARGE = 2**62


def counts_of(path: Path, values: Tensor | SparseMatrix, columns: Sequence[str]) -> Tensor | SparseMatrix:
    """Numbers as counts, in the smallest type that holds them; a sparse matrix is left where it is.

    Raises:
        DataError: An entry is no count; the message says where it stands.
    """
    if isinstance(values, SparseMatrix):
        return _sparse(path, values, columns)
    array = values.numpy()
    for row, column in np.argwhere(_wrong(array))[:1]:
        raise _no_count(path, int(row), int(column), columns, array[row, column])
    return torch.from_numpy(array.astype(smallest(array.max())))


def _sparse(path: Path, matrix: SparseMatrix, columns: Sequence[str]) -> SparseMatrix:
    largest = 0
    for first, last in pieces(matrix.starts):
        start, stop = matrix.starts[first], matrix.starts[last]
        entries = matrix.entries[start:stop]
        for place in start + _wrong(entries).nonzero()[0][:1]:
            row = int(np.searchsorted(matrix.starts, place, "right")) - 1
            raise _no_count(path, row, int(matrix.indices[place]), columns, matrix.entries[place])
        largest = max(largest, int(entries.max(initial=0)))
    return SparseMatrix(matrix.starts, matrix.indices, matrix.entries, matrix.width, smallest(largest))


def _wrong(values: Array) -> NDArray[np.bool_]:
    """Which numbers are no counts."""
    fine = (values >= 0) & (values < TOO_LARGE)  # NaN is neither
    if values.dtype.kind == "f":
        fine &= values == np.floor(values)
    return ~fine


def _no_count(path: Path, row: int, column: int, columns: Sequence[str], value: Any) -> DataError:
    hint = ""
    if path.suffix == ".h5ad":
        hint = "; --data.layer takes a layer instead of X"
    return DataError(f"{path}: row {row + 1}, {in_print(columns, column)}: expected a count, found {value:g}{hint}")


def smallest(largest: float) -> np.dtype[Any]:
    """The smallest type that holds the integers from 0 up to a number.

    Example:
        >>> smallest(255), smallest(256), smallest(2**31)
        (dtype('uint8'), dtype('int16'), dtype('int64'))
    """
    holding = (np.dtype(kind) for kind in TYPES if np.iinfo(kind).max >= largest)
    return next(holding)


def sums_of(values: Tensor | SparseMatrix) -> NDArray[np.float64]:
    """The sum of each row."""
    if isinstance(values, Tensor):
        return values.sum(1).double().numpy()
    sums = np.zeros(len(values))
    for first, last in pieces(values.starts):
        starts = values.starts[first : last + 1]
        up_to = np.cumsum(values.entries[starts[0] : starts[-1]], dtype=np.float64)
        up_to = np.concatenate([np.zeros(1), up_to])
        sums[first:last] = np.diff(up_to[starts - starts[0]])
    return sums
