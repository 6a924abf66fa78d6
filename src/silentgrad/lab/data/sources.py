"""Where the files of each dataset come from: a folder of the user's, the cache, a mirror.

A file's identity is a checksum as pooch writes it (`md5:...`) or, for members of an archive that has only a checksum as
a whole, a size (`size:...`). Only image files are listed; no labels are used.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pooch  # type: ignore[import-untyped]

from silentgrad.lab.data.formats import DataError


@dataclass(frozen=True)
class Source:
    """One form in which a dataset is distributed.

    Args:
        required: File names and the identities accepted for each; none means any.
        optional: More of the same, used if present: a dataset may be there in part.
        folder: The folder that unpacking the official archive makes.
        mirrors: Addresses to which a file's name is appended.
        archive: Name and checksum of the archive that the mirrors hold instead of single files.
        hint: How else to come by the files.
    """

    required: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folder: str = "."
    mirrors: tuple[str, ...] = ()
    archive: tuple[str, str] | None = None
    hint: str = ""

    @property
    def remote(self) -> Mapping[str, str]:
        """What to download: file names and checksums."""
        files = [self.archive] if self.archive else [(file, known[0]) for file, known in self.required.items() if known]
        return dict(files)


def _imagenet(size: int) -> tuple[Source, ...]:
    hint = (
        f"Downsampled ImageNet needs an account: log in at https://image-net.org/download-images.php, request the "
        f"{size}x{size} npz files (train_data_batch_1.npz to train_data_batch_10.npz, val_data.npz) and unpack them."
    )
    more = {f"train_data_batch_{i}.npz": () for i in range(2, 11)}
    return (Source({"train_data_batch_1.npz": (), "val_data.npz": ()}, more, hint=hint),)


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
            {f"data_batch_{i}.bin": _BINARY_BATCH for i in range(2, 6)},
            folder="cifar-10-batches-bin",
            mirrors=("https://www.cs.toronto.edu/~kriz/",),
            archive=("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),
            hint="They are the members of cifar-10-binary.tar.gz; cifar-10-python.tar.gz, unpacked, will do as well.",
        ),
        Source(
            {"data_batch_1": (), "test_batch": ()},
            {f"data_batch_{i}": () for i in range(2, 6)},
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
    """Where datasets are looked for unless a folder is given: `$SILENTGRAD_DATA`, else the cache."""
    return Path(os.environ.get("SILENTGRAD_DATA") or cache())


def locate(name: str, root: Path) -> dict[str, Path]:
    """Files of a dataset by name, from `root/<name>/`, `root/`, the cache or a mirror, in this order.

    Raises:
        DataError: A file is not what its name says, or the dataset is nowhere to be had; the message then lists which
            files to put where.
    """
    found = find(name, root)
    if found is None:
        _download(name, root)
        found = find(name, root)
    if found is None:
        raise missing(name, root)
    return found


def find(name: str, root: Path) -> dict[str, Path] | None:
    """The files of a dataset that are on this machine, verified; None if a required one is missing."""
    for folder in (root / name, root, cache() / name):
        for source in SOURCES[name]:
            for place in (folder, folder / source.folder):
                paths = {file: place / file for file in (*source.required, *source.optional)}
                present = {file: path for file, path in paths.items() if path.is_file()}
                if source.required.keys() <= present.keys() and _all_genuine(name, source, present):
                    return present
    return None


def missing(name: str, root: Path, failures: Sequence[str] = ()) -> DataError:
    """The error for a dataset that is nowhere: which files to put where, and what was tried to get them."""
    source = SOURCES[name][0]
    lines = [f"{name} was not found. Put these files into {root / name}:"]
    lines += [f"    {file}" for file in source.required]
    lines += [f"    {file} (optional)" for file in source.optional]
    if source.hint:
        lines.append(source.hint)
    if failures:
        lines += ["Mirrors tried:", *(f"    {failure}" for failure in failures)]
    return DataError("\n".join(lines))


def _all_genuine(name: str, source: Source, paths: Mapping[str, Path]) -> bool:
    """Whether every file is the right one; False if they are another dataset's, which shares the names."""
    known = {**source.required, **source.optional}
    for file, path in paths.items():
        accepted = known[file]
        found = [_identity(path, kind) for kind in {identity.partition(":")[0] for identity in accepted}]
        if accepted and not set(found) & set(accepted):
            if any(set(found) & set(other.required.get(file, ())) for other in _others(name)):
                return False
            raise DataError(f"{path}: expected {' or '.join(accepted)}, found {', '.join(found)}; replace or remove it")
    return True


def _others(name: str) -> list[Source]:
    return [source for other, sources in SOURCES.items() if other != name for source in sources]


def _identity(path: Path, kind: str) -> str:
    return f"{kind}:{path.stat().st_size if kind == 'size' else pooch.file_hash(str(path), alg=kind)}"


def _download(name: str, root: Path) -> None:
    source = SOURCES[name][0]
    members = [f"{source.folder}/{file}" for file in (*source.required, *source.optional)]
    for file, checksum in source.remote.items():
        failures = []
        for mirror in source.mirrors:
            unpack = pooch.Untar(members=members, extract_dir=".") if source.archive else None
            try:
                pooch.retrieve(mirror + file, checksum, file, cache() / name, processor=unpack, progressbar=True)
                break
            except (OSError, ValueError) as error:  # no network, no such file; a wrong checksum
                failures.append(f"{mirror + file}: {error}")
        else:
            raise missing(name, root, failures)
