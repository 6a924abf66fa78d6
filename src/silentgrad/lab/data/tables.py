"""Files of rows by their endings: which reader is for which, and which options."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data.columns import in_print, require_column
from silentgrad.lab.data.formats import DataError, npy_header, reading, require, require_memory
from silentgrad.lab.data.h5ad import read_h5ad
from silentgrad.lab.data.matrices import is_matrix, read_matrix
from silentgrad.lab.data.parquet import read_parquet
from silentgrad.lab.data.table import Table
from silentgrad.lab.data.text import HINT, read_text
from silentgrad.lab.selection import EVERYTHING, Selection


def read_table(path: Path, selection: Selection = EVERYTHING) -> Table:
    """The rows of a file, and the columns that were asked for beside them.

    Raises:
        DataError: The file is no table of finite numbers and no sparse matrix, has no such column or layer, or is one
            for which an option is not meant.
    """
    if selection.layer is not None:
        require(path.suffix == ".h5ad", path, "an .h5ad file for --data.layer", f"a {path.suffix} file")
    if selection.missing:
        endings = ".csv, .tsv, .parquet or .npy"
        require(path.suffix in MAY_LACK, path, f"a {endings} file for --data.missing", f"a {path.suffix} file")
    table = READERS[path.suffix](path, selection)
    if isinstance(table.values, Tensor):
        _require_numbers(table.values, table, selection)
    return table


def holds_images(path: Path) -> bool:
    """Whether a file holds images, not a table: anything of another ending, or an array that is no table or matrix."""
    if path.suffix == ".npz":
        return not is_matrix(path)
    if path.suffix != ".npy":
        return path.suffix not in READERS
    with reading(path, "a numpy array"), path.open("rb") as file:
        header = npy_header(file)
    return len(header.shape) != 2


def _require_numbers(values: Tensor, table: Table, selection: Selection) -> None:
    """Refuses infinite numbers, and NaN unless entries may be missing."""
    wrong = ~values.isfinite()
    if selection.missing:
        wrong = values.isinf()
    for row, column in wrong.nonzero()[:1].tolist():
        value, hint = values[row, column], ""
        if value.isnan() and table.path.suffix in MAY_LACK:
            hint = HINT
        place = f"row {row + 1}, {in_print(table.columns, column)}"
        raise DataError(f"{table.path}: {place}: expected a finite number, found {value.item()}{hint}")


def _read_npy(path: Path, selection: Selection) -> Table:
    for name in selection.beside:
        require_column(path, name, (), "an array")
    expected = "a table of numbers, (rows, columns)"
    with reading(path, expected):
        with path.open("rb") as file:
            header = npy_header(file)
        require(header.dtype.kind in "fiu" and len(header.shape) == 2, path, expected, header.kind)
        require(min(header.shape) > 0, path, expected, header.kind)
        header.require_size(path, path.stat().st_size)
        require_memory(8 * header.shape[0] * header.shape[1], path)
        values = torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float64))
    return Table(path, values)


READERS: dict[str, Callable[[Path, Selection], Table]] = {
    ".csv": read_text,
    ".tsv": read_text,
    ".npy": _read_npy,
    ".npz": read_matrix,
    ".parquet": read_parquet,
    ".h5ad": read_h5ad,
}
MAY_LACK = (".csv", ".tsv", ".npy", ".parquet")
