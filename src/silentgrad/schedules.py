"""Schedules: pure functions from a time, an epoch or a step, to a value; picklable, as models that hold them must be.

Time is counted from 1: in the n-th epoch, or at the n-th step, a schedule is asked at n. Who counts epochs may also ask
within one, at a fraction; n is then the end of the n-th.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from silentgrad.errors import DomainError

Schedule = Callable[[float], float]
Counted = Literal["epochs", "steps"]


def constant(value: float) -> Schedule:
    """Return the same value for ever."""
    return partial(_constant, value)


@dataclass(frozen=True)
class LinearDecay:
    """Weight that falls from 1 to 0 along a line; :func:`silentgrad.linear_decay` makes one.

    Args:
        length: The time in which the weight falls.
        counted: The unit of time. The first epoch or step then has weight 1, the k-th 1 - (k - 1) / length, an epoch
            the same from its beginning to its end. None for max(0, 1 - time / length), as Algorithm 1 has it.
    """

    length: float
    counted: Counted | None = None

    def __call__(self, time: float) -> float:
        if self.counted is not None:
            time = math.ceil(min(time, self.length + 1)) - 1
        return max(0.0, 1.0 - time / self.length)


def linear_decay(rate: float | None = None, *, steps: float | None = None, epochs: float | None = None) -> LinearDecay:
    """Weight that falls from 1 to 0 along a line: that of the linear decoder in Algorithm 1.

    Say the length in steps or in epochs. The guide that the schedule is for then refuses to be asked at the other.

    Args:
        rate: The weight's loss each time, at most 1, the first time included: the paper's formula, 1 - rate * time. A
            rate of 0 never reaches 0.
        steps: Number of steps with a weight above 0, which is 1 at the first.
        epochs: Number of epochs with a weight above 0, which is 1 in the first.

    Example:
        >>> [linear_decay(steps=1000)(step) for step in (1, 251, 501, 1001)]
        [1.0, 0.75, 0.5, 0.0]
        >>> [linear_decay(epochs=2)(epoch) for epoch in (1, 2, 3)]
        [1.0, 0.5, 0.0]
        >>> [linear_decay(0.25)(epoch) for epoch in (1, 2, 4, 5)]
        [0.75, 0.5, 0.0, 0.0]
    """
    if (rate, steps, epochs).count(None) != 2:
        raise DomainError("say how long the weight falls in one way: linear_decay(steps=1000), (epochs=10) or (rate)")
    if steps is not None:
        return LinearDecay(_length(steps, "steps"), "steps")
    if epochs is not None:
        return LinearDecay(_length(epochs, "epochs"), "epochs")
    if rate is None or not 0 <= rate <= 1:
        raise DomainError(
            f"an annealing rate is what the weight loses each time, between 0 and 1; got {rate}. For a length, say "
            "linear_decay(steps=...) or linear_decay(epochs=...)"
        )
    return LinearDecay(1 / rate if rate else math.inf)


def linear_rise(epochs: float, value: float = 1.0) -> Schedule:
    """Return a value that is reached from 0 along a line, and then kept: the warm-up of a KL divergence.

    Example:
        >>> [linear_rise(epochs=4)(epoch) for epoch in (1, 2, 4, 5)]
        [0.25, 0.5, 1.0, 1.0]
    """
    return partial(_linear_rise, _length(epochs, "epochs"), value)


def geometric(start: float, factor: float, floor: float) -> Schedule:
    """Return max(floor, start * factor^(epoch - 1)): for a temperature or a decoder's variance.

    Example:
        >>> [round(geometric(0.3, 0.7, 0.1)(epoch), 3) for epoch in (1, 2, 10)]
        [0.3, 0.21, 0.1]
    """
    if not (start > 0 and floor > 0 and 0 < factor <= 1):
        raise DomainError(f"expected positive start and floor and a factor in (0, 1], got {start}, {floor}, {factor}")
    return partial(_geometric, start, factor, floor)


def require_schedule(schedule: object) -> None:
    """Refuse what is no function of time, such as a number."""
    if not callable(schedule):
        raise DomainError(
            f"a schedule is a function of the epoch or the step, got {schedule!r}: silentgrad.schedules has "
            "linear_decay(steps=...), and constant(...) for a weight that never changes"
        )


def _length(value: float, counted: str) -> float:
    if not 0 < value < math.inf:
        raise DomainError(f"the number of {counted} has to be positive and finite, got {value}")
    return float(value)


def _constant(value: float, time: float) -> float:
    return value


def _linear_rise(length: float, value: float, time: float) -> float:
    return value * min(1.0, time / length)


def _geometric(start: float, factor: float, floor: float, epoch: float) -> float:
    return max(floor, start * factor ** (epoch - 1))
