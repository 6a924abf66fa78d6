"""Datasets by name, and the splits that every figure rests on.

The splits never depend on the machine or on a random state:

==========================  ============  =====================================  ============================
dataset                     train         validation                             test
==========================  ============  =====================================  ============================
`digits`                    1297          250                                    250, by a fixed permutation
`mnist`, `fashion-mnist`    first 55,000  last 5,000 training images             canonical, 10,000
`cifar10`                   first 45,000  last 5,000 training images             canonical, 10,000
`imagenet32`, `imagenet64`  the rest      last tenth of training, at most 5,000  the official validation file
a folder, an array, a
table or a sparse matrix    80 %          10 %                                   10 %, by a fixed permutation
==========================  ============  =====================================  ============================

CIFAR-10 that is there only in part keeps its last tenth for validation. A `.npy` file of images above 2 GiB stays on
disk, which a permutation would not allow, so it is cut in the order of the file, with a warning.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data import formats, sources
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.observations import Binarized, Counts, Levels, Observations, Reals
from silentgrad.lab.data.observing import is_counted, observe
from silentgrad.lab.data.order import cut, permuted, required
from silentgrad.lab.data.rows import Splits
from silentgrad.lab.data.tables import holds_images
from silentgrad.lab.hints import did_you_mean
from silentgrad.lab.kinds import Kind
from silentgrad.lab.selection import EVERYTHING, Selection

Files = Mapping[str, Path]
Reader = Callable[[Files], tuple[Tensor, Tensor]]  # -> all training images, test images
_HELD_OUT = 5000
_IN_MEMORY = 2**31  # bytes of a memory-mapped array that may be copied, in order to permute it


class Row(NamedTuple):
    """What the catalogue knows about one dataset.

    Args:
        name: Name of the dataset.
        shape: Channels, height and width of an image.
        levels: Number of levels of a pixel.
        files: Names of the files, separated by commas.
        where: Folder of the files, or why they are not there.
    """

    name: str
    shape: tuple[int, int, int]
    levels: int
    files: str
    where: str


def load(name: str, root: Path | None = None, kind: Kind = "auto", selection: Selection = EVERYTHING) -> Observations:
    """A dataset by name, or from a path to a folder of images or to a file of an array, a table or counts.

    Args:
        name: One of `NAMES`, or a path.
        root: Folder that holds the datasets; `$SILENTGRAD_DATA` or the cache if absent. What is missing is downloaded.
        kind: Kind of the rows; auto takes images in their levels, tables as real numbers, and sparse matrices and
            .h5ad files as counts.
        selection: What of a table or of counts is data, and what stands beside it.

    Raises:
        DataError: No such dataset, or its files are missing or damaged, or its rows are not of that kind, or an option
            is not meant for it.

    Example:
        >>> load("digits").train.shape
        torch.Size([1297, 1, 8, 8])
    """
    if _has_images(name):
        return _as_kind(load_images(name, root), kind, selection)
    return observe(name, kind, selection)


def kind_of(name: str, kind: Kind = "auto") -> type[Observations]:
    """What :func:`load` would give, without loading it; arguments are the same.

    Example:
        >>> kind_of("digits"), kind_of("cells.h5ad")
        (<class '...Levels'>, <class '...Counts'>)
    """
    if kind == "binarized":
        return Binarized
    if kind == "levels" or (kind == "auto" and _has_images(name)):
        return Levels
    if is_counted(Path(name), kind):
        return Counts
    return Reals


def _has_images(name: str) -> bool:
    return name == "digits" or name in sources.SOURCES or holds_images(Path(name))


def load_images(name: str, root: Path | None = None) -> Levels:
    """Images in levels, by name or from a path; arguments and errors are those of :func:`load`."""
    if name == "digits":
        return _digits()
    if name in sources.SOURCES:
        return _read(name, sources.locate(name, root or sources.default_root()))
    return _from_path(name)


def _as_kind(images: Levels, kind: Kind, selection: Selection) -> Observations:
    for option in selection.given:
        raise DataError(f"--data.{option} is for tables and counts, but {images.name} holds images: leave it out")
    if kind in ("auto", "levels"):
        return images
    if kind == "binarized":
        return Binarized(images.train, images.valid, images.test, images.name, levels=images.levels)
    raise DataError(f"--data.kind {kind} is for tables, but {images.name} holds images: choose levels or binarized")


def describe(root: Path | None = None) -> list[Row]:
    """Every dataset with its shape and whether its files are here; nothing is downloaded."""
    rows = [Row("digits", (1, 8, 8), 17, "none", "scikit-learn")]
    for name in _SHAPES:
        rows.append(_row(name, root or sources.default_root()))
    return rows


def check(name: str, root: Path | None = None) -> str:
    """Verifies the files of a dataset, reads all of them, and says what is there; nothing is downloaded."""
    if name not in sources.SOURCES:
        return f"{name}: {_content(load(name))}; no files to verify"
    root = root or sources.default_root()
    files = sources.find(name, root)
    if files is None:
        raise sources.missing(name, root)
    return f"{name}: {_content(_read(name, files))}; {len(files)} files in {_folder(files)}"


def _content(observations: Observations) -> str:
    """How many rows there are, and of which kind."""
    splits = f"{len(observations.train)} + {len(observations.valid)} + {len(observations.test)}"
    shape = "x".join(map(str, observations.event_shape))
    if isinstance(observations, Levels):
        return f"{splits} images (train + validation + test) of {shape}, {observations.levels} levels"
    return f"{splits} rows (train + validation + test) of {shape} numbers"


def _folder(files: Files) -> Path:
    first, *_ = files.values()
    return first.parent


def _row(name: str, root: Path) -> Row:
    wanted = ", ".join(sources.SOURCES[name][0].required)
    try:
        files = sources.find(name, root)
    except DataError as error:
        return Row(name, _SHAPES[name], 256, wanted, str(error))
    if files is None:
        return Row(name, _SHAPES[name], 256, wanted, "not found")
    return Row(name, _SHAPES[name], 256, ", ".join(files), str(_folder(files)))


def _read(name: str, files: Files) -> Levels:
    train, test = _READERS[name](files)
    last = len(train) - min(_HELD_OUT, len(train) // 10)
    return Levels(*required(name, Splits(train[:last], train[last:], test), "images"), name)


def _mnist(files: Files) -> tuple[Tensor, Tensor]:
    train = formats.read_idx(files["train-images-idx3-ubyte.gz"])
    test = formats.read_idx(files["t10k-images-idx3-ubyte.gz"])
    return train, test


def _cifar10(files: Files) -> tuple[Tensor, Tensor]:
    read, test = formats.read_cifar_pickle, "test_batch"
    if "test_batch.bin" in files:
        read, test = formats.read_cifar_binary, "test_batch.bin"
    return torch.cat(list(map(read, _batches(files)))), read(files[test])


def _imagenet(size: int) -> Reader:
    def read(files: Files) -> tuple[Tensor, Tensor]:
        return formats.read_imagenet(_batches(files), size), formats.read_imagenet([files["val_data.npz"]], size)

    return read


def _batches(files: Files) -> list[Path]:
    """The training batches in the order of their numbers: 10 comes after 9."""
    batches = [path for file, path in files.items() if "data_batch" in file]
    return sorted(batches, key=lambda path: int(path.stem.rpartition("_")[2]))


_READERS: Mapping[str, Reader] = {
    "mnist": _mnist,
    "fashion-mnist": _mnist,
    "cifar10": _cifar10,
    "imagenet32": _imagenet(32),
    "imagenet64": _imagenet(64),
}
_SHAPES: Mapping[str, tuple[int, int, int]] = {
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "imagenet32": (3, 32, 32),
    "imagenet64": (3, 64, 64),
}
NAMES = ("digits", *_READERS)


def _digits() -> Levels:
    images = permuted(_digit_images())  # a copy, so that nobody changes those of others
    return Levels(*Splits(*images.tensor_split((1297, 1547))), "digits", levels=17)


@cache
def _digit_images() -> Tensor:
    """The embedded digits, which scikit-learn reads out of a text: once, though a sweep has many runs."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # takes a second, which others need not pay

    return torch.from_numpy(load_digits().images.astype(np.uint8)).unsqueeze(1)


def _from_path(name: str) -> Levels:
    path = Path(name)
    if path.is_dir():
        images = permuted(formats.read_folder(path))
    elif path.suffix in (".npy", ".npz"):
        images = formats.read_array(path)
        if path.suffix == ".npz" or images.nbytes <= _IN_MEMORY:
            images = permuted(images)
        else:
            warnings.warn(f"{path} is too large to permute and is split in its own order", stacklevel=3)
    else:
        raise DataError(_unknown(name))
    return Levels(*cut(name, images, "images"), name)


def _unknown(name: str) -> str:
    return (
        f"{name!r} is no dataset.{did_you_mean(name, NAMES)} There are {', '.join(NAMES)}; "
        "or give the path of a folder of images, or of a .npy, .npz, .csv, .tsv, .parquet or .h5ad file."
    )
