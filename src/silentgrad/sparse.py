"""Sparse matrices whose rows become dense some at a time.

A matrix in compressed sparse row (CSR) form is three arrays: the entries other than zero, row after row; the column of
each; and the place at which each row starts. The first two may be mapped from disk. A selection of rows is their
numbers, so that nothing is copied.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]
PIECE = 2**22  # entries that are in memory at a time


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix in CSR form, no entry of which is there twice.

    Args:
        starts: Place of each row's first entry, and behind the last row the number of all entries.
        indices: Column of each entry.
        entries: The entries.
        width: Number of columns.
        dtype: Type of the numbers in a dense batch.

    Example:
        >>> matrix = SparseMatrix(np.array([0, 2, 2, 3]), np.array([0, 2, 1]), np.array([7, 8, 9]), 3, np.dtype("u1"))
        >>> matrix.dense(np.array([2, 0]))
        tensor([[0, 9, 0],
                [7, 0, 8]], dtype=torch.uint8)
    """

    starts: Integers
    indices: NDArray[Any]
    entries: NDArray[Any]
    width: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def dense(self, rows: Integers) -> Tensor:
        """Return some rows with all their zeros, `(rows, width)`."""
        starts = self.starts[rows]
        counts = self.starts[rows + 1] - starts
        before = counts.cumsum() - counts  # entries of the rows that come before, in the batch
        places = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        corners = np.repeat(np.arange(len(rows)) * self.width, counts)
        dense = np.zeros(len(rows) * self.width, self.dtype)
        dense[corners + self.indices[places].astype(np.int64)] = self.entries[places]
        return torch.from_numpy(dense).reshape(len(rows), self.width)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield runs of rows, by first and last, that have as many entries together as may be in memory."""
        first = 0
        while first < len(self):
            fitting = int(np.searchsorted(self.starts, self.starts[first] + PIECE, "right")) - 1
            last = max(first + 1, fitting)
            yield first, last
            first = last

    def sums(self) -> NDArray[np.float64]:
        """Return the sum of each row."""
        sums = np.zeros(len(self))
        for first, last in self.pieces():
            starts = self.starts[first : last + 1]
            up_to = np.cumsum(self.entries[starts[0] : starts[-1]], dtype=np.float64)
            sums[first:last] = np.diff(np.concatenate([np.zeros(1), up_to])[starts - starts[0]])
        return sums


class SparseRows:
    """Some rows of a sparse matrix, in any order, as batches are taken from them: slices and selections are dense.

    Args:
        matrix: The matrix.
        numbers: Number of each row in the matrix, int64 of shape `(rows,)`.
    """

    device = torch.device("cpu")

    def __init__(self, matrix: SparseMatrix, numbers: Tensor) -> None:
        self.matrix, self.numbers = matrix, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> torch.Size:
        """The number of rows and of columns."""
        return torch.Size((len(self), self.matrix.width))

    @property
    def nbytes(self) -> int:
        """The bytes that all rows would take if they were dense."""
        return self.shape.numel() * self.matrix.dtype.itemsize

    def __getitem__(self, key: slice | Tensor) -> Tensor:
        return self.matrix.dense(self.numbers[key].numpy())

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Return the rows at some places, dense."""
        return self.matrix.dense(self.numbers.index_select(dim, index).numpy())

    def to(self, device: torch.device) -> Tensor:
        """All rows, dense, on a device."""
        return self[:].to(device)
