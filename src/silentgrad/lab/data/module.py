"""A dataset as Lightning's Trainer takes it."""

import hashlib
from functools import cached_property
from pathlib import Path

import lightning
from torch import Tensor

from silentgrad.lab.data import sources
from silentgrad.lab.data.catalogue import load
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.images import Images
from silentgrad.lab.data.loader import Batches, Together

HASHED_BYTES = 2**28  # of a split; of a larger one a part is hashed, evenly spread over its images


class ImageData(lightning.LightningDataModule):
    """Loads a dataset once and serves its splits in batches, each process its share.

    Args:
        name: A dataset's name or a path, as for :func:`silentgrad.lab.data.load`.
        root: Folder that holds the datasets.
        batch_size: Images per step, over all processes.
        seed: Of the order of the training images.
        together: Serve the training batches in groups of so many, as lists.
    """

    images: Images

    def __init__(
        self,
        name: str = "digits",
        root: Path | None = None,
        batch_size: int = 64,
        seed: int = 0,
        together: int | None = None,
    ) -> None:
        super().__init__()
        self.dataset, self.root, self.batch_size, self.seed, self.together = name, root, batch_size, seed, together

    def prepare_data(self) -> None:
        """Downloads what is missing; Lightning calls this in one process only."""
        if self.dataset in sources.SOURCES:
            sources.locate(self.dataset, self.root or sources.default_root())

    def setup(self, stage: str = "fit") -> None:
        if not hasattr(self, "images"):
            self.images = load(self.dataset, self.root)

    @cached_property
    def checksum(self) -> str:
        """What tells these images from others, wherever they lie."""
        digest = hashlib.sha256(str(self.images.levels).encode())
        for split in (self.images.train, self.images.valid, self.images.test):
            digest.update(str(tuple(split.shape)).encode())
            step = 1 + split.nbytes // HASHED_BYTES
            digest.update(split[::step].cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def state_dict(self) -> dict[str, str]:
        """What Lightning stores in a checkpoint."""
        return {"checksum": self.checksum}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Refuses to go on with other images than those a checkpoint was made with."""
        if state["checksum"] != self.checksum:
            raise DataError(
                f"the images of {self.dataset} are not those that the run was started with: "
                "put them back, or start another run with another --folder"
            )

    def train_dataloader(self) -> Batches | Together:
        batches = self._batches(self.images.train, shuffle=True)
        return batches if self.together is None else Together(batches, self.together)

    def val_dataloader(self) -> Batches:
        return self._batches(self.images.valid, shuffle=False)

    def test_dataloader(self) -> Batches:
        return self._batches(self.images.test, shuffle=False)

    def _batches(self, images: Tensor, shuffle: bool) -> Batches:
        if self.trainer is None:
            return Batches(images, self.batch_size, shuffle, self.seed)
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = Batches(images, self.batch_size, shuffle, self.seed, rank, world_size)
        batches.set_epoch(self.trainer.current_epoch)
        return batches
