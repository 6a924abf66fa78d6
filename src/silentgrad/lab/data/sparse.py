"""Counts in memory and in SciPy's sparse matrices, which stay on disk and are looked through some entries at a time."""

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silentgrad.lab.data.files import Array, DataError, in_print, mapped_member, reading, require, require_memory
from silentgrad.sparse import Integers, SparseMatrix

EXPECTED = "a CSR matrix, as scipy.sparse.save_npz writes it"
MARKS = {"format.npy", "shape.npy"}  # what SciPy writes whatever the form of the matrix, and nobody else
TYPES = (np.uint8, np.int16, np.int32, np.int64)  # of counts: those that torch can calculate with
TOO_LARGE = 2**62  # for a count
MOST_SMALL = 1000  # bytes of a word or two numbers, with the header of the array


def is_matrix(path: Path) -> bool:
    """Return True if an npz file is one of SciPy's, of a sparse matrix of whatever form."""
    with reading(path, "an npz file"), zipfile.ZipFile(path) as archive:
        return set(archive.namelist()) >= MARKS


def read_matrix(path: Path) -> SparseMatrix:
    """Map the CSR matrix in one of SciPy's npz files, which SciPy itself would read whole."""
    with reading(path, EXPECTED), zipfile.ZipFile(path) as archive:
        form = _small(path, archive, "format").item()
        if isinstance(form, bytes):
            form = form.decode("ascii", "replace")
        require(form == "csr", path, EXPECTED, f"one of form {form}: save matrix.tocsr() instead")
        shape = _small(path, archive, "shape")
        return checked(path, shape, *(mapped_member(path, archive, name) for name in ("indptr", "indices", "data")))


def _small(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    size = archive.getinfo(f"{name}.npy").file_size
    require(size <= MOST_SMALL, path, f"a word or two numbers in `{name}`", f"{size:,} bytes")
    with archive.open(f"{name}.npy") as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def checked(path: Path, shape: Array, starts: Array, indices: Array, entries: Array) -> SparseMatrix:
    """Make a matrix of three arrays, all of which are looked through, some entries at a time."""
    positive = shape.shape == (2,) and shape.dtype.kind in "iu" and shape.min() > 0
    require(bool(positive), path, "a matrix with rows and columns", f"one of shape {shape.tolist()}")
    rows, width = map(int, shape)
    for part in (starts, indices, entries):
        require(part.ndim == 1, path, "numbers of one dimension in the parts of a matrix", f"shape {part.shape}")
    require(len(starts) == rows + 1, path, f"{rows + 1} starts of rows", len(starts))
    require(starts.dtype.kind in "iu" and indices.dtype.kind in "iu", path, "places that are integers", starts.dtype)
    require_memory(8 * len(starts), path)
    starts = starts.astype(np.int64)
    ordered = starts[0] == 0 and bool((np.diff(starts) >= 0).all())
    require(ordered, path, "starts of rows that rise from 0 on", "others")
    sizes = {int(starts[-1]), len(indices), len(entries)}
    require(len(sizes) == 1, path, f"{starts[-1]} entries with a column each", f"{len(entries)} and {len(indices)}")
    matrix = SparseMatrix(starts, indices, entries, width, entries.dtype)
    for first, last in matrix.pieces():
        _check_indices(path, starts[first : last + 1], indices, width)
    return matrix


def _check_indices(path: Path, starts: Integers, indices: Array, width: int) -> None:
    """Refuse columns that are not there, and an entry that is there twice, within some rows."""
    from scipy.sparse import csr_array  # type: ignore[import-untyped]  # takes a moment, which others need not pay

    columns = indices[starts[0] : starts[-1]]
    if len(columns) == 0:
        return
    inside = columns.min() >= 0 and columns.max() < width
    require(bool(inside), path, f"columns from 0 to {width - 1}", f"{columns.min()} to {columns.max()}")
    piece = csr_array((np.zeros(len(columns)), columns.astype(np.int64), starts - starts[0]), (len(starts) - 1, width))
    piece.sum_duplicates()
    repeated = len(columns) - piece.nnz
    require(repeated == 0, path, "each entry once", f"{repeated} twice: save it after matrix.sum_duplicates()")


def counts_of(path: Path, values: Tensor | SparseMatrix, columns: Sequence[str]) -> Tensor | SparseMatrix:
    """Return numbers as counts, in the smallest type that holds them; a sparse matrix is left where it is."""
    if isinstance(values, SparseMatrix):
        return _sparse(path, values, columns)
    array = values.numpy()
    for row, column in np.argwhere(_wrong(array))[:1]:
        raise _no_count(path, int(row), int(column), columns, array[row, column])
    return torch.from_numpy(array.astype(smallest(array.max())))


def _sparse(path: Path, matrix: SparseMatrix, columns: Sequence[str]) -> SparseMatrix:
    largest = 0
    for first, last in matrix.pieces():
        start, stop = matrix.starts[first], matrix.starts[last]
        entries = matrix.entries[start:stop]
        for place in start + _wrong(entries).nonzero()[0][:1]:
            row = int(np.searchsorted(matrix.starts, place, "right")) - 1
            raise _no_count(path, row, int(matrix.indices[place]), columns, matrix.entries[place])
        largest = max(largest, int(entries.max(initial=0)))
    return replace(matrix, dtype=smallest(largest))


def _wrong(values: Array) -> NDArray[np.bool_]:
    fine = (values >= 0) & (values < TOO_LARGE)  # NaN is neither
    if values.dtype.kind == "f":
        fine &= values == np.floor(values)
    return ~fine


def _no_count(path: Path, row: int, column: int, columns: Sequence[str], value: Any) -> DataError:
    hint = "; --data.layer takes a layer instead of X" if path.suffix == ".h5ad" else ""
    return DataError(f"{path}: row {row + 1}, {in_print(columns, column)}: expected a count, found {value:g}{hint}")


def smallest(largest: float) -> np.dtype[Any]:
    """Return the smallest type that holds the integers from 0 up to a number.

    Example:
        >>> smallest(255), smallest(256), smallest(2**31)
        (dtype('uint8'), dtype('int16'), dtype('int64'))
    """
    return next(np.dtype(kind) for kind in TYPES if np.iinfo(kind).max >= largest)
