"""Weights from a file into a model: the numbers as they are, or a refusal."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from silentgrad.errors import SilentgradError
from silentgrad.guided import GuidedVAE
from silentgrad.lab.training.config import TrainConfig


class WeightsError(SilentgradError):
    """A file's weights are not those of the model."""


def dtype_of(train: TrainConfig) -> torch.dtype:
    """The type of the weights that training leaves: mixed precision keeps them in single."""
    if train.precision == "64-true":
        return torch.float64
    return torch.float32


def fill(vae: GuidedVAE, weights: Mapping[str, Tensor], path: Path) -> None:
    """Loads weights into a model, without converting any.

    Args:
        vae: The model, in the type that its weights have to have.
        weights: Weights by name.
        path: File that they come from, for the message.

    Raises:
        WeightsError: A weight is of another type than the model's, or is not finite.
        RuntimeError: Names or shapes differ, as torch says it.
    """
    for name, own in vae.state_dict().items():
        weight = weights.get(name, own)
        if weight.dtype != own.dtype:
            raise WeightsError(f"{path}: {name} is {_name(weight)}, but the run's configuration says {_name(own)}")
        if not weight.isfinite().all():
            raise WeightsError(f"{path}: {name} holds numbers that are not finite; its run has to be made again")
    vae.load_state_dict(weights)


def _name(weight: Tensor) -> str:
    return str(weight.dtype).removeprefix("torch.")
