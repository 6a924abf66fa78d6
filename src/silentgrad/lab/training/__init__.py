"""Training: one loop on Lightning's Fabric.

Settings are there at once. What needs Lightning is imported when it is first asked for, since that takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from silentgrad.lab.settings import DataConfig, ModelConfig, Settings, TrainConfig

if TYPE_CHECKING:
    from silentgrad.lab.training.checkpoints import RunError
    from silentgrad.lab.training.loading import load_run, load_weights, read_config
    from silentgrad.lab.training.loop import DivergedError, Loop
    from silentgrad.lab.training.run import train_model

_LATER = {"DivergedError": "loop", "Loop": "loop", "RunError": "checkpoints", "train_model": "run"}
_LATER |= dict.fromkeys(["load_run", "load_weights", "read_config"], "loading")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
