"""Tables, and labels, covariates and log size factors out of their side columns: one value per row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silentgrad.lab.data.files import DataError, require
from silentgrad.side_info import usual_size
from silentgrad.sparse import SparseMatrix

NO_LABEL = "missing"
Series = Any  # of pandas, which has no types
Named = tuple[Tensor, tuple[str, ...]]  # numbers of each row; names of the categories or of the covariates


@dataclass(frozen=True)
class TableRows:
    """Rows of numbers from a file of any format, and the columns of it that were asked for by name."""

    path: Path
    values: Tensor | SparseMatrix  # `(rows, columns)`, dense in double precision, NaN where an entry is missing
    columns: tuple[str, ...] = ()
    side_columns: Mapping[str, Series] = field(default_factory=dict)
    row_names: tuple[str, ...] = ()


def side_column(name: str, values: object) -> Series:
    """Make a series of what pandas can take for one: real numbers in double precision, anything else as categories.

    Example:
        >>> side_column("batch", ["b", "a", "b"]).cat.categories.tolist()
        ['a', 'b']
        >>> side_column("age", [3, None, 4.5]).tolist()
        [3.0, nan, 4.5]
    """
    import pandas  # type: ignore[import-untyped]  # takes a moment, which others need not pay

    series = pandas.Series(values, name=name).reset_index(drop=True)  # rows go by their places
    if pandas.api.types.is_any_real_numeric_dtype(series.dtype):
        return pandas.Series(series.to_numpy(np.float64, na_value=np.nan), name=name)
    return series.astype("category")


def require_column(path: Path, name: str, columns: Sequence[str], where: str) -> None:
    """Refuse the name of a column that is not there, or more than once; `where` is what has the columns, in print."""
    if not columns:
        raise DataError(f"{path}: expected a column {name!r}, but {where} has no names of columns")
    count, shown = list(columns).count(name), ", ".join(map(repr, columns[:10]))
    if len(columns) > 10:
        shown += f" and {len(columns) - 10} more"
    require(count > 0, path, f"a column {name!r}", f"{shown} in {where}")
    require(count == 1, path, f"one column {name!r}", f"{count} of them in {where}")


def labels_of(column: Series) -> Named:
    """Make labels: numbers as they are, or codes of categories with their names, the last for rows without one."""
    if not hasattr(column, "cat"):
        return torch.from_numpy(np.array(column)), ()
    codes, names = torch.from_numpy(np.array(column.cat.codes, np.int64)), tuple(map(str, column.cat.categories))
    if (codes >= 0).all():
        return codes, names
    return codes.where(codes >= 0, len(names)), (*names, NO_LABEL)


def covariates_of(path: Path, columns: Sequence[Series], train: Tensor) -> Named:
    """Make covariates in single precision, `(rows, covariates)`, by what the training rows have.

    A column of numbers is standardized; one of categories becomes a column of zeros and ones for each category.
    """
    import pandas

    made = []
    for column in columns:
        _require_values(path, column)
        known, categorical = column.iloc[train.numpy()], hasattr(column, "cat")
        infinite = column.isin([-np.inf, np.inf]) & (not categorical)
        for row in infinite.to_numpy().nonzero()[0][:1]:
            where = f"row {row + 1}, column {column.name!r}"
            raise DataError(f"{path}: {where}: expected a finite number, found an infinite one")
        expected = f"several values in the covariate {column.name!r} in training rows"
        require(known.nunique() > 1, path, expected, "one and the same in all: leave it out")
        if categorical:
            seen = column.cat.set_categories(known.cat.remove_unused_categories().cat.categories)
            for row in seen.isna().to_numpy().nonzero()[0][:1]:
                raise DataError(
                    f"{path}: row {row + 1} has {str(column.iloc[row])!r} as its {column.name!r}, and is for "
                    "validation or test, but no training row has it: leave such rows out"
                )
            made.append(pandas.get_dummies(seen, prefix=column.name, prefix_sep="="))
        else:
            made.append((column - known.mean()) / known.std(ddof=0))
    table = pandas.concat(made, axis=1)
    return torch.from_numpy(np.array(table, np.float32, order="C")), tuple(table.columns)


def _require_values(path: Path, column: Series) -> None:
    for row in column.isna().to_numpy().nonzero()[0][:1]:
        raise DataError(f"{path}: row {row + 1} has no value in the column {column.name!r}, expected one in every row")


def offset_by_size(path: Path, sums: NDArray[np.float64], train: Tensor) -> Tensor:
    """Return the logarithm of the sum of each row, over the median of the training rows' sums, in single precision."""
    for row in (sums <= 0).nonzero()[0][:1]:
        raise DataError(
            f"{path}: row {row + 1} has no counts, so that its size factor would be 0: "
            "leave such rows out, or choose --data.offset none"
        )
    return torch.from_numpy(np.log(sums / usual_size(sums[train.numpy()]))).float()


def offset_by_column(path: Path, column: Series) -> Tensor:
    """Return the logarithms of a column of size factors, in single precision."""
    _require_values(path, column)
    expected = f"size factors above 0 in the column {column.name!r} (--data.offset)"
    require(not hasattr(column, "cat"), path, expected, "categories")
    values = np.array(column)
    for row in (~(np.isfinite(values) & (values > 0))).nonzero()[0][:1]:
        require(False, path, expected, f"{values[row]:g} in row {row + 1}")
    return torch.from_numpy(np.log(values)).float()
