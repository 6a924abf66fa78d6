"""Rows of a data set: what is stored of each example, and what stands beside it."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from silentgrad.lab.data.formats import DataError


class Rows:
    """Some examples of a data set: a split, or a batch of it.

    Args:
        stored: The examples as they are stored, `(rows, *event_shape)`.
        labels: One label per row, or None.
        covariates: What is known of each row beside x, or None.
        mask: Which entries of each row were observed, or None if all were.

    Example:
        >>> rows = Rows(torch.arange(6).reshape(3, 2), labels=torch.tensor([7, 8, 9]))
        >>> batch = rows.index_select(0, torch.tensor([2, 0]))
        >>> batch.stored.tolist(), batch.labels.tolist()
        ([[4, 5], [0, 1]], [9, 7])
    """

    def __init__(
        self,
        stored: Tensor,
        labels: Tensor | None = None,
        covariates: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        self.stored, self.labels, self.covariates, self.mask = stored, labels, covariates, mask

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.stored.device

    def index_select(self, dim: int, index: Tensor) -> Self:
        """The rows at some places, with all that stands beside them."""
        return self._map(lambda column: column.index_select(dim, index))

    def between(self, start: int, stop: int) -> Self:
        """The rows from a place up to another."""
        return self._map(lambda column: column[start:stop])

    def to(self, device: torch.device) -> Self:
        """The same rows on a device."""
        return self._map(lambda column: column.to(device))

    def columns(self) -> Iterator[Tensor]:
        """The tensors that are there."""
        for column in (self.stored, self.labels, self.covariates, self.mask):
            if column is not None:
                yield column

    def _map(self, function: Any) -> Self:
        beside = (None if column is None else function(column) for column in (self.labels, self.covariates, self.mask))
        return type(self)(function(self.stored), *beside)


class Splits(NamedTuple):
    """What stands beside x, one tensor per split, each as long as the split."""

    train: Tensor
    valid: Tensor
    test: Tensor


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


def require_lengths(name: str, what: str, splits: Splits, beside: Splits | None) -> None:
    """Refuses labels and the like that are not one per row.

    Raises:
        DataError: It names the split.
    """
    if beside is None:
        return
    for split, rows, column in zip(Splits._fields, splits, beside, strict=True):
        if len(rows) != len(column):
            raise DataError(f"{name}: the {split} split has {len(rows)} rows, but {len(column)} {what}")
