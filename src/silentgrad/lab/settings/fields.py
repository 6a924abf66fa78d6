"""Fields of settings: their values out of what was written, the range of numbers, and what an option belongs to."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import yaml  # type: ignore[import-untyped]

from silentgrad.errors import DomainError
from silentgrad.registry import did_you_mean

LEFT_OUT = "; null leaves it out"
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


class ConfigError(DomainError):
    """A setting has a value that no run can be made with."""


def converted(option: str, hint: Any, written: Any) -> Any:
    """Return the value of an option, of its type, from a word of the command line or from what a YAML file holds.

    Raises:
        ConfigError: It is no value of that type, or outside the range that stands beside the type.

    Example:
        >>> converted("--sizes", list[int] | None, "64,32"), converted("--rate", float, "1e-3")
        ([64, 32], 0.001)
        >>> converted("--leaves", Literal["exp", "constant"], "expo")
        Traceback (most recent call last):
        silentgrad.lab.settings.fields.ConfigError: --leaves: expo is none of exp, constant. Did you mean exp?
    """
    kinds, origin = get_args(hint), get_origin(hint)
    if NoneType in kinds:
        return None if written in (None, "null") else converted(option, kinds[0], written)
    if written is None:
        raise ConfigError(f"{option} has to have a value")
    if origin is Annotated:
        value = converted(option, kinds[0], written)
        require(option, value, kinds[1])
        return value
    if origin is list:
        return [converted(option, kinds[0], item) for item in _items(option, written)]
    if origin is tuple:  # what was given several times
        return tuple(converted(option, kinds[0], item) for item in written)
    if origin is Literal:
        if written not in kinds:
            raise ConfigError(f"{option}: {written} is none of {', '.join(kinds)}.{did_you_mean(str(written), kinds)}")
        return written
    try:
        return _scalar(hint, written)
    except (KeyError, ValueError, OverflowError):
        raise ConfigError(f"{option} has to be {KINDS[hint]}, got {written}") from None


def _items(option: str, written: Any) -> list[Any]:
    """Return the items of a list, which words may hold without brackets: 64,64 or [64,64]."""
    if isinstance(written, str):
        if not written.startswith("["):
            return [item.strip() for item in written.split(",")]
        with suppress(yaml.YAMLError, RecursionError):
            written = yaml.load(written, yaml.BaseLoader)  # which takes no item for more than text
    if not isinstance(written, list):
        raise ConfigError(f"{option} has to be a list, got {written}")
    return written


def _scalar(hint: Any, written: Any) -> Any:
    if hint is bool:
        return {"true": True, "false": False}[str(written).lower()]
    kinds = {int: str | int, float: str | int | float}.get(hint, str | Path)
    if isinstance(written, bool) or not isinstance(written, kinds):
        raise ValueError
    return hint(written)


@dataclass(frozen=True)
class Range:
    """Finite numbers within bounds; `above` excludes the lower bound itself."""

    least: int
    most: int | None = None
    above: bool = False

    def bound(self, value: float) -> str | None:
        """Return the bound that a value breaks; None if it lies inside.

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
Count = Annotated[int, COUNT]  # types of commands' arguments, as `converted` checks them
Seed = Annotated[int, SEED]


def require(option: str, value: float | Sequence[float] | None, allowed: Range, advice: str = "") -> None:
    """Refuse a number outside its range; each number of a list is looked at, and None is no number."""
    if isinstance(value, Sequence):
        for number in value:
            require(option, number, allowed)
    elif value is not None and (bound := allowed.bound(value)) is not None:
        raise ConfigError(f"{option} has to be {bound}, got {value}{advice}")


class Owner(NamedTuple):
    """The choice that an option belongs to."""

    words: str  # that a message says of the option where the choice was not made; `{model}` is the model
    chosen: Callable[[Any], bool]  # tells whether a model that has nothing left open made the choice


def one_of(**values: Sequence[str]) -> Owner:
    """Return the owner of options that come with any of these values of the model's settings."""
    choices = [f"--model.{name} {' or '.join(own)}" for name, own in values.items()]
    return Owner(
        f"is for {', or '.join(choices)}", lambda model: any(getattr(model, name) in values[name] for name in values)
    )


def option(default: Any, allowed: Range | None = None, of: Owner | None = None) -> Any:
    """Return a field of settings, with the docstring below it as its help; `of` is the choice that it belongs to."""
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
            if (allowed := setting.metadata.get("range")) is not None:
                name, advice = f"--{self._word}.{setting.name}", LEFT_OUT * (setting.default is None)
                require(name, getattr(self, setting.name), allowed, advice)
