"""Batches of rows in memory or mapped from disk, without a worker process and without work per row."""

import itertools
from collections.abc import Iterator
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data.formats import DataError


class Selectable(Protocol):
    """What batches can be taken from: a tensor, or rows with all that stands beside them."""

    @property
    def device(self) -> torch.device: ...

    def __len__(self) -> int: ...

    def index_select(self, dim: int, index: Tensor, /) -> Self: ...


R = TypeVar("R", bound=Selectable)


class Batches(Generic[R]):
    """An epoch of batches, for Lightning's Trainer or a plain loop.

    The order depends on `(seed, epoch)` alone: not on the global random state, nor on the number of processes. With
    several, each global batch is cut into contiguous shares, whose sizes differ by at most one.

    Args:
        rows: A tensor or :class:`silentgrad.lab.data.Rows`, memory-mapped or not.
        batch_size: Rows per step, over all processes.
        shuffle: Whether every epoch has a new order, instead of the order of the rows.
        seed: Seed of the shuffling order.
        rank: Number of this process.
        world_size: Number of processes that share a batch.
        drop_last: Whether the last batch is left out if it is smaller than the others.

    Example:
        >>> rows = torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1)
        >>> [(index, batch.flatten().tolist()) for index, batch in Batches(rows, 2, shuffle=False, seed=0)]
        [(0, [0, 1]), (1, [2, 3]), (2, [4])]
    """

    batch_sampler = None  # Lightning asks for both on whatever has a sampler

    def __init__(
        self,
        rows: R,
        batch_size: int,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise DataError(f"batch_size {batch_size} has to be a positive multiple of the {world_size} processes")
        if not drop_last and 0 < len(rows) % batch_size < world_size:
            left = len(rows) % batch_size
            raise DataError(f"the last batch would leave {left} rows to {world_size} processes; choose another size")
        self.rows, self.batch_size, self.shuffle, self.seed = rows, batch_size, shuffle, seed
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last
        self.epoch = 0
        self._position = 0

    def __len__(self) -> int:
        full, rest = divmod(len(self.rows), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[int, R]]:
        # A generator: it asks for the epoch at the first batch, since Lightning sets it only after calling iter().
        start, self._position = self._position, 0
        order = self._order()
        for index in range(start, len(self)):
            self._position = (index + 1) % len(self)
            batch = order[index * self.batch_size : (index + 1) * self.batch_size]
            yield index, self.rows.index_select(0, batch.tensor_split(self.world_size)[self.rank])

    @property
    def sampler(self) -> "Batches[R]":
        """Where Lightning looks for `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        """The position within the epoch, which Lightning stores in a checkpoint."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next iteration start where the checkpoint was written."""
        self._position = state["position"]

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.rows), device=self.rows.device)
        mixed = np.random.SeedSequence((self.seed, self.epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(mixed[0]))
        return torch.randperm(len(self.rows), generator=generator).to(self.rows.device)


class Together(Generic[R]):
    """Several batches at a time, for a loop that costs something each time it is asked for the next.

    Args:
        batches: What to take them from.
        count: How many make one step of the loop.
    """

    batch_sampler = None

    def __init__(self, batches: Batches[R], count: int) -> None:
        self.batches, self.count = batches, count

    def __len__(self) -> int:
        return -(-len(self.batches) // self.count)

    def __iter__(self) -> Iterator[list[tuple[int, R]]]:
        batches = iter(self.batches)
        while group := list(itertools.islice(batches, self.count)):
            yield group

    @property
    def sampler(self) -> Batches[R]:
        """Where Lightning looks for `set_epoch`."""
        return self.batches

    def state_dict(self) -> dict[str, int]:
        """The position within the epoch."""
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next iteration start where the checkpoint was written."""
        self.batches.load_state_dict(state)
