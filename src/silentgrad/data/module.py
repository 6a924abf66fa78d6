"""A dataset as Lightning's Trainer takes it."""

from pathlib import Path

import lightning
from torch import Tensor

from silentgrad.data import sources
from silentgrad.data.catalogue import load
from silentgrad.data.images import Images
from silentgrad.data.loader import Batches, Together


class ImageData(lightning.LightningDataModule):
    """Loads a dataset once and serves its splits in batches, each process its share.

    Args:
        name: A dataset's name or a path, as for :func:`silentgrad.data.load`.
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
