"""Rows of a dataset with their side information, cut into splits and served in batches.

The order of rows and the cut into splits are the same everywhere, whatever the machine or its random state. Batches
come from memory or from mapped files, without a worker process and without work per row.
"""

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data.files import DataError
from silentgrad.side_info import NOTHING, SideInfo
from silentgrad.sparse import SparseRows

Stored = Tensor | SparseRows
T = TypeVar("T")


class Rows:
    """Some examples of a data set: a split, or a batch of it.

    Args:
        stored: The examples as they are stored, `(rows, *event_shape)`.
        labels: One label per row, or None.
        side_info: What a model is told of the rows.

    Example:
        >>> rows = Rows(torch.arange(6).reshape(3, 2), labels=torch.tensor([7, 8, 9]))
        >>> batch = rows.index_select(0, torch.tensor([2, 0]))
        >>> batch.stored.tolist(), batch.labels.tolist()
        ([[4, 5], [0, 1]], [9, 7])
    """

    def __init__(self, stored: Stored, labels: Tensor | None = None, side_info: SideInfo = NOTHING) -> None:
        self._stored, self.labels, self.side_info = stored, labels, side_info

    @property
    def stored(self) -> Tensor:
        """The examples as they are stored; sparse ones become dense, so that this is meant for a batch of them."""
        return self._stored[:] if isinstance(self._stored, SparseRows) else self._stored

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def device(self) -> torch.device:
        return self._stored.device

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Return the rows at some places, with their side information."""
        return self._map(lambda column: column.index_select(dim, index))

    def between(self, start: int, stop: int) -> Self:
        """Return the rows from a place up to another."""
        return self._map(lambda column: column[start:stop])

    def to(self, device: torch.device) -> Self:
        return self._map(lambda column: column.to(device))

    def columns(self) -> Iterator[Stored]:
        """Yield what is there: the examples, labels, side information."""
        known = self.side_info
        for column in (self._stored, self.labels, known.covariates, known.mask, known.offset):
            if column is not None:
                yield column

    def _map(self, function: Any) -> Self:
        labels = None if self.labels is None else function(self.labels)
        return type(self)(function(self._stored), labels, self.side_info.map(function))


class Splits(NamedTuple, Generic[T]):
    """One thing per split: its rows, or what is known of them."""

    train: T
    valid: T
    test: T


class Part(NamedTuple):
    """The place of some rows in a batch of which other processes have the rest."""

    before: int  # rows of the batch that come before these
    total: int  # rows of the batch


def uniform(rows: Tensor, generator: torch.Generator | None, part: Part | None = None) -> Tensor:
    """Return numbers of U[0, 1), one per entry; a part's are those that it would have got within its whole batch."""
    if part is None:
        return torch.rand(rows.shape, generator=generator, device=rows.device)
    whole = torch.rand(part.total, *rows.shape[1:], generator=generator, device=rows.device)
    return whole[part.before : part.before + len(rows)]


def permutation(count: int) -> Tensor:
    """Return an order that is the same everywhere: numpy keeps this legacy generator's numbers for good."""
    return torch.from_numpy(np.random.RandomState(0).permutation(count))


def permuted(rows: Tensor) -> Tensor:
    return rows[permutation(len(rows))]


def cut(name: str, rows: Tensor, what: str) -> Splits[Tensor]:
    """Return three splits: the last tenth for the test, the one before it for validation, the rest for training."""
    tenth = len(rows) // 10
    if tenth == 0:
        raise DataError(f"{name}: expected ten {what} at least, one each for validation and test, found {len(rows)}")
    return Splits(*rows.tensor_split((len(rows) - 2 * tenth, len(rows) - tenth)))


def mixed(*numbers: int) -> int:
    """Return one seed out of several numbers, no two of which collide in practice."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


R = TypeVar("R", Tensor, Rows)  # that batches can be taken from


class Batches(Generic[R]):
    """An epoch of batches.

    The order depends on `(seed, epoch)` alone: not on the global random state, nor on the number of processes. With
    several, each global batch is cut into contiguous shares, whose sizes differ by at most one.

    Args:
        rows: A tensor or :class:`silentgrad.lab.data.Rows`, memory-mapped or not.
        batch_size: Rows per step, over all processes.
        shuffle: Whether every epoch has a new order, instead of the order of the rows.
        seed: Seed of the shuffling order.
        rank: Number of this process.
        world_size: Number of processes that share a batch.
        steps: Number of batches of an epoch, each drawn from all rows with replacement; one pass over them if absent.

    Example:
        >>> rows = torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1)
        >>> [(index, batch.flatten().tolist()) for index, batch in Batches(rows, 2, shuffle=False, seed=0)]
        [(0, [0, 1]), (1, [2, 3]), (2, [4])]
    """

    def __init__(
        self,
        rows: R,
        batch_size: int,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        steps: int | None = None,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise DataError(f"batch_size {batch_size} has to be a positive multiple of the {world_size} processes")
        left = len(rows) % batch_size
        if steps is None and 0 < left < world_size:
            raise DataError(
                f"--data.batch_size {batch_size}: the last batch would leave {left} rows to {world_size} processes; "
                "choose another size"
            )
        if steps is not None and not shuffle:
            raise DataError("steps of rows that are drawn have no order: leave out steps, or shuffle")
        self.rows: R = rows
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.rank, self.world_size, self.steps = rank, world_size, steps
        self.epoch = 0  # which chooses the order of the next iteration

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size) if self.steps is None else self.steps

    def __iter__(self) -> Iterator[tuple[int, R]]:
        order = self._order().to(self.rows.device)
        for index in range(len(self)):
            batch = order[index * self.batch_size : (index + 1) * self.batch_size]
            yield index, self.rows.index_select(0, batch.tensor_split(self.world_size)[self.rank])

    def shares(self, index: int) -> list[int]:
        """Return the number of rows that each process has of a batch."""
        size = self.batch_size
        if self.steps is None:
            size = min(size, len(self.rows) - index * size)
        return [size // self.world_size + (rank < size % self.world_size) for rank in range(self.world_size)]

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.rows))
        state = np.random.SeedSequence((self.seed, self.epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0]))
        if self.steps is not None:
            return torch.randint(len(self.rows), (self.steps * self.batch_size,), generator=generator)
        return torch.randperm(len(self.rows), generator=generator)
