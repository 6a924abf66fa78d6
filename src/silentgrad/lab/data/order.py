"""The order of rows and the cut into splits: the same everywhere, whatever the machine or its random state."""

from collections.abc import Sized
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.rows import Splits

S = TypeVar("S", bound=Sized)


def permutation(count: int) -> Tensor:
    """An order of so many rows that is the same everywhere: numpy keeps this legacy generator's numbers for good."""
    return torch.from_numpy(np.random.RandomState(0).permutation(count))


def permuted(rows: Tensor) -> Tensor:
    """The rows in the order of :func:`permutation`."""
    return rows[permutation(len(rows))]


def cut(name: str, rows: Tensor, what: str) -> Splits[Tensor]:
    """Three splits: the last tenth for the test, the one before it for validation, the rest for training."""
    tenth = max(1, len(rows) // 10)
    return required(name, Splits(*rows.tensor_split((len(rows) - 2 * tenth, len(rows) - tenth))), what)


def required(name: str, splits: Splits[S], what: str) -> Splits[S]:
    """The splits, none of which may be empty.

    Raises:
        DataError: It says how many rows each split has.
    """
    if not all(map(len, splits)):
        counts = f"{len(splits.train)}, {len(splits.valid)} and {len(splits.test)}"
        raise DataError(f"{name}: expected {what} for train, validation and test, found {counts}")
    return splits
