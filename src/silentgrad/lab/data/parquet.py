"""Tables in `.parquet` files, which pandas reads."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silentgrad.lab.data.columns import Column, of_codes, of_numbers, require_column
from silentgrad.lab.data.formats import DataError, reading, require, require_memory
from silentgrad.lab.data.table import Table
from silentgrad.lab.selection import Selection


def read_parquet(path: Path, selection: Selection) -> Table:
    """A table of numbers, and columns of any kind beside them.

    Raises:
        DataError: The file is no such table, or pandas or pyarrow is not installed.
    """
    for package in ("pandas", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise DataError(f"{path}: to read .parquet needs {package}: pip install pandas pyarrow")
    import pandas  # type: ignore[import-untyped]  # takes a second, which others need not pay

    with reading(path, "a table in a parquet file"):
        frame = pandas.read_parquet(path, engine="pyarrow")
        frame.columns = list(map(str, frame.columns))
        for name in selection.beside:
            require_column(path, name, frame.columns, "the table")
        data = frame.drop(columns=list(selection.beside))
        require(min(data.shape) > 0, path, "rows and columns of numbers", f"a table of shape {data.shape}")
        for name, dtype in data.dtypes.items():
            numeric = pandas.api.types.is_numeric_dtype(dtype) and not pandas.api.types.is_bool_dtype(dtype)
            require(numeric, path, f"numbers in the column {name!r}", dtype)
        require_memory(8 * data.size, path)
        values = torch.from_numpy(data.to_numpy(np.float64, na_value=np.nan).copy())
        beside = {name: _column(frame[name]) for name in selection.beside}
    return Table(path, values, tuple(data.columns), beside)


def _column(series: Any) -> Column:
    """A column of numbers as it is, and any other as categories."""
    import pandas

    if pandas.api.types.is_numeric_dtype(series.dtype) and not pandas.api.types.is_bool_dtype(series.dtype):
        return of_numbers(series.name, series.to_numpy(np.float64, na_value=np.nan))
    categorical = pandas.Categorical(series)
    return of_codes(series.name, categorical.codes, categorical.categories)
