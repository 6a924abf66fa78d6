"""Files of rows as observations: tables that pandas and numpy read, counts in SciPy's and anndata's files.

pandas fills up lines that are too short, and takes True for 1: a text in doubt is looked through once more, cell by
cell, and the first wrong one is named by its line and column.
"""

import csv
import importlib.util
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data import columns as side
from silentgrad.lab.data.batches import Splits, cut, permutation
from silentgrad.lab.data.columns import TableRows
from silentgrad.lab.data.files import DataError, in_print, reading, require, require_memory
from silentgrad.lab.data.h5ad import read_h5ad
from silentgrad.lab.data.observations import Counts, Observations, Reals
from silentgrad.lab.data.sparse import counts_of, is_matrix, read_matrix
from silentgrad.lab.kinds import BY_SIZE, NO_OFFSET, Kind, Selection
from silentgrad.sparse import SparseMatrix, SparseRows

COUNTED = (".h5ad", ".npz")  # files that hold counts, unless somebody says otherwise
MAY_LACK = (".csv", ".tsv", ".parquet", ".npy")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
NO_NUMBER = ["", "nan", "NaN", "NAN"]
HINT = "; --data.missing true takes it as an entry that was not observed"


def holds_images(path: Path) -> bool:
    """Return True if a file holds images: by another ending than a table's, or an array that is no table or matrix."""
    if path.suffix == ".npz":
        return not is_matrix(path)
    if path.suffix != ".npy":
        return path.suffix not in READERS
    with reading(path, "a numpy array"):
        return np.lib.format.open_memmap(path, mode="r").ndim != 2


def is_counted(path: Path, kind: Kind) -> bool:
    """Return True if the rows of a table or matrix are counts: by their kind, or by the ending of the file."""
    return kind == "counts" or (kind == "auto" and path.suffix in COUNTED)


def read(path: Path, kind: Kind, selection: Selection) -> Observations:
    """Read the rows of a file; auto takes tables as real numbers, and the files of `COUNTED` as counts."""
    if kind in ("levels", "binarized"):
        raise DataError(f"--data.kind {kind} is for images, but {path} is a table: choose reals or counts")
    counted = is_counted(path, kind)
    if not counted and selection.offset != NO_OFFSET:
        raise DataError(f"--data.offset {selection.offset} is for counts, but the rows of {path} are reals")
    if selection.layer is not None:
        require(path.suffix == ".h5ad", path, "an .h5ad file for --data.layer", f"a {path.suffix} file")
    for option in {"index", "drop"} & {*selection.given}:
        expected = f"a .csv, .tsv or .parquet file for --data.{option}"
        require(path.suffix != ".h5ad", path, expected, "a .h5ad file")
    if selection.missing:
        endings = ".csv, .tsv, .parquet or .npy"
        require(path.suffix in MAY_LACK, path, f"a {endings} file for --data.missing", f"a {path.suffix} file")
    table = READERS[path.suffix](path, selection)
    values, known = table.values, table.side_columns
    if isinstance(values, Tensor):
        _require_numbers(values, table, selection)
    elif not counted:
        raise DataError(f"--data.kind reals is for tables, but {path} is a sparse matrix: choose counts")
    places = cut(str(path), permutation(len(values)), "rows")
    found: dict[str, Any] = {"columns": table.columns, "numbers": places}
    if table.row_names:
        found["row_names"] = Splits(*(tuple(table.row_names[row] for row in part.tolist()) for part in places))
    if selection.label is not None:
        labels, found["label_names"] = side.labels_of(known[selection.label])
        found["labels"] = _split(labels, places)
    if selection.covariates:
        columns = [known[name] for name in selection.covariates]
        covariates, found["covariate_names"] = side.covariates_of(path, columns, places.train)
        found["covariates"] = _split(covariates, places)
    if selection.missing and isinstance(values, Tensor):  # no matrix may lack entries
        found["mask"] = _split(~values.isnan(), places)
    values = values.nan_to_num() if isinstance(values, Tensor) else values
    if not counted:
        return Reals(*_split(values, places), str(path), **found)
    counts = counts_of(path, values, table.columns)
    if selection.offset == BY_SIZE:
        sums = counts.sums() if isinstance(counts, SparseMatrix) else counts.sum(1).double().numpy()
        found["offset"] = _split(side.offset_by_size(path, sums, places.train), places)
    elif selection.offset_column is not None:
        found["offset"] = _split(side.offset_by_column(path, known[selection.offset_column]), places)
    return Counts(*_split(counts, places), str(path), **found)


def _split(values: Tensor | SparseMatrix, places: Splits[Tensor]) -> Splits[Any]:
    """Return the rows of each split; those of a sparse matrix stay where they are."""
    if isinstance(values, SparseMatrix):
        return Splits(*(SparseRows(values, part) for part in places))
    return Splits(*(values[part] for part in places))


def _require_numbers(values: Tensor, table: TableRows, selection: Selection) -> None:
    """Refuse infinite numbers, and NaN unless entries may be missing."""
    wrong = values.isinf() if selection.missing else ~values.isfinite()
    for row, column in wrong.nonzero()[:1].tolist():
        value = values[row, column].item()
        hint = HINT if math.isnan(value) and table.path.suffix in MAY_LACK else ""
        place = f"row {row + 1}, {in_print(table.columns, column)}"
        raise DataError(f"{table.path}: {place}: expected a finite number, found {value}{hint}")


