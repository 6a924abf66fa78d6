"""The labels of images, for whoever judges what was learned without them: training never sees any."""

import gzip
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data import sources
from silentgrad.lab.data.formats import DataError, reading, require
from silentgrad.lab.data.order import permuted

MNIST_LIKE = ("mnist", "fashion-mnist")
TEST_FILE = "t10k-labels-idx1-ubyte.gz"


def load_test_labels(name: str, root: Path | None = None) -> Tensor:
    """The labels of a dataset's test images, in their order.

    Args:
        name: One of digits, mnist and fashion-mnist.
        root: Folder that holds the datasets, as for `load_images`; the file of labels is beside those of the images.

    Raises:
        DataError: The dataset has no labels here, or their file is missing or damaged.

    Example:
        >>> len(load_test_labels("digits"))
        250
    """
    if name == "digits":
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # takes a second

        return permuted(torch.from_numpy(load_digits().target))[1547:]
    if name not in MNIST_LIKE:
        raise DataError(f"{name!r} has no labels here: there are those of digits, {', '.join(MNIST_LIKE)}")
    images, *_ = sources.locate(name, root or sources.default_root()).values()
    path = images.parent / TEST_FILE
    if not path.exists():
        raise DataError(f"{path} is missing: only images are downloaded; put the file of labels beside them")
    return read_idx_labels(path)


def read_idx_labels(path: Path) -> Tensor:
    """Labels of MNIST and its relatives: a big-endian header 0x00000801, count, then a byte each."""
    with reading(path, "an idx file of labels"), gzip.open(path) as file:
        header = file.read(8)
        require(len(header) == 8, path, "an idx header of 8 bytes", f"{len(header)} bytes")
        magic, count = struct.unpack(">2I", header)
        require(magic == 0x801, path, "the idx number of one-dimensional bytes, 0x00000801", f"0x{magic:08x}")
        content = file.read(count + 1)
    require(len(content) == count, path, f"{count} labels", f"{len(content)} bytes")
    return torch.from_numpy(np.frombuffer(content, np.uint8).astype(np.int64))
