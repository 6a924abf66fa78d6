"""Tables and matrices of counts as observations: their rows split, with all that stands beside them."""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from silentgrad.lab.data.beside import covariates_of, labels_of, offset_by_column, offset_by_size
from silentgrad.lab.data.counting import counts_of, sums_of
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.observations import Counts, Observations, Reals
from silentgrad.lab.data.order import cut, permutation
from silentgrad.lab.data.rows import Splits, Stored
from silentgrad.lab.data.sparse import SparseMatrix, SparseRows
from silentgrad.lab.data.table import Table
from silentgrad.lab.data.tables import read_table
from silentgrad.lab.kinds import Kind
from silentgrad.lab.selection import BY_SIZE, NO_OFFSET, Selection

COUNTED = (".h5ad", ".npz")  # files that hold counts, unless somebody says otherwise


def observe(name: str, kind: Kind, selection: Selection) -> Observations:
    """The rows of a file, split.

    Args:
        name: Path of the file.
        kind: What its rows are; auto takes tables as real numbers, and the files of `COUNTED` as counts.
        selection: What of the file is data, and what stands beside it.

    Raises:
        DataError: The file cannot be read, its rows are not of that kind, or an option is not meant for it.
    """
    if kind in ("levels", "binarized"):
        raise DataError(f"--data.kind {kind} is for images, but {name} is a table: choose reals or counts")
    path = Path(name)
    counted = kind == "counts" or (kind == "auto" and path.suffix in COUNTED)
    if not counted and selection.offset != NO_OFFSET:
        raise DataError(f"--data.offset {selection.offset} is for counts, but the rows of {name} are reals")
    table = read_table(path, selection)
    places = cut(name, permutation(len(table.values)), "rows")
    beside = _beside(table, selection, places)
    if counted:
        return _counts(name, table, selection, places, beside)
    return _reals(name, table, places, beside)


def _beside(table: Table, selection: Selection, places: Splits[Tensor]) -> dict[str, Any]:
    """What stands beside rows of any kind, as arguments of observations."""
    beside: dict[str, Any] = {}
    if selection.label is not None:
        labels = labels_of(table.beside[selection.label])
        beside |= {"labels": _split(labels.values, places), "label_names": labels.names}
    if selection.covariates:
        columns = [table.beside[name] for name in selection.covariates]
        covariates = covariates_of(table.path, columns, places.train)
        beside |= {"covariates": _split(covariates.values, places), "covariate_names": covariates.names}
    if selection.missing:
        assert isinstance(table.values, Tensor)  # no matrix may lack entries
        beside["mask"] = _split(~table.values.isnan(), places)
    if table.row_names:
        name_of = table.row_names.__getitem__
        beside["row_names"] = Splits(*(tuple(map(name_of, part.tolist())) for part in places))
    return beside


def _reals(name: str, table: Table, places: Splits[Tensor], beside: dict[str, Any]) -> Reals:
    if isinstance(table.values, SparseMatrix):
        raise DataError(f"--data.kind reals is for tables, but {name} is a sparse matrix: choose counts")
    return Reals(*_split(table.values.nan_to_num(), places), name, columns=table.columns, **beside)


def _counts(name: str, table: Table, selection: Selection, places: Splits[Tensor], beside: dict[str, Any]) -> Counts:
    values = table.values
    if isinstance(values, Tensor):
        values = values.nan_to_num()
    counts = counts_of(table.path, values, table.columns)
    if selection.offset == BY_SIZE:
        beside["offset"] = _split(offset_by_size(table.path, sums_of(counts), places.train), places)
    if selection.offset_column is not None:
        beside["offset"] = _split(offset_by_column(table.path, table.beside[selection.offset_column]), places)
    return Counts(*Splits(*map(partial(_rows, counts), places)), name, columns=table.columns, **beside)


def _rows(values: Tensor | SparseMatrix, numbers: Tensor) -> Stored:
    """Some rows of a table, by their numbers; those of a sparse matrix stay where they are."""
    if isinstance(values, SparseMatrix):
        return SparseRows(values, numbers)
    return values[numbers]


def _split(values: Tensor, places: Splits[Tensor]) -> Splits[Tensor]:
    """One value per row, split as the rows are."""
    return Splits(*(values[part] for part in places))
