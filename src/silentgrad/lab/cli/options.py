"""Checks of what commands are told, before they begin to compute, and the folders of those that are told none."""

from pathlib import Path

from silentgrad.lab.data.catalogue import NAMES
from silentgrad.lab.settings import ConfigError


def require_output(path: Path, suffix: str, folder_is_made: bool = False) -> None:
    """Refuses a file that could not be written at the end; the message names --output."""
    if folder_is_made:
        require_folder(path.parent, "--output")
    if path.suffix != suffix:
        raise ConfigError(f"--output has to be a {suffix} file, got {path}")
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder: give a {suffix} file")
    if not folder_is_made and not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}")


def require_folder(path: Path, option: str = "--folder") -> None:
    """Refuses a place where no run can be kept: a file stands in the way, or Lightning cannot read the name."""
    if "::" in str(path):
        raise ConfigError(f"{option} {path}: a name with :: is taken for an address; choose another")
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"{option} {path}: {place} is a file, not a folder")
            return


def stem_of(name: str) -> str:
    """The name of a dataset's runs: its own, or the last part of its path."""
    return name if name in NAMES else Path(name).stem


def next_folder(name: str) -> Path:
    """The first of runs/NAME-001, runs/NAME-002, ... that does not exist, by the name or path of the data."""
    number = 1
    while (folder := Path("runs") / f"{stem_of(name)}-{number:03}").exists():
        number += 1
    return folder
