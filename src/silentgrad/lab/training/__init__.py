"""Training on Lightning's Trainer.

Settings are there at once. What needs Lightning is imported when it is first asked for, since that takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from silentgrad.lab.training.config import DataConfig, ModelConfig, Settings, TrainConfig

if TYPE_CHECKING:
    from silentgrad.lab.training.build import build_model
    from silentgrad.lab.training.loading import load_run, load_weights, read_config
    from silentgrad.lab.training.loop import DivergedError, TrainingPlan
    from silentgrad.lab.training.run import train_model
    from silentgrad.lab.training.saving import RunError

_LATER = {
    "DivergedError": "loop",
    "RunError": "saving",
    "TrainingPlan": "loop",
    "build_model": "build",
    "load_run": "loading",
    "load_weights": "loading",
    "read_config": "loading",
    "train_model": "run",
}

__all__ = [
    "DataConfig",
    "DivergedError",
    "ModelConfig",
    "RunError",
    "Settings",
    "TrainConfig",
    "TrainingPlan",
    "build_model",
    "load_run",
    "load_weights",
    "read_config",
    "train_model",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
