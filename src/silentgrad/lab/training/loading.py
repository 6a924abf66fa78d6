"""What a run's folder holds, as objects again: its settings, its observations and its model."""

from itertools import zip_longest
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from safetensors import SafetensorError
from safetensors.torch import load_file

from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Counts, Observations, Reals, load
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.training.build import model_for
from silentgrad.lab.training.config import Settings
from silentgrad.lab.training.documents import UnknownSettingError, read_settings
from silentgrad.lab.training.saving import RunError
from silentgrad.lab.training.weights import dtype_of, fill


def observations_of(settings: Settings, data: str | None = None, root: Path | None = None) -> Observations:
    """What a run was trained on, or other data of the same kind to judge it by.

    Args:
        settings: The run's settings.
        data: The other data's name or path.
        root: Folder that holds the datasets, if it is another than the run's.

    Raises:
        RunError: The other data are a table of real numbers, or have covariates or size factors, all of which depend
            on the data's own training rows, not on those of the run; or they are counts with other columns.
    """
    own = settings.data
    found = load(data or own.name, root or own.root, own.kind, own.selection)
    if data in (None, own.name):
        return found
    if found.covariates is not None or found.offset is not None:
        raise RunError(
            f"--data {data} would have covariates or size factors by other rows than those of {own.name}, which the "
            "model was trained on: train on both in one file"
        )
    if isinstance(found, Reals):
        raise RunError(
            f"--data {data} is a table, whose columns would be standardized by other rows than those of {own.name}, "
            "which the model was trained on: train on both in one table"
        )
    if isinstance(found, Counts):
        _require_columns(found, load(own.name, own.root, own.kind, own.selection), data)
    return found


def _require_columns(found: Counts, trained_on: Observations, data: str | None) -> None:
    """Refuses a table whose columns are others than those that a model was trained on, or in another order."""
    expected = getattr(trained_on, "columns", ())
    for place, (name, other) in enumerate(zip_longest(expected, found.columns), start=1):
        if name != other:
            raise RunError(
                f"column {place} of --data {data} is {other}, and was {name} in {trained_on.name}, which the model was "
                "trained on: bring the columns into its order"
            )


def load_run(folder: Path, observations: Observations) -> GuidedVAE:
    """The trained model of a finished run."""
    path = RunFolder(folder).weights
    if not path.exists():
        raise RunError(f"{folder} holds no finished run: it has no {path.name}")
    return load_weights(folder, path, observations)


def load_weights(folder: Path, path: Path, observations: Observations) -> GuidedVAE:
    """The model of the run in a folder with the weights of a file, read without executing anything from it."""
    settings = read_config(folder)
    vae = model_for(settings.model, observations, settings.train.epochs).to(dtype_of(settings.train))
    try:
        fill(vae, load_file(path), path)
    except FileNotFoundError:
        raise RunError(f"there are no weights in {path}") from None
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    except RuntimeError as error:
        raise RunError(
            f"the model in {folder} does not fit examples of shape {tuple(observations.event_shape)}: {error}"
        ) from None
    return vae.eval()


def read_config(folder: Path) -> Settings:
    """The settings of the run in a folder."""
    path = RunFolder(folder).config
    if not path.exists():
        raise RunError(f"{folder} holds no run: it has no {path.name}")
    try:
        return read_settings(path)
    except UnknownSettingError as error:
        raise RunError(f"{error}. The run was made by another version of silentgrad, which can read it") from error
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"cannot read {path}: {reason}; put it back from a copy") from error
