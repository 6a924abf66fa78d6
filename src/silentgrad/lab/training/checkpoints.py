"""The weights of a run as they were at some time: at its end, at its best or last epoch, at an epoch that was kept."""

from pathlib import Path

from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Images
from silentgrad.lab.runs.folder import CHECKPOINT, RunFolder
from silentgrad.lab.training.build import build_model
from silentgrad.lab.training.run import load_run, load_weights, read_config
from silentgrad.lab.training.saving import RunError, model_weights, read_checkpoint
from silentgrad.lab.training.weights import dtype_of, fill


def load_checkpoint(folder: Path, checkpoint: str, images: Images) -> tuple[GuidedVAE, int]:
    """A run's model and the epoch its weights are from.

    Args:
        folder: The run's.
        checkpoint: finished, last, best, the number of a kept epoch, or a .safetensors or .ckpt file of the run.
        images: Of the shape it was trained on.
    """
    epochs = read_config(folder).train.epochs
    if checkpoint == "finished":
        return load_run(folder, images), epochs
    if checkpoint.isdecimal():
        return load_weights(folder, RunFolder(folder).kept(int(checkpoint)), images), int(checkpoint)
    path = Path(checkpoint)
    if checkpoint in ("last", "best"):
        path = RunFolder(folder).checkpoint(checkpoint)
    if path.suffix == CHECKPOINT:
        return _from_lightning(folder, path, images)
    return load_weights(folder, path, images), epochs


def _from_lightning(folder: Path, path: Path, images: Images) -> tuple[GuidedVAE, int]:
    settings = read_config(folder)
    vae = build_model(settings.model, images.event_shape, images.levels).to(dtype_of(settings.train))
    state = read_checkpoint(path)
    try:
        fill(vae, model_weights(state), path)
    except RuntimeError as error:
        raise RunError(f"{path} is no checkpoint of the model in {folder} on {images.name}: {error}") from None
    return vae.eval(), state["epoch"] + 1
