"""Where the files of each dataset come from: a folder of the user's, the cache, a mirror.

`sources.toml` lists the files and their identities: a checksum as pooch writes it (`md5:...`) or a size (`size:...`).
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pooch  # type: ignore[import-untyped]

from silentgrad.lab.data.files import DataError


@dataclass(frozen=True)
class Source:
    """One form in which a dataset is distributed."""

    required: Mapping[str, Sequence[str]]  # names of files and the identities accepted for each; none means any
    optional: Mapping[str, Sequence[str]] = field(default_factory=dict)  # patterns of names, used if present
    folder: str = "."  # that unpacking the official archive makes
    mirrors: Sequence[str] = ()  # addresses to which the name of a file is appended
    archive: Mapping[str, str] = field(default_factory=dict)  # that mirrors hold instead of files: name and checksum
    hint: str = ""  # how else to come by the files

    def found(self, place: Path) -> dict[str, Path]:
        """Return the files in a folder, verified; none if a required one is missing."""
        accepted = {path: own for each, own in {**self.optional, **self.required}.items() for path in place.glob(each)}
        found = {path.name: path for path in accepted if path.is_file()}
        if not self.required.keys() <= found.keys():
            return {}
        for path in found.values():
            _require_genuine(path, accepted[path])
        return found


SOURCES: Mapping[str, tuple[Source, ...]] = {
    name: tuple(Source(**entry) for entry in entries)
    for name, entries in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}


def cache() -> Path:
    return Path(pooch.os_cache("silentgrad"))


def _root(given: Path | None) -> Path:
    """Return the folder of the datasets: the one given, `$SILENTGRAD_DATA`, or else the cache."""
    return given or Path(os.environ.get("SILENTGRAD_DATA") or cache())


def locate(name: str, root: Path | None) -> dict[str, Path]:
    """Return files of a dataset by their names, from `root/<name>/`, `root/`, the cache or a mirror, in this order."""
    files = find(name, root)
    if not files:
        _download(name, _root(root))
        files = find(name, root)
    if not files:
        raise _missing(name, _root(root))
    return files


def find(name: str, root: Path | None) -> dict[str, Path]:
    """Return the files of a dataset that are on this machine, verified; none if a required one is missing."""
    for folder in (_root(root) / name, _root(root), cache() / name):
        for source in SOURCES[name]:
            if files := source.found(folder) or source.found(folder / source.folder):
                return files
    return {}


def _missing(name: str, root: Path, failures: Sequence[str] = ()) -> DataError:
    """Return the error for a dataset that is nowhere: which files to put where, and what was tried to get them."""
    source = SOURCES[name][0]
    lines = [f"{name} was not found. Put these files into {root / name}:"]
    lines += [f"    {file}" for file in source.required] + [f"    {file} (optional)" for file in source.optional]
    if source.hint:
        lines.append(source.hint)
    if failures:
        lines += ["Mirrors tried:", *(f"    {failure}" for failure in failures)]
    return DataError("\n".join(lines))


def _require_genuine(path: Path, accepted: Sequence[str]) -> None:
    """Refuse a file whose checksum or size is none of those accepted, if any are."""
    kinds = sorted({identity.partition(":")[0] for identity in accepted})
    found = [f"{kind}:{path.stat().st_size if kind == 'size' else pooch.file_hash(path, kind)}" for kind in kinds]
    if accepted and not set(found) & set(accepted):
        expected = " or ".join(accepted)
        raise DataError(f"{path}: expected {expected}, found {', '.join(found)}; replace or remove it")


def _download(name: str, root: Path) -> None:
    source = SOURCES[name][0]
    unpack = pooch.Untar(extract_dir=".") if source.archive else None
    single = {file: identities[0] for file, identities in source.required.items() if identities}
    for file, checksum in (source.archive or single).items():
        failures = []
        for mirror in source.mirrors:
            try:
                pooch.retrieve(mirror + file, checksum, file, cache() / name, processor=unpack, progressbar=True)
                break
            except (OSError, ValueError) as error:  # no network, no such file; a wrong checksum
                failures.append(f"{mirror + file}: {error}")
        else:
            raise _missing(name, root, failures)
