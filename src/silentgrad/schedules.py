"""Schedules: pure functions from an epoch, counted from 1, to a value; picklable, as models that hold them must be."""

from collections.abc import Callable
from functools import partial

from silentgrad.errors import DomainError

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """The same value for ever."""
    return partial(_constant, value)


def linear_decay(rate: float) -> Schedule:
    """max(0, 1 - epoch * rate): the weight of the linear decoder in Algorithm 1.

    Example:
        >>> [linear_decay(0.25)(epoch) for epoch in (1, 2, 4, 5)]
        [0.75, 0.5, 0.0, 0.0]
    """
    if not rate >= 0:
        raise DomainError(f"an annealing rate cannot be negative, got {rate}")
    return partial(_linear_decay, rate)


def geometric(start: float, factor: float, floor: float) -> Schedule:
    """max(floor, start * factor^(epoch - 1)): for a temperature or a decoder's variance.

    Example:
        >>> [round(geometric(0.3, 0.7, 0.1)(epoch), 3) for epoch in (1, 2, 10)]
        [0.3, 0.21, 0.1]
    """
    if not (start > 0 and floor > 0 and 0 < factor <= 1):
        raise DomainError(f"expected positive start and floor and a factor in (0, 1], got {start}, {floor}, {factor}")
    return partial(_geometric, start, factor, floor)


def _constant(value: float, epoch: int) -> float:
    return value


def _linear_decay(rate: float, epoch: int) -> float:
    return max(0.0, 1.0 - epoch * rate)


def _geometric(start: float, factor: float, floor: float, epoch: int) -> float:
    return max(floor, start * factor ** (epoch - 1))
