"""Sparse matrices: SciPy's `.npz` files, and what makes three arrays a matrix in CSR form."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from silentgrad.lab.data.columns import require_column
from silentgrad.lab.data.formats import npy_header, reading, require, require_memory
from silentgrad.lab.data.mapping import PIECE, mapped_member
from silentgrad.lab.data.sparse import Array, Integers, SparseMatrix
from silentgrad.lab.data.table import Table
from silentgrad.lab.selection import Selection

EXPECTED = "a CSR matrix, as scipy.sparse.save_npz writes it"
MARKS = {"format.npy", "shape.npy"}  # what SciPy writes whatever the form of the matrix, and nobody else


def is_matrix(path: Path) -> bool:
    """Whether an npz file is one of SciPy's, of a sparse matrix of whatever form."""
    with reading(path, "an npz file"), zipfile.ZipFile(path) as archive:
        return set(archive.namelist()) >= MARKS


def read_matrix(path: Path, selection: Selection) -> Table:
    """The matrix in one of SciPy's npz files.

    Raises:
        DataError: It is no CSR matrix, or damaged.
    """
    for name in selection.beside:
        require_column(path, name, (), "a sparse matrix")
    with reading(path, EXPECTED), zipfile.ZipFile(path) as archive:
        form = _small(path, archive, "format").item()
        if isinstance(form, bytes):
            form = form.decode("ascii", "replace")
        require(form == "csr", path, EXPECTED, f"one of form {form}: save matrix.tocsr() instead")
        shape = _small(path, archive, "shape")
        starts, indices, entries = (mapped_member(path, archive, name) for name in ("indptr", "indices", "data"))
        return Table(path, checked(path, shape, starts, indices, entries))


def _small(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    """A member of a few bytes."""
    with archive.open(f"{name}.npy") as file:
        header = npy_header(file)
        small = header.dtype.kind in "iuSU" and header.shape in ((), (2,)) and header.dtype.itemsize <= 64
        require(small, path, f"a word or two numbers in `{name}`", header.kind)
        file.seek(0)
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def checked(path: Path, shape: Array, starts: Array, indices: Array, entries: Array) -> SparseMatrix:
    """The matrix of three arrays, all of which are looked through, some entries at a time.

    Raises:
        DataError: They are no matrix of that shape, or have an entry twice.
    """
    positive = shape.shape == (2,) and shape.dtype.kind in "iu" and shape.min() > 0
    require(bool(positive), path, "a matrix with rows and columns", f"one of shape {shape.tolist()}")
    rows, width = map(int, shape)
    require(len(starts) == rows + 1, path, f"{rows + 1} starts of rows", len(starts))
    require(starts.dtype.kind in "iu" and indices.dtype.kind in "iu", path, "places that are integers", starts.dtype)
    require_memory(8 * len(starts), path)
    starts = starts.astype(np.int64)
    ordered = starts[0] == 0 and bool((np.diff(starts) >= 0).all())
    require(ordered, path, "starts of rows that rise from 0 on", "others")
    sizes = {int(starts[-1]), len(indices), len(entries)}
    require(len(sizes) == 1, path, f"{starts[-1]} entries with a column each", f"{len(entries)} and {len(indices)}")
    for first, last in pieces(starts):
        _check_indices(path, starts[first : last + 1], indices, width)
    return SparseMatrix(starts, indices, entries, width, entries.dtype)


def pieces(starts: Integers) -> Iterator[tuple[int, int]]:
    """Rows that follow each other and have so many entries together as may be in memory, by their first and last."""
    first, rows = 0, len(starts) - 1
    while first < rows:
        fitting = int(np.searchsorted(starts, starts[first] + PIECE, "right")) - 1
        last = max(first + 1, fitting)
        yield first, last
        first = last


def _check_indices(path: Path, starts: Integers, indices: Array, width: int) -> None:
    """Refuses columns that are not there, and an entry that is there twice, within some rows."""
    columns = indices[starts[0] : starts[-1]]
    if len(columns) == 0:
        return
    inside = columns.min() >= 0 and columns.max() < width
    require(bool(inside), path, f"columns from 0 to {width - 1}", f"{columns.min()} to {columns.max()}")
    rising = columns[1:] > columns[:-1]
    ends = starts[1:-1] - starts[0]  # where one row's columns end, the next one's may begin anew
    rising[ends[(ends > 0) & (ends < len(columns))] - 1] = True
    if rising.all():
        return
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    distinct = len(np.unique(rows * width + columns.astype(np.int64)))
    repeated = len(columns) - distinct
    require(repeated == 0, path, "each entry once", f"{repeated} twice: save it after matrix.sum_duplicates()")
