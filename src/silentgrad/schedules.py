"""Schedules: pure functions from an epoch, counted from 1, to a value."""

from collections.abc import Callable

from silentgrad.errors import DomainError

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """The same value for ever."""
    return lambda epoch: value


def linear_decay(rate: float) -> Schedule:
    """max(0, 1 - epoch * rate): the weight of the linear decoder in Algorithm 1.

    Example:
        >>> [linear_decay(0.25)(epoch) for epoch in (1, 2, 4, 5)]
        [0.75, 0.5, 0.0, 0.0]
    """
    if not rate >= 0:
        raise DomainError(f"an annealing rate cannot be negative, got {rate}")
    return lambda epoch: max(0.0, 1.0 - epoch * rate)


def geometric(start: float, factor: float, floor: float) -> Schedule:
    """max(floor, start * factor^(epoch - 1)): for a temperature or a decoder's variance.

    Example:
        >>> [round(geometric(0.3, 0.7, 0.1)(epoch), 3) for epoch in (1, 2, 10)]
        [0.3, 0.21, 0.1]
    """
    if not (start > 0 and floor > 0 and 0 < factor <= 1):
        raise DomainError(f"expected positive start and floor and a factor in (0, 1], got {start}, {floor}, {factor}")
    return lambda epoch: max(floor, start * factor ** (epoch - 1))
