"""Fields of settings: the range of their numbers, what they belong to, and the message about a number outside."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from silentgrad.errors import DomainError


class ConfigError(DomainError):
    """A setting has a value that no run can be made with."""


@dataclass(frozen=True)
class Range:
    """Finite numbers within bounds; `above` excludes the lower bound itself."""

    least: int
    most: int | None = None
    above: bool = False

    def bound(self, value: float) -> str | None:
        """The bound that a value breaks; None if it lies inside.

        Example:
            >>> Range(1).bound(0), Range(0, 1, above=True).bound(0.0), Range(0, 1).bound(2.5), Range(0).bound(0)
            ('at least 1', 'above 0', 'at most 1', None)
        """
        if isinstance(value, float) and not math.isfinite(value):
            return "a finite number"
        if self.most is not None and value > self.most:
            return f"at most {self.most}"
        if self.above and value <= self.least:
            return f"above {self.least}"
        if value < self.least:
            return f"at least {self.least}"
        return None


COUNT = Range(1, 2**31 - 1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above=True)
SHARE = Range(0, 1, above=True)
SEED = Range(0, 2**63 - 1)  # what torch's generators take


def require(option: str, value: float | Sequence[float] | None, allowed: Range) -> None:
    """Refuses a number outside its range; each number of a list is looked at, and None is no number."""
    if isinstance(value, Sequence):
        for number in value:
            require(option, number, allowed)
    elif value is not None and (bound := allowed.bound(value)) is not None:
        raise ConfigError(f"{option} has to be {bound}, got {value}")


class Owner(NamedTuple):
    """The choice that an option belongs to."""

    words: str  # that a message says of the option where the choice was not made; `{model}` is the model
    chosen: Callable[[Any], bool]  # tells whether a model that has nothing left open made the choice


def one_of(**values: Sequence[str]) -> Owner:
    """The owner of options that come with any of these values of the model's settings."""
    choices = [f"--model.{name} {' or '.join(own)}" for name, own in values.items()]
    return Owner(
        f"is for {', or '.join(choices)}", lambda model: any(getattr(model, name) in values[name] for name in values)
    )


def option(default: Any, allowed: Range | None = None, of: Owner | None = None) -> Any:
    """A field of settings whose values are restricted; the docstring below it is its help.

    Args:
        default: Its default.
        allowed: Range of its numbers.
        of: The choice that it belongs to; it is everybody's if absent.
    """
    metadata = {"range": allowed, "of": of}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Group:
    """Settings with a first word in common, none of them outside its range."""

    _word = ""

    def __init_subclass__(cls, word: str) -> None:
        cls._word = word

    def __post_init__(self) -> None:
        for setting in fields(self):
            name, value = f"--{self._word}.{setting.name}", getattr(self, setting.name)
            if value is None and setting.default is not None:
                raise ConfigError(f"{name} has to have a value")
            allowed = setting.metadata.get("range")
            if allowed is not None:
                require(name, value, allowed)
