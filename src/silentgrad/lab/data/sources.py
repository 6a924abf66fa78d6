"""Where the files of each dataset come from: a folder of the user's, the cache, a mirror.

A file's identity is a checksum as pooch writes it (`md5:...`) or, for members of an archive that has only a checksum as
a whole, a size (`size:...`). Only image files are listed; no labels are used.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pooch  # type: ignore[import-untyped]

from silentgrad.lab.data.formats import DataError


class Remote(NamedTuple):
    """A file to download.

    Args:
        name: Name of the file.
        checksum: Checksum of its content, as pooch writes it.
    """

    name: str
    checksum: str


@dataclass(frozen=True)
class Source:
    """One form in which a dataset is distributed.

    Args:
        required: Names of the files and the identities accepted for each; none means any.
        optional: More files, used if present: a dataset may be there in part.
        folder: Folder that unpacking the official archive makes.
        mirrors: Addresses to which the name of a file is appended.
        archive: Archive that the mirrors hold instead of single files.
        hint: How else to come by the files.
    """

    required: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folder: str = "."
    mirrors: tuple[str, ...] = ()
    archive: Remote | None = None
    hint: str = ""

    @property
    def files(self) -> Mapping[str, tuple[str, ...]]:
        """Names of all files and the identities accepted for each."""
        return {**self.required, **self.optional}

    @property
    def downloads(self) -> list[Remote]:
        """The files to download; none if they have no checksum."""
        if self.archive is not None:
            return [self.archive]
        downloads = []
        for name, identities in self.required.items():
            if identities:
                downloads.append(Remote(name, identities[0]))
        return downloads

    def present(self, folder: Path) -> dict[str, Path]:
        """The files that a folder holds; empty if a required one is missing."""
        present = {}
        for name in self.files:
            path = folder / name
            if path.is_file():
                present[name] = path
        if self.required.keys() <= present.keys():
            return present
        return {}


def _numbered(pattern: str, last: int, identities: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """The batches of a dataset from the second on, with the identities accepted for each."""
    return {pattern.format(number): identities for number in range(2, last + 1)}


def _imagenet(size: int) -> tuple[Source, ...]:
    hint = (
        f"Downsampled ImageNet needs an account: log in at https://image-net.org/download-images.php, request the "
        f"{size}x{size} npz files (train_data_batch_1.npz to train_data_batch_10.npz, val_data.npz) and unpack them."
    )
    required: dict[str, tuple[str, ...]] = {"train_data_batch_1.npz": (), "val_data.npz": ()}
    return (Source(required, _numbered("train_data_batch_{}.npz", 10), hint=hint),)


_BINARY_BATCH = ("size:30730000",)

# The first source of a dataset is the one that is downloaded.
SOURCES: Mapping[str, tuple[Source, ...]] = {
    "mnist": (
        Source(
            {
                "train-images-idx3-ubyte.gz": ("md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",),
                "t10k-images-idx3-ubyte.gz": ("md5:9fb629c4189551a2d022fa330f9573f3",),
            },
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
        ),
    ),
    "fashion-mnist": (
        Source(
            {  # the second of each is Debian's, whose gzip header carries no file name
                "train-images-idx3-ubyte.gz": (
                    "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "md5:cf8536b0aa1a6ac5fa3f23001093305c",
                ),
                "t10k-images-idx3-ubyte.gz": (
                    "md5:bef4ecab320f06d8554ea6380940ec79",
                    "md5:f78720b4224f21cce2f2ccf2d7a94c9a",
                ),
            },
            mirrors=(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
            hint="Debian's package dataset-fashion-mnist has them too, in /usr/share/datasets/fashion-mnist.",
        ),
    ),
    "cifar10": (
        Source(
            {"data_batch_1.bin": _BINARY_BATCH, "test_batch.bin": _BINARY_BATCH},
            _numbered("data_batch_{}.bin", 5, _BINARY_BATCH),
            folder="cifar-10-batches-bin",
            mirrors=("https://www.cs.toronto.edu/~kriz/",),
            archive=Remote("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),
            hint="They are the members of cifar-10-binary.tar.gz; cifar-10-python.tar.gz, unpacked, will do as well.",
        ),
        Source(
            {"data_batch_1": (), "test_batch": ()},
            _numbered("data_batch_{}", 5),
            folder="cifar-10-batches-py",
        ),
    ),
    "imagenet32": _imagenet(32),
    "imagenet64": _imagenet(64),
}


def cache() -> Path:
    """The folder that downloads go to."""
    return Path(pooch.os_cache("silentgrad"))


def default_root() -> Path:
    """The folder of the datasets unless another is given: `$SILENTGRAD_DATA`, or else the cache."""
    return Path(os.environ.get("SILENTGRAD_DATA") or cache())


def locate(name: str, root: Path) -> dict[str, Path]:
    """Files of a dataset by their names, from `root/<name>/`, `root/`, the cache or a mirror, in this order.

    Raises:
        DataError: A file is not what its name says, or the dataset is nowhere to be had; the message then lists which
            files to put where.
    """
    files = find(name, root)
    if files is None:
        _download(name, root)
        files = find(name, root)
    if files is None:
        raise missing(name, root)
    return files


def find(name: str, root: Path) -> dict[str, Path] | None:
    """The files of a dataset that are on this machine, verified; None if a required one is missing."""
    for folder in (root / name, root, cache() / name):
        for source in SOURCES[name]:
            for place in (folder, folder / source.folder):
                files = source.present(place)
                if files and _all_genuine(name, source, files):
                    return files
    return None


def missing(name: str, root: Path, failures: Sequence[str] = ()) -> DataError:
    """The error for a dataset that is nowhere: which files to put where, and what was tried to get them."""
    source = SOURCES[name][0]
    lines = [f"{name} was not found. Put these files into {root / name}:"]
    for file in source.required:
        lines.append(f"    {file}")
    for file in source.optional:
        lines.append(f"    {file} (optional)")
    if source.hint:
        lines.append(source.hint)
    if failures:
        lines.append("Mirrors tried:")
    for failure in failures:
        lines.append(f"    {failure}")
    return DataError("\n".join(lines))


def _all_genuine(name: str, source: Source, paths: Mapping[str, Path]) -> bool:
    """Whether every file is the right one; False if they are another dataset's, which shares the names."""
    for file, path in paths.items():
        accepted = source.files[file]
        identities = _identities(path, accepted)
        if not accepted or identities.intersection(accepted):
            continue
        if _of_another_dataset(name, file, identities):
            return False
        found = ", ".join(sorted(identities))
        raise DataError(f"{path}: expected {' or '.join(accepted)}, found {found}; replace or remove it")
    return True


