"""Settings in words: out of YAML files, which are recipes and runs' `config.yaml`, and as the command that has them."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from silentgrad.lab.settings.fields import ConfigError, converted
from silentgrad.lab.settings.options import GROUPS, DataConfig, Settings
from silentgrad.lab.store.files import read_yaml
from silentgrad.registry import did_you_mean

HINTS = {f"{group}.{setting.name}": setting.type for group, kind in GROUPS.items() for setting in fields(kind)}


class UnknownSettingError(ConfigError):
    """A file holds a setting that this version does not have."""


def read_settings(path: Path) -> Settings:
    """Return the settings in a recipe or a run's `config.yaml`; what the file leaves out is the default.

    Raises:
        ConfigError: The file is no YAML, or holds something else than settings, or a value outside its range.
    """
    try:
        return with_options(Settings(), read_options(path, HINTS))
    except ConfigError as error:
        raise type(error)(f"{path}: {error}") from None


def read_options(path: Path, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a YAML file, of their types; those of a group stand below its name.

    Raises:
        ConfigError: The file is no YAML, or holds something else.
    """
    try:
        content = read_yaml(path)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read it: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"expected settings by name, found {type(content).__name__}")
    groups = {name.partition(".")[0] for name in hints if "." in name}
    flat: dict[str, Any] = {}
    for name, value in content.items():
        inner = value if name in groups and isinstance(value, dict) else None
        flat |= {name: value} if inner is None else {f"{name}.{option}": own for option, own in inner.items()}
    for name in flat:
        if name not in hints:
            raise UnknownSettingError(f"there is no setting {name}.{did_you_mean(str(name), hints)}")
    return {name: converted(f"--{name}", hints[name], value) for name, value in flat.items()}


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
    standard = Settings(DataConfig(settings.data.name)).options()
    for name, value in settings.options().items():
        if value != standard[name]:
            words += _option(name, _word(value))
    return shlex.join(words)


def _option(name: str, word: str) -> list[str]:
    """Return an option and its value: two words, but one where the value would be taken for an option."""
    return [f"--{name}={word}"] if word.startswith("-") else [f"--{name}", word]


def _word(value: object) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, bool | list) or value is None:
        return json.dumps(value)
    return str(value)
