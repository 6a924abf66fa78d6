"""The command that makes a run with some settings."""

import json
import shlex
from dataclasses import fields

from silentgrad.lab.training.config import GROUPS, Settings


def train_command(settings: Settings) -> str:
    """The `silentgrad train` that has exactly these settings: the data's name, and every option that is no default.

    Example:
        >>> from silentgrad.lab.training.config import DataConfig, ModelConfig, TrainConfig
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
    if word.startswith("-"):
        return [f"--{name}={word}"]
    return [f"--{name}", word]


def _word(value: object) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool | list) or value is None:
        return json.dumps(value)
    return str(value)
