"""Datasets by name, and the splits that every figure rests on.

The splits never depend on the machine or on a random state:

| dataset | train | validation | test |
|---|---|---|---|
| `digits` | 1297 | 250 | 250, by a fixed permutation |
| `mnist`, `fashion-mnist` | first 55,000 | last 5,000 training images | canonical, 10,000 |
| `cifar10` | first 45,000 | last 5,000 training images | canonical, 10,000 |
| `imagenet32`, `imagenet64` | the rest | last tenth of training, at most 5,000 | the official validation file |
| a folder or an array | 80 % | 10 % | 10 %, by a fixed permutation |

CIFAR-10 that is there only in part keeps its last tenth for validation. A `.npy` file above 2 GiB stays on disk, which
a permutation would not allow, so it is cut in the order of the file, with a warning.
"""

import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data import formats, sources
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.images import Images

Files = Mapping[str, Path]
Reader = Callable[[Files], tuple[Tensor, Tensor]]  # -> all training images, test images
_HELD_OUT = 5000
_IN_MEMORY = 2**31  # bytes of a memory-mapped array that may be copied, in order to permute it


class Row(NamedTuple):
    """What the catalogue knows about one dataset."""

    name: str
    shape: tuple[int, int, int]
    levels: int
    files: str
    where: str


def load(name: str, root: Path | None = None) -> Images:
    """A dataset by name, or from a path to a folder of images or to a `.npy` or `.npz` file.

    Args:
        name: One of `NAMES`, or a path.
        root: Folder that holds the datasets; `$SILENTGRAD_DATA` or the cache if absent. What is missing is downloaded.

    Raises:
        DataError: No such dataset, or its files are missing or damaged.

    Example:
        >>> load("digits").train.shape
        torch.Size([1297, 1, 8, 8])
    """
    if name == "digits":
        return _digits()
    if name in sources.SOURCES:
        return _read(name, sources.locate(name, root or sources.default_root()))
    return _from_path(name)


def describe(root: Path | None = None) -> list[Row]:
    """Every dataset with its shape and whether its files are here; nothing is downloaded."""
    rows = [Row("digits", (1, 8, 8), 17, "none", "scikit-learn")]
    return rows + [_row(name, root or sources.default_root()) for name in _SHAPES]


def check(name: str, root: Path | None = None) -> str:
    """Verifies the files of a dataset, reads all of them, and says what is there; nothing is downloaded."""
    root = root or sources.default_root()
    files = sources.find(name, root) if name in sources.SOURCES else {}
    if files is None:
        raise sources.missing(name, root)
    images = _read(name, files) if files else load(name)
    splits = f"{len(images.train)} + {len(images.valid)} + {len(images.test)} images"
    shape = "x".join(map(str, images.event_shape))
    origin = f"{len(files)} files in {next(iter(files.values())).parent}" if files else "no files to verify"
    return f"{name}: {splits} (train + validation + test) of {shape}, {images.levels} levels; {origin}"


def _row(name: str, root: Path) -> Row:
    wanted = ", ".join(sources.SOURCES[name][0].required)
    try:
        files = sources.find(name, root)
    except DataError as error:
        return Row(name, _SHAPES[name], 256, wanted, str(error))
    if files is None:
        return Row(name, _SHAPES[name], 256, wanted, "not found")
    return Row(name, _SHAPES[name], 256, ", ".join(files), str(next(iter(files.values())).parent))


def _read(name: str, files: Files) -> Images:
    train, test = _READERS[name](files)
    cut = len(train) - min(_HELD_OUT, len(train) // 10)
    return _images(name, (train[:cut], train[cut:], test))


def _mnist(files: Files) -> tuple[Tensor, Tensor]:
    train, test = (formats.read_idx(files[f"{part}-images-idx3-ubyte.gz"]) for part in ("train", "t10k"))
    return train, test


def _cifar10(files: Files) -> tuple[Tensor, Tensor]:
    read = formats.read_cifar_binary if "test_batch.bin" in files else formats.read_cifar_pickle
    test = next(path for file, path in files.items() if file.startswith("test"))
    return torch.cat([read(path) for path in _batches(files)]), read(test)


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


def _digits() -> Images:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # takes a second, which others need not pay

    images = _permuted(torch.from_numpy(load_digits().images.astype(np.uint8)).unsqueeze(1))
    return _images("digits", images.tensor_split((1297, 1547)), levels=17)


def _from_path(name: str) -> Images:
    path = Path(name)
    if path.is_dir():
        images = _permuted(formats.read_folder(path))
    elif path.suffix in (".npy", ".npz"):
        images = formats.read_array(path)
        if path.suffix == ".npz" or images.nbytes <= _IN_MEMORY:
            images = _permuted(images)
        else:
            warnings.warn(f"{path} is too large to permute and is split in its own order", stacklevel=3)
    else:
        raise DataError(_unknown(name))
    tenth = max(1, len(images) // 10)
    return _images(name, images.tensor_split((len(images) - 2 * tenth, len(images) - tenth)))


def _permuted(images: Tensor) -> Tensor:
    """In an order that is the same everywhere: numpy keeps this legacy generator's numbers for good."""
    return images[torch.from_numpy(np.random.RandomState(0).permutation(len(images)))]


def _images(name: str, splits: Sequence[Tensor], levels: int = 256) -> Images:
    train, valid, test = splits
    if not all(map(len, splits)):
        counts = f"{len(train)}, {len(valid)} and {len(test)}"
        raise DataError(f"{name}: expected images for train, validation and test, found {counts}")
    return Images(train, valid, test, levels, name)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, NAMES, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return (
        f"{name!r} is no dataset.{meant} There are {', '.join(NAMES)}; "
        "or give the path of a folder of images, a .npy or a .npz file."
    )
