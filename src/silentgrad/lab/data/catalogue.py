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
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data import images as img
from silentgrad.lab.data import sources
from silentgrad.lab.data.batches import Splits, cut, permutation, permuted
from silentgrad.lab.data.files import DataError
from silentgrad.lab.data.observations import Binarized, Counts, Levels, Observations, Reals
from silentgrad.lab.data.tabular import holds_images, is_counted, read
from silentgrad.lab.kinds import EVERYTHING, Kind, Selection
from silentgrad.registry import did_you_mean

Files = Mapping[str, Path]
Shape = tuple[int, int, int]
Reader = Callable[[Files], tuple[Tensor, Tensor]]  # -> all training images, test images
_HELD_OUT = 5000
_IN_MEMORY = 2**31  # bytes of a memory-mapped array that may be copied, in order to permute it


def load(name: str, root: Path | None = None, kind: Kind = "auto", selection: Selection = EVERYTHING) -> Observations:
    """Load a dataset by name, or from a path to a folder of images or to a file of an array, a table or counts.

    Args:
        name: One of `NAMES`, or a path.
        root: Folder that holds the datasets; `$SILENTGRAD_DATA` or the cache if absent. What is missing is downloaded.
        kind: Kind of the rows; auto takes images in their levels, tables as real numbers, and sparse matrices and
            .h5ad files as counts.
        selection: What of a table or of counts is data, and which is side information.

    Example:
        >>> load("digits").train.shape
        torch.Size([1297, 1, 8, 8])
    """
    if not _has_images(name):
        return read(Path(name), kind, selection)
    if selection.resize is not None and not Path(name).is_dir():
        raise DataError(f"--data.resize is for a folder of images, which {name} is not: leave it out")
    images = load_images(name, root, selection.resize)
    for option in set(selection.given) - {"resize"}:
        raise DataError(f"--data.{option} is for tables and counts, but {name} holds images: leave it out")
    if kind in ("auto", "levels"):
        return images
    if kind == "binarized":
        return Binarized(**{own.name: getattr(images, own.name) for own in fields(Binarized)})
    raise DataError(f"--data.kind {kind} is for tables, but {name} holds images: choose levels or binarized")


def kind_of(name: str, kind: Kind = "auto") -> type[Observations]:
    """Return the class of what :func:`load` would give, without loading it; arguments are the same.

    Example:
        >>> kind_of("digits"), kind_of("cells.h5ad")
        (<class '...Levels'>, <class '...Counts'>)
    """
    if kind == "binarized":
        return Binarized
    if kind == "levels" or (kind == "auto" and _has_images(name)):
        return Levels
    return Counts if is_counted(Path(name), kind) else Reals


def _has_images(name: str) -> bool:
    return name in NAMES or holds_images(Path(name))


def load_images(name: str, root: Path | None = None, resize: int | None = None) -> Levels:
    """Load images in levels, by name or from a path; arguments are those of :func:`load`."""
    if name == "digits":
        images = permuted(torch.from_numpy(_embedded_digits().images.astype(np.uint8)).unsqueeze(1))
        return Levels(*Splits(*images.tensor_split((1297, 1547))), "digits", levels=17)
    if name in sources.SOURCES:
        train, test = _DATASETS[name][1](sources.locate(name, root))
        last = len(train) - min(_HELD_OUT, len(train) // 10)
        return Levels(train[:last], train[last:], test, name)
    return _from_path(name, resize)


def listed(root: Path | None = None) -> list[dict[str, object]]:
    """Return every dataset with its shape, levels, files and where they are; nothing is downloaded."""
    rows: list[dict[str, object]] = [
        {"name": "digits", "shape": (1, 8, 8), "levels": 17, "files": "none", "found": "scikit-learn"}
    ]
    for name, (shape, _) in _DATASETS.items():
        wanted, found = list(sources.SOURCES[name][0].required), "not found"
        try:
            if files := sources.find(name, root):
                wanted, found = list(files), str(next(iter(files.values())).parent)
        except DataError as error:
            found = str(error)
        rows.append({"name": name, "shape": shape, "levels": 256, "files": ", ".join(wanted), "found": found})
    return rows


def describe(name: str, root: Path | None = None) -> str:
    """Load a dataset, whose files are verified, and say what is in it."""
    observations = load(name, root)
    splits = f"{len(observations.train)} + {len(observations.valid)} + {len(observations.test)}"
    shape = "x".join(map(str, observations.event_shape))
    what, of = "rows", " numbers"
    if isinstance(observations, Levels):
        what, of = "images", f", {observations.levels} levels"
    return f"{name}: {splits} {what} (train + validation + test) of {shape}{of}"


def _mnist(files: Files) -> tuple[Tensor, Tensor]:
    return img.read_idx(files["train-images-idx3-ubyte.gz"]), img.read_idx(files["t10k-images-idx3-ubyte.gz"])


def _cifar10(files: Files) -> tuple[Tensor, Tensor]:
    binary = "test_batch.bin" in files
    read = img.read_cifar_binary if binary else img.read_cifar_pickle
    return torch.cat(list(map(read, _batches(files)))), read(files["test_batch.bin" if binary else "test_batch"])


def _imagenet(size: int, files: Files) -> tuple[Tensor, Tensor]:
    return img.read_imagenet(_batches(files), size), img.read_imagenet([files["val_data.npz"]], size)


def _batches(files: Files) -> list[Path]:
    """Return the training batches in the order of their numbers: 10 comes after 9."""
    batches = [path for file, path in files.items() if "data_batch" in file]
    return sorted(batches, key=lambda path: int(path.stem.rpartition("_")[2]))


_DATASETS: Mapping[str, tuple[Shape, Reader]] = {
    "mnist": ((1, 28, 28), _mnist),
    "fashion-mnist": ((1, 28, 28), _mnist),
    "cifar10": ((3, 32, 32), _cifar10),
    "imagenet32": ((3, 32, 32), partial(_imagenet, 32)),
    "imagenet64": ((3, 64, 64), partial(_imagenet, 64)),
}
NAMES = ("digits", *_DATASETS)


@cache
def _embedded_digits() -> Any:
    """Return scikit-learn's digits, which it reads out of a text: once, though a sweep has many runs."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # takes a second, which others need not pay

    return load_digits()


def _from_path(name: str, resize: int | None) -> Levels:
    path = Path(name)
    known: dict[str, Any] = {}
    if path.is_dir():
        images, names = permuted(img.read_folder(path, resize)), img.names_of(path)
        known = {"numbers": cut(name, permutation(len(images)), "images")}
        known["row_names"] = Splits(*(tuple(names[row] for row in part) for part in known["numbers"]))
        labels, known["label_names"] = img.classes_of(path)
        known["labels"] = None if labels is None else cut(name, permuted(labels), "labels")
    elif path.suffix in (".npy", ".npz"):
        images = img.read_array(path)
        if path.suffix == ".npz" or images.nbytes <= _IN_MEMORY:
            images = permuted(images)
        else:
            warnings.warn(f"{path} is too large to permute and is split in its own order", stacklevel=3)
    else:
        raise DataError(
            f"{name!r} is no dataset.{did_you_mean(name, NAMES)} There are {', '.join(NAMES)}; "
            "or give the path of a folder of images, or of a .npy, .npz, .csv, .tsv, .parquet or .h5ad file."
        )
    return Levels(*cut(name, images, "images"), name, **known)
