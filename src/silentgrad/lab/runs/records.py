"""The records a training run leaves on disk, read back without any model code.

A run is a folder. `config.yaml` and `metrics.csv` make it one; a run that has not come so far has no `summary.json`,
`environment.json`, `pictures.safetensors` or `factors.json`.
"""

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from silentgrad.errors import SilentgradError
from silentgrad.lab.runs.documents import read_yaml
from silentgrad.lab.runs.factors import Factors
from silentgrad.lab.runs.folder import CONFIG, ENVIRONMENT, FACTORS, METRICS, PICTURES, SUMMARY, RunFolder
from silentgrad.lab.runs.pictures import RunPictures
from silentgrad.lab.runs.rows import Columns, csv_text, read_columns
from silentgrad.lab.runs.summary import Summary

Metrics = Columns
UNFINISHED = ".unfinished"  # ending of a file that is being written beside the one it will replace
REMEDIES = {
    CONFIG: "put it back from a copy",
    METRICS: "put it back from a copy, or go on with --resume true, which restores it from the last checkpoint",
    SUMMARY: "remove it and go on with --resume true, which measures the run again",
    ENVIRONMENT: "remove it: it only tells what the run was made on",
    PICTURES: "remove it, or make it again by silentgrad reconstruct",
    FACTORS: "remove it: the page is then without the latents",
}

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
        summary: The final figures; None if the run is not finished.
        environment: Versions, device, git.
        pictures: What there is to be looked at; None if the run is not finished, or is not of images.
        factors: What the latents come to; None if the run is not finished, or is not of a table.
    """

    folder: Path
    config: dict[str, Any]
    metrics: Metrics
    summary: Summary | None
    environment: dict[str, Any]
    pictures: RunPictures | None
    factors: Factors | None = None

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Reads a run's folder.

        Raises:
            RecordError: The folder is missing, is no run, or holds a damaged file.
        """
        if not folder.is_dir():
            raise RecordError(f"{folder} is no folder")
        run = RunFolder(folder)
        for path in (run.config, run.metrics):
            if not path.is_file():
                raise RecordError(f"{folder} is no run: it has no {path.name}")
        return cls(
            folder=folder,
            config=_parsed(run.config, _yaml),
            metrics=read_metrics(run.metrics),
            summary=_parsed_if_there(run.summary, _summary),
            environment=_parsed_if_there(run.environment, _json) or {},
            pictures=_parsed_if_there(run.pictures, _pictures),
            factors=_parsed_if_there(run.factors, _factors),
        )


def read_summary(path: Path) -> Summary:
    """The final figures of a run, from its `summary.json`.

    Raises:
        RecordError: The file is missing or damaged.
    """
    return _parsed(path, _summary)


def write_summary(path: Path, summary: Summary) -> None:
    """Writes the `summary.json` of a run."""
    write_json_atomically(path, summary.as_json())


def read_json(path: Path) -> dict[str, Any]:
    """Named values from a JSON file.

    Raises:
        RecordError: The file is missing or damaged.
    """
    return _parsed(path, _json)


def write_json_atomically(path: Path, obj: object) -> None:
    """Writes JSON so that a reader finds the old file or the new one, never half of it."""
    write_atomically(path, (json.dumps(obj, indent=2) + "\n").encode())


def write_rows_atomically(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes a CSV file, whole or not at all; the first row names the columns, of which later ones may lack some."""
    write_atomically(path, csv_text(rows).encode())


def write_tensors_atomically(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file, whole or not at all."""
    write_atomically(path, save({name: value.contiguous() for name, value in tensors.items()}, metadata))


def write_factors(path: Path, factors: Factors) -> None:
    """Writes the `factors.json` of a run."""
    write_json_atomically(path, factors.as_json())


def write_pictures(path: Path, pictures: RunPictures) -> None:
    """Writes the `pictures.safetensors` of a run."""
    write_tensors_atomically(path, pictures.tensors())


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Writes beside `path` and moves over it once the content is on disk: a kill leaves the old file or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            _flush_to_disk(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder_to_disk(path.parent)


def copy_atomically(source: Path, path: Path, change: Callable[[Path], None]) -> None:
    """Copies a file and changes the copy before it is in its place, which may be that of the file itself."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        shutil.copyfile(source, temporary)
        change(temporary)
        with temporary.open("rb+", buffering=0) as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder_to_disk(path.parent)


def append_durably(path: Path, content: bytes) -> None:
    """Appends to a file and returns when that is safe on disk; a kill may leave a part of the content."""
    with path.open("ab") as file:
        file.write(content)
        _flush_to_disk(file)


def leftovers(folder: Path) -> Iterator[Path]:
    """The files in a folder, and in those within, whose writing was cut short by a kill."""
    return folder.rglob(f".*{UNFINISHED}")


def _flush_to_disk(file: io.BufferedWriter) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder_to_disk(folder: Path) -> None:
    """Makes a move within a folder outlive a power failure, where the system can open folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_metrics(path: Path) -> Metrics:
    """The columns of a `metrics.csv`, without a last line that a kill cut short.

    Raises:
        RecordError: The file is missing or damaged.
    """
    return _parsed(path, _metrics)


def _parsed(path: Path, parse: Callable[[Path], _T]) -> _T:
    try:
        return parse(path)
    except (OSError, ValueError, csv.Error, yaml.YAMLError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        advice = ""
        if path.name in REMEDIES:
            advice = f"; {REMEDIES[path.name]}"
        raise RecordError(f"cannot read {path}: {reason}{advice}") from error


def _parsed_if_there(path: Path, parse: Callable[[Path], _T]) -> _T | None:
    if not path.exists():
        return None
    return _parsed(path, parse)


def _yaml(path: Path) -> dict[str, Any]:
    return _mapping(read_yaml(path))


def _json(path: Path) -> dict[str, Any]:
    return _mapping(json.loads(path.read_text(encoding="utf-8")))


def _summary(path: Path) -> Summary:
    return Summary.from_json(_json(path))


def _factors(path: Path) -> Factors:
    return Factors.from_json(_json(path))


def _mapping(content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"expected named values, found {type(content).__name__}")
    return content


def _metrics(path: Path) -> Metrics:
    columns = read_columns(path)
    if "epoch" not in columns:
        raise ValueError("the first line names no column 'epoch'")
    _require_ascending(columns["epoch"])
    return columns


def _require_ascending(epochs: list[float | None]) -> None:
    before = -1.0
    for line, epoch in enumerate(epochs, start=2):
        if epoch is None or not epoch > before:
            raise ValueError(f"line {line} is out of order: epoch {epoch} after epoch {before}")
        before = epoch


def _pictures(path: Path) -> RunPictures:
    return RunPictures.from_tensors(load_file(path))
