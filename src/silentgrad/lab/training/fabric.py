"""Devices, processes and precision: Lightning's Fabric, from the package that has nothing else of Lightning."""

import logging
import sys
import warnings
from typing import Any, cast

from silentgrad.lab.settings import ConfigError, ModelConfig, TrainConfig

# Fabric asks for torchmetrics' version by importing it, and with it transformers, SciPy and matplotlib: two seconds of
# every command. Only its detection of spikes has a use for that.
_NEEDLESS = "torchmetrics"
_blocked = _NEEDLESS not in sys.modules
if _blocked:
    sys.modules[_NEEDLESS] = cast(Any, None)
from lightning_fabric import Fabric  # noqa: E402
from lightning_fabric.loggers.tensorboard import TensorBoardLogger  # noqa: E402, F401
from lightning_fabric.strategies.ddp import DDPStrategy  # noqa: E402
from lightning_fabric.utilities.exceptions import MisconfigurationException  # noqa: E402
from lightning_fabric.utilities.rank_zero import rank_zero_only  # noqa: E402

if _blocked:
    del sys.modules[_NEEDLESS]

logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # no remarks about devices that are there
REFUSALS = (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError)


def first_process() -> bool:
    """Return True in the process that writes; Fabric starts the others with the same command."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def fabric_for(train: TrainConfig, model: ModelConfig | None = None, prefix: str = "--train.") -> Fabric:
    """Return Lightning's Fabric for devices, processes and precision; `prefix` is how options begin in print."""
    strategy: Any = "auto"
    if train.devices > 1 and model is not None:
        # A guide that has given way, and an encoder that is frozen, have parameters that take no part in the loss. To
        # look for them costs time at every step.
        strategy = DDPStrategy(find_unused_parameters=model.cutoff is not None or model.decoders.guided)
    try:
        with warnings.catch_warnings(action="ignore"):
            return Fabric(
                accelerator=train.accelerator, strategy=strategy, devices=train.devices, precision=train.precision
            )
    except REFUSALS as error:
        raise ConfigError(
            f"{prefix}accelerator {train.accelerator} (devices {train.devices}, precision {train.precision}) is not "
            f"to be had on this machine: {error}"
        ) from error
