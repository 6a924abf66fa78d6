"""Counts in `.h5ad` files, by AnnData's specification of what such a file holds.

X and the layers are sparse matrices or arrays of cells by genes. `obs` has a column per thing that is known of the
cells, `var` one per thing that is known of the genes; each column is an array of numbers, of text, of categories, or of
values with a mask of those that are missing. Attributes called `encoding-type` say which.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data.columns import MISSING, Column, of_codes, of_numbers, require_column
from silentgrad.lab.data.formats import DataError, reading, require, require_memory
from silentgrad.lab.data.mapping import mapped_dataset
from silentgrad.lab.data.matrices import checked
from silentgrad.lab.data.sparse import Array, SparseMatrix
from silentgrad.lab.data.table import Table
from silentgrad.lab.selection import Selection

MATRICES = ("csr_matrix", "array")


def read_h5ad(path: Path, selection: Selection) -> Table:
    """The counts in X or in a layer, and columns of `obs` beside them.

    Raises:
        DataError: The file is no such file, has no such layer or column, or h5py is not installed.
    """
    with _opened(path) as file:
        _require_encoding(path, file, ("anndata",))
        values = _values(path, _matrix(path, file, selection.layer))
        obs, var = _member(path, file, "obs"), _member(path, file, "var")
        row_names, columns = _index(path, obs), _index(path, var)
        rows, width = len(row_names), len(columns)
        found = len(values), _width(values)
        require(found == (rows, width), path, f"counts of {rows} rows and {width} columns, as in obs and var", found)
        beside = {}
        for name in selection.beside:
            beside[name] = _column(path, obs, name)
            require(len(beside[name].values) == rows, path, f"{rows} values in the column {name!r}", "another number")
    return Table(path, values, columns, beside, row_names)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import h5py  # type: ignore[import-untyped]  # of an extra
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: to read .h5ad needs an extra: pip install 'silentgrad[counts]'") from error
    with reading(path, "an .h5ad file"), h5py.File(path, "r") as file:
        yield file


def _encoding(element: Any) -> str:
    return str(element.attrs.get("encoding-type", "none"))


def _require_encoding(path: Path, element: Any, allowed: tuple[str, ...]) -> None:
    """Refuses an element that is not of a kind; files of anndata before 0.8 do not say what theirs are."""
    expected = f"{' or '.join(allowed)} as the encoding-type of {element.name}"
    require(_encoding(element) in allowed, path, expected, _encoding(element))


def _member(path: Path, group: Any, name: str) -> Any:
    """An element of a group."""
    require(name in group, path, f"{name!r} in {group.name}", f"{sorted(group)}")
    return group[name]


def _matrix(path: Path, file: Any, layer: str | None) -> Any:
    """What holds the counts."""
    if layer is None:
        return _member(path, file, "X")
    layers = sorted(file.get("layers", ()))
    require(layer in layers, path, f"a layer {layer!r} (--data.layer)", f"layers {layers}")
    return file["layers"][layer]


def _values(path: Path, element: Any) -> Tensor | SparseMatrix:
    if _encoding(element) == "csc_matrix":
        raise DataError(
            f"{path}: expected {element.name} in rows (csr_matrix), found it in columns (csc_matrix): "
            "save it after X = X.tocsr()"
        )
    _require_encoding(path, element, MATRICES)
    if _encoding(element) == "array":
        return _dense(path, element)
    shape = np.asarray(element.attrs["shape"])
    starts, indices, entries = (mapped_dataset(path, element[name]) for name in ("indptr", "indices", "data"))
    return checked(path, shape, starts, indices, entries)


def _dense(path: Path, dataset: Any) -> Tensor:
    numbers = dataset.dtype.kind in "fiu" and dataset.ndim == 2 and dataset.size > 0
    require(numbers, path, f"a table of numbers in {dataset.name}", f"{dataset.dtype} of shape {dataset.shape}")
    require_memory(8 * dataset.size, path)
    return torch.from_numpy(dataset[:].astype(np.float64))


def _width(values: Tensor | SparseMatrix) -> int:
    if isinstance(values, SparseMatrix):
        return values.width
    return values.shape[1]


def _index(path: Path, frame: Any) -> tuple[str, ...]:
    """The names of the rows of a frame."""
    _require_encoding(path, frame, ("dataframe",))
    return tuple(map(str, _array(path, _member(path, frame, str(frame.attrs["_index"])))))


def _array(path: Path, dataset: Any) -> Array:
    """An array of numbers or text, one dimension."""
    _require_encoding(path, dataset, ("array", "string-array"))
    require(dataset.ndim == 1, path, f"one dimension of {dataset.name}", f"shape {dataset.shape}")
    require_memory(8 * dataset.size, path)
    if _encoding(dataset) == "array":
        array: Array = dataset[:]
        return array
    text: Array = dataset.asstr()[:]
    return text


def _column(path: Path, frame: Any, name: str) -> Column:
    """A column of a frame."""
    columns = list(map(str, frame.attrs["column-order"]))
    require_column(path, name, columns, frame.name)
    element = _member(path, frame, name)
    kind = _encoding(element)
    if kind == "categorical":
        return _categorical(path, element, name)
    if kind.startswith("nullable-"):
        return _as_column(name, _array(path, element["values"]), _array(path, element["mask"]))
    array = _array(path, element)
    return _as_column(name, array, np.zeros(len(array), bool))


def _categorical(path: Path, element: Any, name: str) -> Column:
    codes, categories = _array(path, element["codes"]), _array(path, element["categories"])
    known = codes.dtype.kind in "iu" and codes.min(initial=0) >= MISSING and codes.max(initial=-1) < len(categories)
    require(bool(known), path, f"codes of {len(categories)} categories in {element.name}", "others")
    return of_codes(name, codes, categories.tolist())


def _as_column(name: str, values: Array, missing: Array) -> Column:
    """Numbers as they are; text, and true or false, as categories in the order of the alphabet."""
    if values.dtype.kind in "fiu":
        return of_numbers(name, np.where(missing, np.nan, values))
    categories, codes = np.unique(values[~missing].astype(str), return_inverse=True)
    all_codes = np.full(len(values), MISSING)
    all_codes[~missing] = codes
    return of_codes(name, all_codes, categories.tolist())
