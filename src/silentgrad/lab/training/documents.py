"""Settings out of YAML files: recipes, and the `config.yaml` of runs."""

from functools import cache
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentError, ArgumentParser

from silentgrad.lab.runs.documents import read_yaml
from silentgrad.lab.training.config import GROUPS, Settings
from silentgrad.lab.training.messages import plainly
from silentgrad.lab.training.ranges import ConfigError


class UnknownSettingError(ConfigError):
    """A file holds a setting that this version does not have."""


def read_settings(path: Path) -> Settings:
    """The settings in a recipe or a run's `config.yaml`; what the file leaves out is the default.

    Raises:
        ConfigError: The file is no YAML, or holds something else than settings, or no run can be made with them.
    """
    try:
        content = read_yaml(path)
    except RecursionError:
        raise ConfigError(f"cannot read {path}: it is nested too deeply") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        settings = _settings(content)
        settings.validate()
    except ConfigError as error:
        raise type(error)(f"{path}: {error}") from None
    return settings


def _settings(content: object) -> Settings:
    """Settings from what a YAML file holds, converted and checked as the command line does it."""
    if not isinstance(content, dict):
        raise ConfigError(f"expected groups of settings, {', '.join(GROUPS)}; found {type(content).__name__}")
    _require_known("", content, list(GROUPS))
    for name, group in GROUPS.items():
        _require_known(f"{name}.", content.get(name, {}), list(group.__dataclass_fields__))
    try:
        parsed = _parser().instantiate(_parser().parse_object(content))
    except ArgumentError as error:
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
