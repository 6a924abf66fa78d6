"""What stands beside x, made of columns: labels, covariates and log size factors, one row each."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silentgrad.lab.data.columns import MISSING, Column
from silentgrad.lab.data.formats import DataError, require

NO_LABEL = "missing"


class Named(NamedTuple):
    """Numbers of each row, and names: of the categories, for labels; of the columns, for covariates."""

    values: Tensor
    names: tuple[str, ...]


def labels_of(column: Column) -> Named:
    """Labels: numbers in double precision as they are, or codes of categories in int64, with the categories' names.

    Rows without a category have one of their own, which is the last and called `missing`.
    """
    values = torch.from_numpy(column.values)
    if column.categories is None:
        return Named(values, ())
    if not column.absent.any():
        return Named(values, column.categories)
    last = len(column.categories)
    return Named(values.where(values != MISSING, last), (*column.categories, NO_LABEL))


def covariates_of(path: Path, columns: Sequence[Column], train: Tensor) -> Named:
    """Covariates in single precision, `(rows, covariates)`.

    A column of numbers is standardized by the mean and standard deviation of its training rows. A column of categories
    becomes a column of zeros and ones for each category that training rows have.

    Args:
        path: The file.
        columns: The columns.
        train: Numbers of the training rows.

    Raises:
        DataError: A row has no value, a column has the same value in all training rows, or rows of validation or test
            have a category that no training row has.
    """
    parts, names = [], []
    for column in columns:
        column.require_values(path)
        if column.categories is None:
            parts.append(_standardized(path, column, train.numpy()))
            names.append(column.name)
        else:
            seen = _seen(path, column, train.numpy())
            parts.append(column.values[:, None] == seen)
            names += [f"{column.name}={column.categories[code]}" for code in seen]
    return Named(torch.from_numpy(np.hstack(parts).astype(np.float32)), tuple(names))


def _standardized(path: Path, column: Column, train: NDArray[np.int64]) -> NDArray[np.float64]:
    for row in np.isinf(column.values).nonzero()[0][:1]:
        raise DataError(
            f"{path}: row {row + 1}, column {column.name!r}: expected a finite number, found an infinite one"
        )
    known = column.values[train]
    _require_several(path, column, known)
    standardized: NDArray[np.float64] = (column.values - known.mean()) / known.std()
    return standardized[:, None]


def _seen(path: Path, column: Column, train: NDArray[np.int64]) -> NDArray[np.int64]:
    """The codes that training rows have, in their order."""
    _require_several(path, column, column.values[train])
    seen = np.unique(column.values[train])
    assert column.categories is not None
    for row in (~np.isin(column.values, seen)).nonzero()[0][:1]:
        category = column.categories[column.values[row]]
        raise DataError(
            f"{path}: row {row + 1} has {category!r} as its {column.name!r}, and is for validation or test, "
            "but no training row has it, so that nothing can be learned of it: leave such rows out"
        )
    return seen


def _require_several(path: Path, column: Column, known: NDArray[np.float64]) -> None:
    expected = f"several values in the covariate {column.name!r} in training rows"
    require(bool((known != known[0]).any()), path, expected, "one and the same in all: leave it out")


def offset_by_size(path: Path, sums: NDArray[np.float64], train: Tensor) -> Tensor:
    """The logarithm of the sum of each row, over the median of the training rows' sums, in single precision.

    Raises:
        DataError: A row has no counts.
    """
    for row in (sums <= 0).nonzero()[0][:1]:
        raise DataError(
            f"{path}: row {row + 1} has no counts, so that its size factor would be 0: "
            "leave such rows out, or choose --data.offset none"
        )
    return torch.from_numpy(np.log(sums / np.median(sums[train.numpy()]))).float()


def offset_by_column(path: Path, column: Column) -> Tensor:
    """The logarithms of a column of size factors, in single precision.

    Raises:
        DataError: A size factor is missing, or no positive finite number.
    """
    column.require_values(path)
    expected = f"size factors above 0 in the column {column.name!r} (--data.offset)"
    require(column.categories is None, path, expected, "categories")
    for row in (~(np.isfinite(column.values) & (column.values > 0))).nonzero()[0][:1]:
        require(False, path, expected, f"{column.values[row]:g} in row {row + 1}")
    return torch.from_numpy(np.log(column.values)).float()
