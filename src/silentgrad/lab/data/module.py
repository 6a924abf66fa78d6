"""A dataset as Lightning's Trainer takes it."""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import get_args

import lightning

from silentgrad.lab.data import sources
from silentgrad.lab.data.catalogue import load
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.loader import Batches, Together
from silentgrad.lab.data.observations import Observations, SplitName
from silentgrad.lab.data.rows import Rows
from silentgrad.lab.kinds import Kind
from silentgrad.lab.selection import EVERYTHING, Selection

HASHED_BYTES = 2**28  # of a split; of a larger one a part is hashed, evenly spread over its rows


class Whole:
    """A split as one step of Lightning's loop: the evaluation cuts it into batches of its own.

    Args:
        split: The split's name, which is what the step gets.
    """

    def __init__(self, split: SplitName) -> None:
        self.split = split

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[SplitName]:
        yield self.split


class ObservationData(lightning.LightningDataModule):
    """Loads a dataset once and serves its training rows in batches, each process its share; other splits by name.

    Args:
        name: A dataset's name or a path, as for :func:`silentgrad.lab.data.load`.
        root: Folder that holds the datasets.
        batch_size: Rows per step, over all processes.
        seed: Seed of the order of the training rows.
        together: Serve the training batches in groups of so many, as lists.
        kind: What the rows are, as for :func:`silentgrad.lab.data.load`.
        selection: What of a table or of counts is data, as for :func:`silentgrad.lab.data.load`.
        observations: What to serve, if it is there already and needs no loading.
    """

    observations: Observations

    def __init__(
        self,
        name: str = "digits",
        root: Path | None = None,
        batch_size: int = 64,
        seed: int = 0,
        together: int | None = None,
        kind: Kind = "auto",
        selection: Selection = EVERYTHING,
        observations: Observations | None = None,
    ) -> None:
        super().__init__()
        if observations is not None:
            self.observations = observations
        self.kind, self.selection = kind, selection
        self.dataset, self.root, self.batch_size, self.seed, self.together = name, root, batch_size, seed, together

    def prepare_data(self) -> None:
        """Downloads what is missing; Lightning calls this in one process only."""
        if not hasattr(self, "observations") and self.dataset in sources.SOURCES:
            sources.locate(self.dataset, self.root or sources.default_root())

    def setup(self, stage: str = "fit") -> None:
        if not hasattr(self, "observations"):
            self.observations = load(self.dataset, self.root, self.kind, self.selection)

    @cached_property
    def checksum(self) -> str:
        """What tells these observations from others, wherever they lie."""
        found = self.observations
        digest = hashlib.sha256(f"{type(found).__name__} {found.resolution}".encode())
        for split in get_args(SplitName):
            for column in found.rows(split).columns():
                digest.update(str(tuple(column.shape)).encode())
                step = 1 + column.nbytes // HASHED_BYTES
                digest.update(column[::step].cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def state_dict(self) -> dict[str, str]:
        """What Lightning stores in a checkpoint."""
        return {"checksum": self.checksum}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Refuses to go on with other data than those a checkpoint was made with."""
        if state["checksum"] != self.checksum:
            raise DataError(
                f"the data of {self.dataset} are not those that the run was started with: "
                "put them back, or start another run with another --folder"
            )

    def train_dataloader(self) -> Batches[Rows] | Together[Rows]:
        batches = self._batches()
        return batches if self.together is None else Together(batches, self.together)

    def val_dataloader(self) -> Whole:
        return Whole("valid")

    def test_dataloader(self) -> Whole:
        return Whole("test")

    def _batches(self) -> Batches[Rows]:
        rows = self.observations.rows("train")
        if self.trainer is None:
            return Batches(rows, self.batch_size, True, self.seed)
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = Batches(rows, self.batch_size, True, self.seed, rank, world_size)
        batches.set_epoch(self.trainer.current_epoch)
        return batches