def _read_text(path: Path, selection: Selection) -> TableRows:
    """Read a table of numbers in text, with or without a header, and side columns of any text."""
    import pandas  # type: ignore[import-untyped]  # takes a moment, which others need not pay
    from pandas.api.types import is_any_real_numeric_dtype  # type: ignore[import-untyped]

    with reading(path, "a table of numbers"):
        _, first = next(_lines(path), (1, []))
        require(bool(first), path, "a table of numbers", "an empty file or first line")
        names = () if any(map(_is_number, first)) else tuple(first)
        sides = _places(path, names, selection, "the first line")
        data = [place for place in range(len(first)) if place not in sides.values()]
        require(bool(data), path, "columns of data", "none that is not label, covariate, offset, index or dropped")
        require_cells = partial(_require_cells, path, names, data, selection.missing, len(first))
        try:
            frame = pandas.read_csv(
                path,
                sep=DELIMITERS[path.suffix],
                header=None,
                skiprows=int(bool(names)),
                keep_default_na=False,
                na_values={place: NO_NUMBER if place in data else [""] for place in range(len(first))},
                dtype={sides[name]: str for name in sides if name == selection.index},
                skipinitialspace=True,
                encoding="utf-8-sig",
                float_precision="round_trip",
                low_memory=False,
            )
        except ValueError:
            require_cells()
            require(False, path, "rows of numbers", "a header only")
        numeric = frame.shape[1] == len(first) and all(map(is_any_real_numeric_dtype, frame.dtypes[data]))
        values = frame[data].to_numpy(np.float64) if numeric else np.array(np.inf)
        wrong = np.isinf(values) if selection.missing else ~np.isfinite(values)
        if wrong.any() or frame.iloc[:, -1].isna().any():  # pandas has filled up lines that were too short
            require_cells()
        return _table(path, frame, names, sides, selection)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line that is not blank, or the first, with the number of the line."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, delimiter=DELIMITERS[path.suffix], strict=True)
        for row in lines:
            if row or lines.line_num == 1:
                yield lines.line_num, row


def _is_number(cell: str) -> bool:
    """Return True for a number, finite or not: Python takes 1_000 for one too, no other program does."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell and cell.isascii()


def _require_cells(path: Path, names: Sequence[str], data: Collection[int], missing: bool, width: int) -> None:
    """Refuse the first line of another length, and the first cell of data that is no finite number."""
    for line, row in _lines(path):
        if len(row) != width:
            raise DataError(f"{path}: line {line} has {len(row)} cells, expected {width} as in line 1")
        if line == 1 and names:
            continue
        for place in data:
            cell, number = row[place], _is_number(row[place])
            lacking = not cell.strip() or (number and math.isnan(float(cell)))
            fine = missing if lacking else number and math.isfinite(float(cell))
            if not fine:
                found = repr(cell) + (HINT if lacking else "" if number else _advice(names, place))
                where = f"line {line}, {in_print(names, place)}"
                raise DataError(f"{path}: {where}: expected a finite number, found {found}")


def _read_parquet(path: Path, selection: Selection) -> TableRows:
    """Read a table of numbers, and side columns of any kind; pyarrow need not be there for other files."""
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f"{path}: to read .parquet needs pyarrow: pip install pyarrow")
    import pandas
    from pyarrow.parquet import read_metadata  # type: ignore[import-untyped]

    with reading(path, "a table in a parquet file"):
        claimed = read_metadata(path)
        require_memory(8 * claimed.num_rows * claimed.num_columns, path)
        frame = pandas.read_parquet(path, engine="pyarrow")
        names = tuple(map(str, frame.columns))
        frame.columns = range(len(names))
        return _table(path, frame, names, _places(path, names, selection, "the table"), selection)


def _places(path: Path, names: Sequence[str], selection: Selection, where: str) -> dict[str, int]:
    for name in selection.side_columns:
        side.require_column(path, name, names, where)
    return {name: names.index(name) for name in selection.side_columns}


def _advice(names: Sequence[str], place: int) -> str:
    """Return how to read a table in spite of a column that holds no numbers."""
    if not names:
        return ""
    return f"; --data.index {names[place]} if it names the rows, --data.drop {names[place]} to leave the column out"


def _table(path: Path, frame: Any, names: Sequence[str], sides: dict[str, int], selection: Selection) -> TableRows:
    """Make a table of a frame whose columns are called by their places."""
    from pandas.api.types import is_any_real_numeric_dtype

    data = frame.drop(columns=list(sides.values()))
    require(min(data.shape) > 0, path, "rows and columns of numbers", f"a table of shape {data.shape}")
    for place, dtype in data.dtypes.items():
        found = f"{dtype}{_advice(names, place)}"
        require(is_any_real_numeric_dtype(dtype), path, f"numbers in {in_print(names, place)}", found)
    require_memory(8 * data.size, path)
    values = torch.from_numpy(data.to_numpy(np.float64, na_value=np.nan).copy())
    columns = tuple(names[place] for place in data.columns if names)
    known = {name: side.side_column(name, frame[place]) for name, place in sides.items()}
    row_names = () if selection.index is None else tuple(map(str, frame[sides[selection.index]]))
    return TableRows(path, values, columns, known, row_names)


def _read_npy(path: Path, selection: Selection) -> TableRows:
    _places(path, (), selection, "an array")
    expected = "a table of numbers, (rows, columns)"
    with reading(path, expected):
        array = np.lib.format.open_memmap(path, mode="r")
        numbers = array.dtype.kind in "fiu" and array.ndim == 2 and array.size > 0
        require(numbers, path, expected, f"{array.dtype} of shape {array.shape}")
        require_memory(8 * array.size, path)
        return TableRows(path, torch.from_numpy(array.astype(np.float64)))


def _read_npz(path: Path, selection: Selection) -> TableRows:
    _places(path, (), selection, "a sparse matrix")
    return TableRows(path, read_matrix(path))


READERS: dict[str, Callable[[Path, Selection], TableRows]] = {
    ".csv": _read_text,
    ".tsv": _read_text,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".h5ad": read_h5ad,
}
