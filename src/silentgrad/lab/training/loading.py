"""Settings, observations and model of a run, as objects again, out of its folder."""

from itertools import zip_longest
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from silentgrad.guided import GuidedVAE
from silentgrad.lab.build import model_for, seen_by
from silentgrad.lab.data import Counts, Observations, Reals, load
from silentgrad.lab.settings import Settings
from silentgrad.lab.settings.documents import UnknownSettingError, read_settings
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training.checkpoints import RunError


def observations_of(settings: Settings, data: str | None = None, root: Path | None = None) -> Observations:
    """Return the data that a run was trained on, or others of the same kind by name or path, to judge it by.

    Other data are refused if what a model sees of them depends on their own training rows, or their columns differ.
    """
    own = settings.data
    found = seen_by(settings.model, load(data or own.name, root or own.root, own.kind, own.selection))
    if data in (None, own.name):
        return found
    if isinstance(found, Reals) or found.covariates is not None or found.offset is not None:
        raise RunError(
            f"--data {data} would be standardized by other rows than those of {own.name}, which the model was trained "
            "on, its covariates or its sizes too: train on both in one file"
        )
    if isinstance(found, Counts):
        trained_on = load(own.name, own.root, own.kind, own.selection)
        expected = getattr(trained_on, "columns", ())
        for place, (name, other) in enumerate(zip_longest(expected, found.columns), start=1):
            if name != other:
                raise RunError(
                    f"column {place} of --data {data} is {other}, and was {name} in {trained_on.name}, which the model "
                    "was trained on: bring the columns into its order"
                )
    return found


def load_run(folder: Path, observations: Observations) -> GuidedVAE:
    """Load the trained model of a finished run."""
    return load_weights(folder, RunFolder(folder).weights, observations)


def load_weights(folder: Path, path: Path, observations: Observations) -> GuidedVAE:
    """Load the model of the run in a folder with the weights of a file, without executing or converting anything."""
    settings = read_config(folder)
    # Mixed precision leaves weights in single.
    dtype = torch.float64 if settings.train.precision == "64-true" else torch.float32
    vae = model_for(settings.model, observations, settings.train.epochs).to(dtype)
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise RunError(f"there is no {path}: its run has not finished, or has not kept that epoch") from None
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    for name, own in vae.state_dict().items():
        weight = weights.get(name, own)
        found, expected = (str(each.dtype).removeprefix("torch.") for each in (weight, own))
        if found != expected:
            raise RunError(f"{path}: {name} is {found}, but the run's configuration says {expected}")
        if not weight.isfinite().all():
            raise RunError(f"{path}: {name} holds numbers that are not finite; its run has to be made again")
    try:
        vae.load_state_dict(weights)
    except RuntimeError as error:
        _, mismatch, *_ = str(error).splitlines()
        raise RunError(
            f"the model in {folder} does not fit examples of shape {tuple(observations.event_shape)}: "
            f"{mismatch.strip()}"
        ) from None
    return vae.eval()


def read_config(folder: Path) -> Settings:
    """Read the settings of the run in a folder."""
    path = RunFolder(folder).config
    if not path.exists():
        raise RunError(f"{folder} holds no run: it has no {path.name}")
    try:
        return read_settings(path)
    except UnknownSettingError as error:
        raise RunError(f"the run was made by another version of silentgrad, which can read it: {error}") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"cannot read {path}: {reason}; put it back from a copy") from error