def _identities(path: Path, like: Iterable[str]) -> set[str]:
    """A file's own identities, of the same kinds as some others."""
    kinds = {identity.partition(":")[0] for identity in like}
    return {_identity(path, kind) for kind in kinds}


def _identity(path: Path, kind: str) -> str:
    if kind == "size":
        return f"size:{path.stat().st_size}"
    return f"{kind}:{pooch.file_hash(str(path), alg=kind)}"


def _of_another_dataset(name: str, file: str, identities: set[str]) -> bool:
    """Whether a file of that name and one of these identities belongs to another dataset."""
    for other, sources in SOURCES.items():
        for source in sources:
            if other != name and identities.intersection(source.required.get(file, ())):
                return True
    return False


def _download(name: str, root: Path) -> None:
    source = SOURCES[name][0]
    for remote in source.downloads:
        failures = []
        for mirror in source.mirrors:
            try:
                _retrieve(mirror, remote, cache() / name, source)
                break
            except (OSError, ValueError) as error:  # no network, no such file; a wrong checksum
                failures.append(f"{mirror + remote.name}: {error}")
        else:
            raise missing(name, root, failures)


def _retrieve(mirror: str, remote: Remote, folder: Path, source: Source) -> None:
    """Downloads one file, and unpacks it if it is an archive."""
    unpack = None
    if source.archive is not None:
        members = [f"{source.folder}/{file}" for file in source.files]
        unpack = pooch.Untar(members=members, extract_dir=".")
    pooch.retrieve(mirror + remote.name, remote.checksum, remote.name, folder, processor=unpack, progressbar=True)
