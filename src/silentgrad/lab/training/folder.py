"""A run's folder before training: made for a new run, or found fit to go on with before anything in it is changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from silentgrad.guided import GuidedVAE
from silentgrad.lab.data.module import ObservationData
from silentgrad.lab.runs.folder import CONFIG, ENVIRONMENT, RunFolder
from silentgrad.lab.runs.records import (
    UNFINISHED,
    RecordError,
    leftovers,
    read_json,
    read_metrics,
    write_atomically,
    write_json_atomically,
)
from silentgrad.lab.training.config import Settings
from silentgrad.lab.training.recorder import environment
from silentgrad.lab.training.saving import Checkpoints, RunError, model_weights, read_checkpoint

BEFORE_CONFIG = {ENVIRONMENT}  # what a run leaves before its settings make the folder a run


def first_process() -> bool:
    """Whether this process is the one that writes; Lightning starts the others with the same command."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def is_finished(folder: Path) -> bool:
    """Whether the run in a folder has come to its end."""
    return RunFolder(folder).summary.exists()


def make_folder(folder: Path, settings: Settings) -> None:
    """Makes the folder of a new run; its `config.yaml` comes last.

    Raises:
        RunError: There is something in the folder.
    """
    if not first_process():
        return
    if folder.exists() and any(map(_is_precious, folder.iterdir())):
        raise RunError(f"{folder} exists: choose another --folder, or go on with that run by --resume true")
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    write_json_atomically(RunFolder(folder).environment, environment())
    write_atomically(RunFolder(folder).config, settings.as_yaml().encode())


def _is_precious(path: Path) -> bool:
    """Whether a file is more than what a run leaves that was killed before its `config.yaml`."""
    return path.name not in BEFORE_CONFIG and not path.name.endswith(UNFINISHED)


def _remove_leftovers(folder: Path) -> None:
    for path in leftovers(folder):
        path.unlink()


def prepare_resuming(folder: Path, model: GuidedVAE, data: ObservationData) -> Path | None:
    """The checkpoint that a run goes on from; None if it was killed before its first one.

    Args:
        folder: The run's folder.
        model: The model that its settings describe.
        data: The data that its settings describe.

    Raises:
        RunError: There is no run in the folder, or a file of it is damaged or belongs to another run.
        DataError: The data are not those that the run was started with.
    """
    if not first_process():
        last = RunFolder(folder).checkpoint("last")
        if last.exists():
            return last
        return None
    if not RunFolder(folder).config.exists():
        raise RunError(f"{folder} holds no run to resume: start one without --resume")
    checkpoint = _checkpoint_to_resume(folder, model, data)
    _remove_leftovers(folder)
    return checkpoint


def _checkpoint_to_resume(folder: Path, model: GuidedVAE, data: ObservationData) -> Path | None:
    run = RunFolder(folder)
    if run.environment.exists():
        read_json(run.environment)
    metrics = run.metrics
    if metrics.is_dir():
        raise RunError(f"{metrics} is a folder: remove it, and its rows are restored from the last checkpoint")
    last = run.checkpoint("last")
    if not last.exists():
        _require_no_epoch(run)
        return None
    state = _read_last(run)
    _require_fit(last, state, model)
    data.load_state_dict(state.get(ObservationData.__qualname__, {}))
    epoch = state["epoch"] + 1
    recorded = _recorded_epochs(run)
    if recorded > epoch + 1:
        raise RunError(
            f"{metrics} goes up to epoch {recorded}, but {last} only up to {epoch}: "
            f"put the newer checkpoint back, or remove {metrics.name} to go on from epoch {epoch}"
        )
    _require_best(run, state, model)
    return last


def _read_last(run: RunFolder) -> dict[str, Any]:
    try:
        return read_checkpoint(run.checkpoint("last"))
    except RunError as error:
        raise RunError(f"{error}. {_remedy(run)}") from error


def _remedy(run: RunFolder) -> str:
    remedy = "Put it back from a copy"
    best = run.checkpoint("best")
    if best.exists():
        remedy += f", or go on from the best epoch: copy {best.name} over it and remove {run.metrics.name}"
    return remedy


def _require_no_epoch(run: RunFolder) -> None:
    """A run without a checkpoint was killed in its first epoch, or has lost the checkpoint."""
    recorded = _recorded_epochs(run)
    if recorded > 1 or run.checkpoint("best").exists():
        raise RunError(f"{run.checkpoint('last')} is missing, though epochs are finished. {_remedy(run)}")


def _recorded_epochs(run: RunFolder) -> int:
    """The last epoch in `metrics.csv`; 0 if that is damaged, since a checkpoint holds its rows too."""
    try:
        epochs = read_metrics(run.metrics)["epoch"]
    except RecordError:
        return 0
    if not epochs:
        return 0
    return int(epochs[-1] or 0)


def _require_fit(path: Path, state: dict[str, Any], model: GuidedVAE) -> None:
    same = _shapes(model_weights(state)) == _shapes(model.state_dict())
    if not same or Checkpoints.__qualname__ not in state["callbacks"]:
        raise RunError(
            f"{path} is of another model than the one in {CONFIG}, or of another version of silentgrad: "
            "put the right file back from a copy"
        )


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in weights.items()}


def _require_best(run: RunFolder, state: dict[str, Any], model: GuidedVAE) -> None:
    """The best epoch's checkpoint has to be there, unless it is the last one, which is copied again."""
    best = state["callbacks"][Checkpoints.__qualname__]["best_epoch"]
    if best == state["epoch"] + 1:
        return
    remedy = f"put the checkpoint of epoch {best} back from a copy, or train again in another --folder"
    path = run.checkpoint("best")
    try:
        found = read_checkpoint(path)
    except RunError as error:
        raise RunError(f"{error}: {remedy}") from error
    _require_fit(path, found, model)
    if found["epoch"] + 1 != best:
        raise RunError(f"{path} is of epoch {found['epoch'] + 1}, but the best is {best}: {remedy}")
