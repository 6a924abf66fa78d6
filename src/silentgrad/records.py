"""The records a training run leaves on disk, read back without any model code.

A run is a folder. `config.yaml` and `metrics.csv` make it one; `summary.json`, `environment.json` and
`pictures.safetensors` are empty for a run that has not come so far.
"""

import csv
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from silentgrad.errors import SilentgradError

Metrics = dict[str, list[float | None]]

_T = TypeVar("_T")


class RecordError(SilentgradError):
    """A folder is no run, or one of its files cannot be read."""


@dataclass(frozen=True)
class Run:
    """One training run as its folder tells it.

    Args:
        folder: Where it was read from.
        config: The resolved settings.
        metrics: One list per column of `metrics.csv`, one entry per epoch, None for an empty cell.
        summary: The final figures.
        environment: Versions, device, git.
        pictures: Images `(n, channels, height, width)`: `originals`, `means`, `stds`, `samples`.
    """

    folder: Path
    config: dict[str, Any]
    metrics: Metrics
    summary: dict[str, Any]
    environment: dict[str, Any]
    pictures: dict[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Reads a run's folder.

        Raises:
            RecordError: The folder is missing, is no run, or holds a damaged file.
        """
        if not folder.is_dir():
            raise RecordError(f"{folder} is no folder")
        for name in ("config.yaml", "metrics.csv"):
            if not (folder / name).is_file():
                raise RecordError(f"{folder} is no run: it has no {name}")
        return cls(
            folder=folder,
            config=_parsed(folder / "config.yaml", _yaml),
            metrics=_parsed(folder / "metrics.csv", _csv),
            summary=_parsed_if_there(folder / "summary.json", _json),
            environment=_parsed_if_there(folder / "environment.json", _json),
            pictures=_parsed_if_there(folder / "pictures.safetensors", _pictures),
        )


def read_json(path: Path) -> dict[str, Any]:
    """Named values from a JSON file.

    Raises:
        RecordError: The file is missing or damaged.
    """
    return _parsed(path, _json)


def write_json_atomically(path: Path, obj: object) -> None:
    """Writes JSON so that a reader finds the old file or the new one, never half of it."""
    write_atomically(path, (json.dumps(obj, indent=2) + "\n").encode())


def write_tensors_atomically(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file, whole or not at all."""
    write_atomically(path, save({name: value.contiguous() for name, value in tensors.items()}, metadata))


def write_atomically(path: Path, content: bytes) -> None:
    """Writes beside `path`, then moves over it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _parsed(path: Path, parse: Callable[[Path], _T]) -> _T:
    try:
        return parse(path)
    except (OSError, ValueError, csv.Error, yaml.YAMLError, SafetensorError) as error:
        raise RecordError(f"cannot read {path}: {error}") from error


def _parsed_if_there(path: Path, parse: Callable[[Path], dict[str, _T]]) -> dict[str, _T]:
    return _parsed(path, parse) if path.exists() else {}


def _yaml(path: Path) -> dict[str, Any]:
    return _mapping(yaml.safe_load(path.read_text(encoding="utf-8")))


def _json(path: Path) -> dict[str, Any]:
    return _mapping(json.loads(path.read_text(encoding="utf-8")))


def _mapping(content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"expected named values, found {type(content).__name__}")
    return content


def _csv(path: Path) -> Metrics:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        if "epoch" not in names:
            raise ValueError("the first line names no column 'epoch'")
        columns: Metrics = {name: [] for name in names}
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"line {rows.line_num} has {len(row)} cells, expected {len(columns)}")
            for column, cell in zip(columns.values(), row, strict=True):
                column.append(float(cell) if cell.strip() else None)
    return columns


def _pictures(path: Path) -> dict[str, Tensor]:
    pictures = load_file(path)
    for name, images in pictures.items():
        if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
            raise ValueError(f"{name} has shape {tuple(images.shape)}, expected (n, 1 or 3, height, width)")
    return pictures
