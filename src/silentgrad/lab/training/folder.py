"""A run's folder before training: made for a new run, or found fit to go on with before anything in it is changed."""

from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from silentgrad.guided import GuidedVAE
from silentgrad.lab.data.module import ObservationData
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
from silentgrad.lab.training.saving import CheckpointPaths, Checkpoints, RunError, model_weights, read_checkpoint

SUMMARY = "summary.json"  # what a run leaves last
BEFORE_CONFIG = {"environment.json"}  # what a run leaves before its config.yaml makes the folder a run


def first_process() -> bool:
    """Whether this process is the one that writes; Lightning starts the others with the same command."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def is_finished(folder: Path) -> bool:
    """Whether the run in a folder has come to its end."""
    return (folder / SUMMARY).exists()


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
    write_json_atomically(folder / "environment.json", environment())
    write_atomically(folder / "config.yaml", settings.as_yaml().encode())


def _is_precious(path: Path) -> bool:
    """Whether a file is more than what a run leaves that was killed before its `config.yaml`."""
    return path.name not in BEFORE_CONFIG and not path.name.endswith(UNFINISHED)


def _remove_leftovers(folder: Path) -> None:
    for path in leftovers(folder):
        path.unlink()


def prepare_resuming(folder: Path, model: GuidedVAE, data: ObservationData) -> Path | None:
    """The checkpoint that a run goes on from; None if it was killed before its first one.

    Args:
        folder: The run's.
        model: The model that its settings describe.
        data: The data that its settings describe.

    Raises:
        RunError: There is no run in the folder, or a file of it is damaged or belongs to another run.
        DataError: The data are not those that the run was started with.
    """
    if not first_process():
        last = CheckpointPaths.of(folder).last
        return last if last.exists() else None
    if not (folder / "config.yaml").exists():
        raise RunError(f"{folder} holds no run to resume: start one without --resume")
    checkpoint = _checkpoint_to_resume(folder, model, data)
    _remove_leftovers(folder)
    return checkpoint


def _checkpoint_to_resume(folder: Path, model: GuidedVAE, data: ObservationData) -> Path | None:
    if (folder / "environment.json").exists():
        read_json(folder / "environment.json")
    metrics = folder / "metrics.csv"
    if metrics.is_dir():
        raise RunError(f"{metrics} is a folder: remove it, and its rows are restored from the last checkpoint")
    paths = CheckpointPaths.of(folder)
    if not paths.last.exists():
        _require_no_epoch(folder, paths)
        return None
    state = _read_last(paths)
    _require_fit(paths.last, state, model)
    data.load_state_dict(state.get(ObservationData.__qualname__, {}))
    epoch = state["epoch"] + 1
    recorded = _recorded_epochs(folder)
    if recorded > epoch + 1:
        raise RunError(
            f"{metrics} goes up to epoch {recorded}, but {paths.last} only up to {epoch}: "
            f"put the newer checkpoint back, or remove metrics.csv to go on from epoch {epoch}"
        )
    _require_best(paths, state, model)
    return paths.last


def _read_last(paths: CheckpointPaths) -> dict[str, Any]:
    try:
        return read_checkpoint(paths.last)
    except RunError as error:
        raise RunError(f"{error}. {_remedy(paths)}") from error


def _remedy(paths: CheckpointPaths) -> str:
    remedy = "Put it back from a copy"
    if paths.best.exists():
        remedy += f", or go on from the best epoch: copy {paths.best.name} over it and remove metrics.csv"
    return remedy


def _require_no_epoch(folder: Path, paths: CheckpointPaths) -> None:
    """A run without a checkpoint was killed in its first epoch, or has lost the checkpoint."""
    recorded = _recorded_epochs(folder)
    if recorded > 1 or paths.best.exists():
        raise RunError(f"{paths.last} is missing, though epochs are finished. {_remedy(paths)}")


def _recorded_epochs(folder: Path) -> int:
    """The last epoch in `metrics.csv`; 0 if that is damaged, since a checkpoint holds its rows too."""
    try:
        epochs = read_metrics(folder / "metrics.csv")["epoch"]
    except RecordError:
        return 0
    return int(epochs[-1] or 0) if epochs else 0


def _require_fit(path: Path, state: dict[str, Any], model: GuidedVAE) -> None:
    expected = {name: value.shape for name, value in model.state_dict().items()}
    found = {name: value.shape for name, value in model_weights(state).items()}
    if found != expected or Checkpoints.__qualname__ not in state["callbacks"]:
        raise RunError(
            f"{path} is of another model than the one in config.yaml, or of another version of silentgrad: "
            "put the right file back from a copy"
        )


def _require_best(paths: CheckpointPaths, state: dict[str, Any], model: GuidedVAE) -> None:
    """The best epoch's checkpoint has to be there, unless it is the last one, which is copied again."""
    best = state["callbacks"][Checkpoints.__qualname__]["best_epoch"]
    if best == state["epoch"] + 1:
        return
    remedy = f"put the checkpoint of epoch {best} back from a copy, or train again in another --folder"
    try:
        found = read_checkpoint(paths.best)
    except RunError as error:
        raise RunError(f"{error}: {remedy}") from error
    _require_fit(paths.best, found, model)
    if found["epoch"] + 1 != best:
        raise RunError(f"{paths.best} is of epoch {found['epoch'] + 1}, but the best is {best}: {remedy}")
