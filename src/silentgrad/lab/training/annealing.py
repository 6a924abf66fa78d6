"""Settings that shrink over epochs."""

from silentgrad.lab.training.config import ModelConfig
from silentgrad.schedules import Schedule, constant, geometric


def variance_schedule(config: ModelConfig) -> Schedule:
    """The fixed variance over epochs."""
    return _shrinking(config.variance_start, config.variance_factor, config.variance)


def temperature_schedule(config: ModelConfig) -> Schedule:
    """The temperature of Gumbel-Softmax over epochs."""
    return _shrinking(config.temperature_start, config.temperature_factor, config.temperature)


def _shrinking(start: float | None, factor: float, end: float) -> Schedule:
    if start is None:
        return constant(end)
    return geometric(start, factor, end)
