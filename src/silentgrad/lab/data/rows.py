"""Rows of a data set: what is stored of each example, and what stands beside it."""

from collections.abc import Iterator, Sized
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.sparse import SparseRows

Stored = Tensor | SparseRows
T = TypeVar("T")


class Rows:
    """Some examples of a data set: a split, or a batch of it.

    Args:
        stored: The examples as they are stored, `(rows, *event_shape)`; a batch of sparse rows is dense.
        labels: One label per row, or None.
        covariates: What is known of each row beside x, `(rows, covariates)`, or None.
        mask: Which entries of each row were observed, or None if all were.
        offset: Logarithm of each row's size factor, or None.

    Example:
        >>> rows = Rows(torch.arange(6).reshape(3, 2), labels=torch.tensor([7, 8, 9]))
        >>> batch = rows.index_select(0, torch.tensor([2, 0]))
        >>> batch.stored.tolist(), batch.labels.tolist()
        ([[4, 5], [0, 1]], [9, 7])
    """

    def __init__(
        self,
        stored: Stored,
        labels: Tensor | None = None,
        covariates: Tensor | None = None,
        mask: Tensor | None = None,
        offset: Tensor | None = None,
    ) -> None:
        self._stored = stored
        self.labels, self.covariates, self.mask, self.offset = labels, covariates, mask, offset

    @property
    def stored(self) -> Tensor:
        """The examples as they are stored; sparse ones become dense, so that this is meant for a batch of them."""
        if isinstance(self._stored, SparseRows):
            return self._stored[:]
        return self._stored

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._stored.device

    def index_select(self, dim: int, index: Tensor) -> Self:
        """The rows at some places, with all that stands beside them."""
        return self._map(lambda column: column.index_select(dim, index))

    def between(self, start: int, stop: int) -> Self:
        """The rows from a place up to another."""
        return self._map(lambda column: column[start:stop])

    def to(self, device: torch.device) -> Self:
        """The same rows on a device."""
        return self._map(lambda column: column.to(device))

    def columns(self) -> Iterator[Stored]:
        """What is there: the examples, then what stands beside them."""
        yield self._stored
        for column in self._beside():
            if column is not None:
                yield column

    def _beside(self) -> tuple[Tensor | None, ...]:
        return self.labels, self.covariates, self.mask, self.offset

    def _map(self, function: Any) -> Self:
        beside = (None if column is None else function(column) for column in self._beside())
        return type(self)(function(self._stored), *beside)


class Splits(NamedTuple, Generic[T]):
    """One thing per split: its rows, or what stands beside them."""

    train: T
    valid: T
    test: T


class Part(NamedTuple):
    """The place of some rows in a batch of which other processes have the rest.

    Args:
        before: How many rows of the batch come before these.
        total: How many rows the batch has.
    """

    before: int
    total: int


def uniform(rows: Tensor, generator: torch.Generator | None, part: Part | None) -> Tensor:
    """Numbers of U[0, 1), one per entry; a part's are those that it would have got within its whole batch."""
    if part is None:
        return torch.rand(rows.shape, generator=generator, device=rows.device)
    whole = torch.rand(part.total, *rows.shape[1:], generator=generator, device=rows.device)
    return whole[part.before : part.before + len(rows)]


def require_lengths(name: str, what: str, splits: Splits[Stored], beside: Splits[Sized] | None) -> None:
    """Refuses labels and the like that are not one per row.

    Raises:
        DataError: It names the split.
    """
    if beside is None:
        return
    for split, rows, column in zip(Splits._fields, splits, beside, strict=True):
        if len(rows) != len(column):
            raise DataError(f"{name}: the {split} split has {len(rows)} rows, but {len(column)} {what}")
