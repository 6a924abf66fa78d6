"""What tells several runs apart: their names, and the settings in which they differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from silentgrad.lab.runs.records import RecordError

Flat = dict[str, str]  # setting -> value, groups joined by a point


def run_names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or as much of their paths as tells them apart.

    Raises:
        RecordError: A folder was given twice.
    """
    paths = [folder.resolve() for folder in folders]
    longest = max(len(path.parts) for path in paths)
    for depth in range(1, longest + 1):
        names = [str(Path(*path.parts[-depth:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise RecordError("the same run was given twice")


def differences(configs: dict[str, dict[str, Any]]) -> dict[str, Flat]:
    """Run -> setting -> value, for the settings that are not the same in all runs; '' where a run has none."""
    flat: dict[str, Flat] = {}
    for run, config in configs.items():
        flat[run] = _flattened(config)
    differing = _differing(list(flat.values()))
    names = _short(differing)
    different: dict[str, Flat] = {}
    for run, settings in flat.items():
        different[run] = {name: settings.get(key, "") for key, name in zip(differing, names, strict=True)}
    return different


def _differing(configs: list[Flat]) -> list[str]:
    """The settings that are not the same in all configurations, in the order in which they occur."""
    values: dict[str, set[str]] = {}
    for config in configs:
        for key in config:
            values[key] = set()
    for key, seen in values.items():
        for config in configs:
            seen.add(config.get(key, ""))
    return [key for key, seen in values.items() if len(seen) > 1]


def _short(keys: list[str]) -> list[str]:
    """Settings by their last name, where no other setting has the same."""
    last = [key.rpartition(".")[2] for key in keys]
    names = []
    for key, name in zip(keys, last, strict=True):
        if last.count(name) > 1:
            name = key
        names.append(name)
    return names


def _flattened(config: dict[str, Any], prefix: str = "") -> Flat:
    flat: Flat = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat
