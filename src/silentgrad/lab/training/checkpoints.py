"""Checkpoints that a run goes on from: of its last epoch and of its best; and checks of its folder."""

import contextlib
import hashlib
import io
import math
import zipfile
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, Protocol, get_args

import torch

from silentgrad.errors import SilentgradError
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations, SplitName
from silentgrad.lab.data.files import DataError
from silentgrad.lab.store.files import RecordError, read_json, read_metrics, write_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training.loop import Loop

KEYS = {"model", "optimizer", "epoch", "best_epoch", "best_score", "data", "records"}
HASHED_BYTES = 2**28  # of a split; of a larger one a part is hashed, evenly spread over its rows


class RunError(SilentgradError):
    """A run's folder is not what it has to be."""


class Record(Protocol):
    """A part of a checkpoint besides the loop's own state: `state` is held, and `restore` goes on from it."""

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


class Checkpoints:
    """Writes `last.ckpt` after every epoch, and copies it to `best.ckpt` if the epoch was the best so far.

    It is the last report of an epoch, so that `last.ckpt` is what finishes one: whatever else the epoch leaves is
    written before, and written again if a kill comes between. `last.ckpt` knows which epoch is the best, so that a
    resumed run makes up for a copy that is missing. `data` is the checksum of the observations.
    """

    def __init__(self, run: RunFolder, records: Mapping[str, Record], data: str) -> None:
        self.last, self.best = run.checkpoint("last"), run.checkpoint("best")
        self.records, self.data = records, data
        self.best_epoch = 0
        self.best_score = (math.inf, math.inf)

    def __call__(self, loop: Loop) -> None:
        if loop.score < self.best_score:
            self.best_epoch, self.best_score = loop.epoch, loop.score
        if loop.fabric.is_global_zero:
            self.last.parent.mkdir(exist_ok=True)
            records = {name: record.state() for name, record in self.records.items()}
            own = {"best_epoch": self.best_epoch, "best_score": self.best_score, "data": self.data}
            write_checkpoint(self.last, {**loop.state(), **own, "records": records})
        self._copy_if_best(loop)

    def restore(self, loop: Loop, state: dict[str, Any]) -> None:
        loop.restore(state)
        for name, record in self.records.items():
            record.restore(state["records"][name])
        self.best_epoch, self.best_score = state["best_epoch"], tuple(state["best_score"])
        self._copy_if_best(loop)

    def _copy_if_best(self, loop: Loop) -> None:
        if loop.fabric.is_global_zero and loop.epoch == self.best_epoch:
            write_atomically(self.best, self.last.read_bytes())
        loop.fabric.barrier("best checkpoint")


def checksum_of(observations: Observations) -> str:
    """Return what tells these observations from others, wherever they lie."""
    digest = hashlib.sha256(f"{type(observations).__name__} {observations.resolution}".encode())
    for split in get_args(SplitName):
        for column in observations.rows(split).columns():
            digest.update(str(tuple(column.shape)).encode())
            step = 1 + column.nbytes // HASHED_BYTES
            digest.update(column[::step].cpu().contiguous().numpy().data)
    return digest.hexdigest()


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(state, content)
    write_atomically(path, content.getbuffer())


def read_checkpoint(path: Path, keys: Set[str] = KEYS) -> dict[str, Any]:
    """Return a checkpoint that has these keys, read without executing anything from it; RunError if it is damaged."""
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
    if not isinstance(state, dict) or not state.keys() >= keys:
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
    last, recorded = run.checkpoint("last"), 0
    with contextlib.suppress(RecordError):  # a checkpoint holds the rows of a damaged file too
        recorded = int([0, *read_metrics(run.metrics)["epoch"]][-1] or 0)
    if not last.exists():
        if recorded > 1 or run.checkpoint("best").exists():
            raise RunError(f"{last} is missing, though epochs are finished. {_remedy(run)}")
        return None
    state = _read_own(last, model, run, f". {_remedy(run)}")
    if state["data"] != checksum_of(observations):
        raise DataError(
            f"the data of {observations.name} are not those that the run was started with: put them back, or start "
            "another run with another --folder"
        )
    epoch = state["epoch"]
    if recorded > epoch + 1:
        raise RunError(
            f"{run.metrics} goes up to epoch {recorded}, but {last} only up to {epoch}: "
            f"put the newer checkpoint back, or remove {run.metrics.name} to go on from epoch {epoch}"
        )
    _require_best(run, state, model)
    return state


def _remedy(run: RunFolder) -> str:
    best = run.checkpoint("best")
    way = f", or go on from the best epoch: copy {best.name} over it and remove {run.metrics.name}"
    return "Put it back from a copy" + (way if best.exists() else "")


def _read_own(path: Path, model: GuidedVAE, run: RunFolder, advice: str) -> dict[str, Any]:
    """Read a checkpoint of the run; advice ends the message if it is damaged."""
    try:
        state = read_checkpoint(path)
    except RunError as error:
        raise RunError(f"{error}{advice}") from error
    found, expected = (
        {name: value.shape for name, value in weights.items()} for weights in (state["model"], model.state_dict())
    )
    if found != expected:
        raise RunError(
            f"{path} is of another model than the one in {run.config.name}, or of another version of silentgrad: "
            "put the right file back from a copy"
        )
    return state


def _require_best(run: RunFolder, state: dict[str, Any], model: GuidedVAE) -> None:
    """Refuse a run whose best checkpoint is gone, unless it is the last one, which is copied again."""
    best, path = state["best_epoch"], run.checkpoint("best")
    if best == state["epoch"]:
        return
    remedy = f": put the checkpoint of epoch {best} back from a copy, or train again in another --folder"
    epoch = _read_own(path, model, run, remedy)["epoch"]
    if epoch != best:
        raise RunError(f"{path} is of epoch {epoch}, but the best is {best}{remedy}")
