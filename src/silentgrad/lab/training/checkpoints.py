"""The checkpoint that a run goes on from, and checks of its folder."""

import contextlib
import hashlib
import io
import math
import zipfile
from pathlib import Path
from typing import Any, get_args

import torch

from silentgrad.errors import SilentgradError
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations, SplitName
from silentgrad.lab.data.files import DataError
from silentgrad.lab.store.files import RecordError, read_json, read_metrics, write_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training.loop import Loop
from silentgrad.lab.training.recording import Recorder

KEYS = {"model", "optimizer", "epoch", "best", "metrics", "data"}
HASHED_BYTES = 2**28  # of a split; of a larger one a part is hashed, evenly spread over its rows


class RunError(SilentgradError):
    """A run's folder is not what it has to be."""


class Checkpoint:
    """Writes all that a run goes on from after an epoch into one file, with the weights of the best epoch so far.

    It is the last report of an epoch, so that the file is what finishes one: whatever else the epoch leaves is written
    before, and written again if a kill comes between. `data` is the checksum of the observations.
    """

    def __init__(self, run: RunFolder, recorder: Recorder, data: str) -> None:
        self.path, self.recorder, self.data = run.checkpoint, recorder, data
        self.best: dict[str, Any] = {"epoch": 0, "score": (math.inf, math.inf), "model": {}}

    def __call__(self, loop: Loop) -> None:
        if loop.score < self.best["score"]:
            weights = {name: weight.clone() for name, weight in loop.model.state_dict().items()}
            self.best = {"epoch": loop.epoch, "score": loop.score, "model": weights}
        if loop.fabric.is_global_zero:
            own = {"best": self.best, "metrics": self.recorder.state(), "data": self.data}
            content = io.BytesIO()
            torch.save({**loop.state(), **own}, content)
            write_atomically(self.path, content.getbuffer())
        loop.fabric.barrier("checkpoint")

    def restore(self, loop: Loop, state: dict[str, Any]) -> None:
        loop.restore(state)
        self.recorder.restore(state["metrics"])
        self.best = state["best"]


def checksum_of(observations: Observations) -> str:
    """Return what tells these observations from others, wherever they lie."""
    digest = hashlib.sha256(f"{type(observations).__name__} {observations.resolution}".encode())
    for split in get_args(SplitName):
        for column in observations.rows(split).columns():
            digest.update(str(tuple(column.shape)).encode())
            step = 1 + column.nbytes // HASHED_BYTES
            digest.update(column[::step].cpu().contiguous().numpy().data)
    return digest.hexdigest()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint of a run, read without executing anything from it; RunError if it is damaged."""
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
        raise RunError(
            f"{path} is no checkpoint that can be read: {reason or type(error).__name__}; put it back from a copy"
        ) from error
    if not isinstance(state, dict) or not state.keys() >= KEYS:
        raise RunError(f"{path} is no checkpoint of a run")
    return state


def checkpoint_to_resume(run: RunFolder, model: GuidedVAE, observations: Observations) -> dict[str, Any] | None:
    """Return the checkpoint that a run goes on from; None if it was killed before its first one."""
    if not run.config.exists():
        raise RunError(f"{run.path} holds no run to resume: start one without --resume")
    if run.environment.exists():
        read_json(run.environment)
    if run.metrics.is_dir():
        raise RunError(f"{run.metrics} is a folder: remove it, and its rows are restored from the last checkpoint")
    path, recorded = run.checkpoint, 0
    with contextlib.suppress(RecordError):  # a checkpoint holds the rows of a damaged file too
        recorded = int([0, *read_metrics(run.metrics)["epoch"]][-1] or 0)
    if not path.exists():
        if recorded > 1:
            raise RunError(f"{path} is missing, though epochs are finished: put it back from a copy")
        return None
    state = read_checkpoint(path)
    found = {name: value.shape for name, value in state["model"].items()}
    if found != {name: value.shape for name, value in model.state_dict().items()}:
        raise RunError(
            f"{path} is of another model than the one in {run.config.name}, or of another version of silentgrad: "
            "put the right file back from a copy"
        )
    if state["data"] != checksum_of(observations):
        raise DataError(
            f"the data of {observations.name} are not those that the run was started with: put them back, or start "
            "another run with another --folder"
        )
    epoch = state["epoch"]
    if recorded > epoch + 1:
        raise RunError(
            f"{run.metrics} goes up to epoch {recorded}, but {path} only up to {epoch}: "
            f"put the newer checkpoint back, or remove {run.metrics.name} to go on from epoch {epoch}"
        )
    return state
