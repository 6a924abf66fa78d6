"""Settings in words: out of YAML files, which are recipes and runs' `config.yaml`, and as the command that has them."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentError, ArgumentParser

from silentgrad.lab.settings.fields import ConfigError
from silentgrad.lab.settings.options import GROUPS, Settings
from silentgrad.lab.store.files import read_yaml
from silentgrad.registry import did_you_mean

UNION = r"(?s)Does not validate against any of the Union.*?- (.*?)(?:\. Got value: .*?)?\n.*Given value: (.*)"
CHOICE = r"Expected a typing\.Literal\[(.*?)\]\. Got value: (.*)"


class UnknownSettingError(ConfigError):
    """A file holds a setting that this version does not have."""


def read_settings(path: Path) -> Settings:
    """The settings in a recipe or a run's `config.yaml`; what the file leaves out is the default.

    Raises:
        ConfigError: The file is no YAML, or holds something else than settings, or a value outside its range.
    """
    try:
        content = read_yaml(path)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        return _settings(content)
    except ConfigError as error:
        raise type(error)(f"{path}: {error}") from None


def _settings(content: object) -> Settings:
    """Settings from what a YAML file holds, converted and checked as the command line does it."""
    if not isinstance(content, dict):
        raise ConfigError(f"expected groups of settings, {', '.join(GROUPS)}; found {type(content).__name__}")
    _require_known("", content, list(GROUPS))
    for name, group in GROUPS.items():
        _require_known(f"{name}.", content.get(name, {}), list(group.__dataclass_fields__))
    try:
        parsed = _parser().instantiate(_parser().parse_object(content))
    except (ArgumentError, OverflowError) as error:
        raise ConfigError(plainly(str(error))) from None
    return Settings(parsed.data, parsed.model, parsed.train)


@cache
def _parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    for name, group in GROUPS.items():
        parser.add_class_arguments(group, name)
    return parser


def _require_known(prefix: str, content: object, names: list[str]) -> None:
    """Refuses other names than those of settings, so that the parser gives no meaning to them."""
    if not isinstance(content, dict):
        raise ConfigError(f"expected settings {prefix}NAME, found {type(content).__name__}")
    for key in content:
        if key not in names:
            raise UnknownSettingError(f"there is no setting {prefix}{key}")


def plainly(message: str) -> str:
    r"""Tell a message of jsonargparse about a value in the user's terms.

    Example:
        >>> plainly("Parser key \"train.epochs\":\n  Expected a <class 'int'>. Got value: x")
        '--train.epochs: Expected a value of type int. Got value: x'
        >>> plainly("Parser key \"model.leaves\":\n  Expected a typing.Literal['exp', 'constant']. Got value: expo")
        '--model.leaves: expo is none of exp, constant. Did you mean exp?'
    """
    # Of a type and None, what is wrong with the type.
    message = re.sub(UNION, r"\1. Got value: \2", message)
    message = re.sub(r'Parser key "([^"]+)":\s*', r"--\1: ", message)
    message = re.sub(CHOICE, _choice, message)
    return re.sub(r"<class '(\w+)'>", r"value of type \1", message)


def _choice(found: re.Match[str]) -> str:
    """A value that is none of those to choose from."""
    names = found[1].replace("'", "").split(", ")
    given = re.sub(r"[\[\]']", "", found[2]).split(", ")
    wrong = next((word for word in given if word not in names), found[2])
    return f"{wrong} is none of {', '.join(names)}.{did_you_mean(wrong, names)}"


def with_options(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return settings with values of some options, each named as on the command line."""
    groups = settings._asdict()
    for option, value in values.items():
        group, _, name = option.partition(".")
        groups[group] = replace(groups[group], **{name: value})
    return Settings(**groups)


def train_command(settings: Settings) -> str:
    """The `silentgrad train` that has exactly these settings: the data's name, and every option that is no default.

    Example:
        >>> from silentgrad.lab.settings import DataConfig, ModelConfig, TrainConfig
        >>> train_command(Settings(DataConfig("my table.csv"), ModelConfig(hidden=[8, 8]), TrainConfig(epochs=5)))
        "silentgrad train --data.name 'my table.csv' --model.hidden '[8, 8]' --train.epochs 5"
    """
    words = ["silentgrad", "train", *_option("data.name", settings.data.name)]
    for group, kind in GROUPS.items():
        standard, given = kind(), getattr(settings, group)
        for option in fields(kind):
            value = getattr(given, option.name)
            if value != getattr(standard, option.name) and (group, option.name) != ("data", "name"):
                words += _option(f"{group}.{option.name}", _word(value))
    return shlex.join(words)


def _option(name: str, word: str) -> list[str]:
    """An option and its value: two words, but one where the value would be taken for an option."""
    return [f"--{name}={word}"] if word.startswith("-") else [f"--{name}", word]


def _word(value: object) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool | list) or value is None:
        return json.dumps(value)
    return str(value)
