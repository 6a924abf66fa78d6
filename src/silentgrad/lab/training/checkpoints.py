"""The weights of a run as they were at some time: at its end, at its best or last epoch, at an epoch that was kept."""

from pathlib import Path

from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations
from silentgrad.lab.runs.folder import CHECKPOINT, RunFolder
from silentgrad.lab.training.build import model_for
from silentgrad.lab.training.loading import load_run, load_weights, read_config
from silentgrad.lab.training.saving import RunError, model_weights, read_checkpoint
from silentgrad.lab.training.weights import dtype_of, fill


def load_checkpoint(folder: Path, checkpoint: str, observations: Observations) -> tuple[GuidedVAE, int]:
    """A run's model and the epoch its weights are from.

    Args:
        folder: The run's folder.
        checkpoint: finished, last, best, the number of a kept epoch, or a .safetensors or .ckpt file of the run.
        observations: Observations of the shape that it was trained on.
    """
    epochs = read_config(folder).train.epochs
    if checkpoint == "finished":
        return load_run(folder, observations), epochs
    if checkpoint.isdecimal():
        return load_weights(folder, RunFolder(folder).kept(int(checkpoint)), observations), int(checkpoint)
    path = Path(checkpoint)
    if checkpoint in ("last", "best"):
        path = RunFolder(folder).checkpoint(checkpoint)
    if path.suffix == CHECKPOINT:
        return _from_lightning(folder, path, observations)
    return load_weights(folder, path, observations), epochs


def _from_lightning(folder: Path, path: Path, observations: Observations) -> tuple[GuidedVAE, int]:
    settings = read_config(folder)
    vae = model_for(settings.model, observations, settings.train.epochs).to(dtype_of(settings.train))
    state = read_checkpoint(path)
    try:
        fill(vae, model_weights(state), path)
    except RuntimeError as error:
        raise RunError(f"{path} is no checkpoint of the model in {folder} on {observations.name}: {error}") from None
    return vae.eval(), state["epoch"] + 1
