"""What a run needs of the machine and of its data, asked before the run's folder is made."""

import logging
import warnings

import lightning
from lightning.fabric.utilities.exceptions import MisconfigurationException

from silentgrad.lab.data import Observations
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.loader import Batches
from silentgrad.lab.training.config import Settings, TrainConfig
from silentgrad.lab.training.ranges import ConfigError

REFUSALS = (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError)


def require_machine(train: TrainConfig, prefix: str = "--train.") -> None:
    """Refuses accelerators, devices and a precision that Lightning finds no way to use here.

    Args:
        train: The settings that are asked for.
        prefix: How the command line's options begin.

    Raises:
        ConfigError: It says what Lightning says.
    """
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            lightning.Trainer(
                accelerator=train.accelerator,
                devices=train.devices,
                precision=train.precision,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
    except REFUSALS as error:
        raise ConfigError(
            f"{prefix}accelerator {train.accelerator} (devices {train.devices}, precision {train.precision}) is not "
            f"to be had on this machine: {error}"
        ) from error
    finally:
        log.setLevel(level)


def require_shares(settings: Settings, observations: Observations) -> None:
    """Refuses a batch size that would leave a process without rows.

    Raises:
        ConfigError: It names the options.
    """
    size, processes = settings.data.batch_size, settings.train.devices
    try:
        Batches(observations.rows("train"), size, shuffle=False, seed=0, world_size=processes)
    except DataError as error:
        raise ConfigError(f"--data.batch_size {size} with --train.devices {processes}: {error}") from None
