"""Files that a kill leaves whole: JSON, CSV, YAML and tensors, written atomically; reading names what is damaged."""

import contextlib
import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from torch import Tensor

from silentgrad.errors import SilentgradError
from silentgrad.lab.store.folders import REMEDIES

Metrics = dict[str, list[float | None]]  # column -> its cells, None for an empty one
UNFINISHED = ".unfinished"  # ending of a file that is being written beside the one it will replace
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # what formulas begin with  # noqa: RUF001
LARGEST = 2**64  # of whole numbers, exclusive
DEEPEST = 50  # levels of nesting in YAML; settings have three

_T = TypeVar("_T")


class RecordError(SilentgradError):
    """A folder is no run, or one of its files cannot be read."""


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write beside `path` and move over it once the content is on disk: a kill leaves the old file or the new."""
    with _beside(path) as temporary:
        temporary.write_bytes(content)


def copy_atomically(source: Path, path: Path, change: Callable[[Path], None]) -> None:
    """Copy a file and change the copy before it is in its place, which may be that of the file itself."""
    with _beside(path) as temporary:
        shutil.copyfile(source, temporary)
        change(temporary)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which then replaces that of `path`; nothing is left of it after an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_to_disk(path.parent)  # so that the move outlives a power failure


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from a file, or from a run's folder, as far as they ask for the same lock."""
    from filelock import FileLock  # which settings do not need

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with FileLock(lock):
        yield
        lock.unlink(missing_ok=True)  # whoever waits for it finds the work done


def remove_leftovers(folder: Path) -> None:
    """Remove the files in a folder, and in those within, whose writing was cut short by a kill."""
    for path in folder.rglob(f".*{UNFINISHED}"):
        path.unlink()


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parsed(path: Path, parse: Callable[[Path], _T]) -> _T:
    """Return what a file holds by its reader, whose errors become a RecordError with, for a run's files, the remedy."""
    try:
        return parse(path)
    except (OSError, ValueError, OverflowError, csv.Error, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        advice = f"; {REMEDIES[path.name]}" if path.name in REMEDIES else ""
        raise RecordError(f"cannot read {path}: {reason}{advice}") from error


def named_values(content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"expected named values, found {type(content).__name__}")
    return content


def parse_json(path: Path) -> dict[str, Any]:
    """Return the named values of a JSON file; ValueError for anything else, or a number that no figure can be."""
    try:
        return named_values(json.loads(path.read_text(encoding="utf-8"), parse_int=_whole))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(digits: str) -> int:
    number = int(digits)
    if not -LARGEST < number < LARGEST:
        raise ValueError(f"the number {digits[:10]}... is too large")
    return number


def read_json(path: Path) -> dict[str, Any]:
    """Return the named values of a JSON file, or raise RecordError if it is missing or damaged."""
    return parsed(path, parse_json)


def write_json_atomically(path: Path, content: object) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def write_tensors_atomically(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, whole or not at all."""
    from safetensors.torch import save  # here, since settings need this module and no tensors

    write_atomically(path, save({name: value.contiguous() for name, value in tensors.items()}, metadata))


class _Loader(yaml.SafeLoader):
    """Loader that refuses aliases, by which a small file may hold itself, or more than memory does."""

    depth = 0

    def compose_node(self, parent: object, index: object) -> object:
        if self.check_event(yaml.AliasEvent):
            raise ValueError(f"it has an alias, *{self.peek_event().anchor}: write out what that stands for")
        if self.depth == DEEPEST:
            raise ValueError("it is nested too deeply")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_yaml(path: Path) -> object:
    """Return what a YAML file holds. One that begins with `---` has to end with `...`, or else it was cut short."""
    text = path.read_text(encoding="utf-8")
    if text.startswith("---") and not text.endswith("\n...\n"):
        raise ValueError("it is cut short: the line `...` at its end is missing")
    return yaml.load(text, _Loader)


def write_yaml(content: object) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, explicit_start=True, explicit_end=True))


def csv_line(cells: Iterable[object]) -> str:
    r"""Return a row as a line of a file; text that a spreadsheet would compute gets an apostrophe in front.

    Example:
        >>> csv_line(["a, b", 1.5, None, "=1+1", "-3"])
        '"a, b",1.5,,\'=1+1,-3\n'
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(map(_inert, cells))  # so that a cell with \r is quoted too
    return text.getvalue().removesuffix("\r\n") + "\n"


def _inert(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula; names of columns and rows come from strangers' files."""
    if isinstance(cell, str) and cell.startswith(FORMULAS):
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
    return cell


def write_rows_atomically(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as CSV; the first one names the columns, of which later ones may lack some, but have no others."""
    names = list(rows[0])
    lines = [csv_line(names)]
    for row in rows:
        for unknown in row.keys() - rows[0].keys():
            raise ValueError(f"the first row names no column {unknown!r}")
        lines.append(csv_line([row.get(name, "") for name in names]))
    write_atomically(path, "".join(lines).encode())


def columns_of(lines: Iterable[str]) -> Metrics:
    """Return the columns of a CSV of numbers, without a last line that a kill cut short; None for an empty cell."""
    rows = csv.reader(line for line in lines if line.endswith("\n"))
    columns: Metrics = {name: [] for name in next(rows, [])}
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"line {rows.line_num} has {len(row)} cells, expected {len(columns)}")
        for column, cell in zip(columns.values(), row, strict=True):
            column.append(float(cell) if cell.strip() else None)
    return columns


def read_metrics(path: Path) -> Metrics:
    """Return the columns of a `metrics.csv`, or raise RecordError if it is missing or damaged."""
    return parsed(path, _metrics)


def _metrics(path: Path) -> Metrics:
    with path.open(newline="", encoding="utf-8") as file:
        columns = columns_of(file)
    if "epoch" not in columns:
        raise ValueError("the first line names no column 'epoch'")
    for line, (before, epoch) in enumerate(pairwise([-1.0, *columns["epoch"]]), start=2):
        if before is None or epoch is None or not epoch > before:
            raise ValueError(f"line {line} is out of order: epoch {epoch} after epoch {before}")
    return columns
