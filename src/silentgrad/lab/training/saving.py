"""What a run can be resumed from: the checkpoint of its last epoch, and a copy of that of its best."""

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from silentgrad.errors import SilentgradError
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import write_atomically
from silentgrad.lab.training.loop import TrainingPlan


class RunError(SilentgradError):
    """A run's folder is not what it has to be."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints beside their place and on the same disk, which Lightning does not."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        Path(path).parent.mkdir(exist_ok=True)
        write_atomically(Path(path), content.getbuffer())


class Checkpoints(Checkpoint):
    """Writes `last.ckpt` after every epoch, and copies it to `best.ckpt` if the epoch was the best so far.

    Lightning calls it after all other callbacks, so that `last.ckpt` is what finishes an epoch: whatever else the epoch
    leaves is written before, and written again if a kill comes between. The copy is made after it. `last.ckpt` knows
    which epoch is the best, so that a resumed run makes up for a copy that is missing.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        run = RunFolder(folder)
        self.last, self.best = run.checkpoint("last"), run.checkpoint("best")
        self.epoch = 0  # the last one that was finished
        self.best_epoch = 0
        self.best_score = (math.inf, math.inf)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "best_epoch": self.best_epoch, "best_score": self.best_score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.best_epoch = state["epoch"], state["best_epoch"]
        self.best_score = tuple(state["best_score"])

    def on_fit_start(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if self.epoch > 0:
            self._copy_if_best(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        assert isinstance(plan, TrainingPlan)
        self.epoch = plan.epoch
        if plan.score < self.best_score:
            self.best_epoch, self.best_score = plan.epoch, plan.score
        trainer.save_checkpoint(self.last)
        self._copy_if_best(trainer)

    def _copy_if_best(self, trainer: lightning.Trainer) -> None:
        if trainer.is_global_zero and self.epoch == self.best_epoch:
            write_atomically(self.best, self.last.read_bytes())
        trainer.strategy.barrier("best checkpoint")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint as Lightning wrote it, read without executing anything from it.

    Raises:
        RunError: The file is missing or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not look at the checksums
            broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"wrong checksum of {broken}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint {path}") from None
    except Exception as error:  # torch's reader raises almost anything, depending on where the damage is
        reason = str(error).partition("\n")[0]
        raise RunError(f"{path} is no checkpoint that can be read: {reason or type(error).__name__}") from error
    if not isinstance(state, dict) or not {"state_dict", "epoch", "callbacks", "loops"} <= state.keys():
        raise RunError(f"{path} is no checkpoint of a run")
    return state


def model_weights(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights of the model in a checkpoint, named as the model names them."""
    prefix = "model."
    weights: dict[str, torch.Tensor] = state["state_dict"]
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
