"""The numbers that an option may take, and the message about one that it may not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from silentgrad.errors import DomainError


class ConfigError(DomainError):
    """A setting has a value that no run can be made with."""


@dataclass(frozen=True)
class Range:
    """Finite numbers within bounds.

    Args:
        least: The lower bound.
        most: The upper bound.
        above: Whether the lower bound itself is excluded.
    """

    least: int
    most: int | None = None
    above: bool = False

    def __contains__(self, value: float) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if self.most is not None and value > self.most:
            return False
        if self.above:
            return value > self.least
        return value >= self.least

    def bound(self, value: float) -> str:
        """The bound that a value outside breaks.

        Example:
            >>> Range(1).bound(0), Range(0, 1, above=True).bound(0.0), Range(0, 1).bound(2.5)
            ('at least 1', 'above 0', 'at most 1')
        """
        if self.most is not None and value > self.most:
            return f"at most {self.most}"
        if self.above:
            return f"above {self.least}"
        return f"at least {self.least}"


COUNT = Range(1, 2**31 - 1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above=True)
SHARE = Range(0, 1, above=True)
SEED = Range(0, 2**63 - 1)  # what torch's generators take

RANGES: dict[str, Range] = {
    "data.batch_size": COUNT,
    "model.latent_dim": COUNT,
    "model.categories": Range(2),
    "model.prior_components": COUNT,
    "model.components": COUNT,
    "model.hidden": COUNT,
    "model.channels": COUNT,
    "model.temperature": POSITIVE,
    "model.temperature_start": POSITIVE,
    "model.temperature_factor": SHARE,
    "model.variance": POSITIVE,
    "model.variance_start": POSITIVE,
    "model.variance_factor": SHARE,
    "model.guided": POSITIVE,
    "model.guide_draws": COUNT,
    "model.cutoff": COUNT,
    "model.kl_weight": NOT_NEGATIVE,
    "model.kl_warmup": Range(0, 1),
    "train.epochs": COUNT,
    "train.lr": POSITIVE,
    "train.lr_network": NOT_NEGATIVE,
    "train.lr_mean": NOT_NEGATIVE,
    "train.lr_precision": NOT_NEGATIVE,
    "train.warmup": NOT_NEGATIVE,
    "train.clip": NOT_NEGATIVE,
    "train.seed": SEED,
    "train.devices": COUNT,
    "train.keep": COUNT,
    "train.variance_every": NOT_NEGATIVE,
    "train.iwae_samples": COUNT,
}


def require(option: str, value: float | Sequence[float] | None, allowed: Range) -> None:
    """Refuses a number outside its range; each number of a list is looked at, and None is no number.

    Args:
        option: Name of the option, as the command line spells it.
        value: Value that it was given.
        allowed: Range of its values.

    Raises:
        ConfigError: The value lies outside.
    """
    if isinstance(value, Sequence):
        for number in value:
            require(option, number, allowed)
        return
    if value is None or value in allowed:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{option} has to be a finite number, got {value}")
    raise ConfigError(f"{option} has to be {allowed.bound(value)}, got {value}")


def require_ranges(group: str, config: Any) -> None:
    """Refuses options of a group, a dataclass, that lie outside their range, or lack a value that they have to have."""
    for name, setting in config.__dataclass_fields__.items():
        option, value = f"{group}.{name}", getattr(config, name)
        if value is None and setting.default is not None:
            raise ConfigError(f"--{option} has to have a value")
        if option in RANGES:
            require(f"--{option}", value, RANGES[option])


def require_shrinking(name: str, start: float | None, end: float) -> None:
    """Refuses an option of the model that starts below the value that it shrinks to."""
    if start is not None and start < end:
        raise ConfigError(f"--model.{name}_start has to be at least --model.{name}, {end}; got {start}")
