"""Settings in words: out of YAML files, which are recipes and runs' `config.yaml`, and as the command that has them."""

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from silentgrad.lab.settings.fields import ConfigError, converted
from silentgrad.lab.settings.options import GROUPS, Settings
from silentgrad.lab.store.files import read_yaml


class UnknownSettingError(ConfigError):
    """A file holds a setting that this version does not have."""


def read_settings(path: Path) -> Settings:
    """Return the settings in a recipe or a run's `config.yaml`; what the file leaves out is the default.

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
    """Return settings from what a YAML file holds, converted and checked as the command line does it."""
    parts = _known("", content, GROUPS)
    groups = {}
    for name, group in GROUPS.items():
        hints = {field.name: field.type for field in fields(group)}
        given = _known(f"{name}.", parts.get(name, {}), hints)
        groups[name] = group(**{key: converted(f"--{name}.{key}", hints[key], own) for key, own in given.items()})
    return Settings(**groups)


def _known(prefix: str, content: object, names: Collection[str]) -> dict[str, Any]:
    """Return named values, none of which has another name than these."""
    if not isinstance(content, dict):
        raise ConfigError(f"expected settings {prefix}NAME, found {type(content).__name__}")
    for key in content:
        if key not in names:
            raise UnknownSettingError(f"there is no setting {prefix}{key}")
    return content


def with_options(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return settings with values of some options, each named as on the command line."""
    groups = settings._asdict()
    for option, value in values.items():
        group, _, name = option.partition(".")
        groups[group] = replace(groups[group], **{name: value})
    return Settings(**groups)


def train_command(settings: Settings) -> str:
    """Return the `silentgrad train` with exactly these settings: the data's name, and all options that are no default.

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
    """Return an option and its value: two words, but one where the value would be taken for an option."""
    return [f"--{name}={word}"] if word.startswith("-") else [f"--{name}", word]


def _word(value: object) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, bool | list) or value is None:
        return json.dumps(value)
    return str(value)
