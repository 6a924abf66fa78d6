"""Arrays that stay on disk: mapped from their file, or from a temporary one if they are compressed in it.

A temporary file has no name, so that it is gone with the process. It lies where the environment variable TMPDIR says.
"""

import math
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from silentgrad.lab.data.formats import Header, npy_header, require
from silentgrad.lab.data.sparse import Array

PIECE = 2**22  # elements that are in memory at a time
_LOCAL_HEADER = 30  # bytes in front of the name of a member, of which the last four are the lengths of name and extras


def mapped_member(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    """An array of one dimension in an npz file.

    Raises:
        DataError: The member is no array of numbers, or another size than it says.
    """
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        header = npy_header(file)
        numbers = header.dtype.kind in "fiu" and len(header.shape) == 1
        require(numbers, path, f"numbers of one dimension in `{name}`", header.kind)
        header.require_size(path, member.file_size)
        if member.compress_type != zipfile.ZIP_STORED:
            return spilled(path, header.dtype, _unpacked(file, header), math.prod(header.shape))
    start = _content_of(path, member) + header.start
    return mapped(path, header.dtype, start, math.prod(header.shape))


def _content_of(path: Path, member: zipfile.ZipInfo) -> int:
    """The place in an archive at which a member's content begins."""
    with path.open("rb") as file:
        file.seek(member.header_offset + _LOCAL_HEADER - 4)
        name, extras = struct.unpack("<2H", file.read(4))
    return member.header_offset + _LOCAL_HEADER + int(name) + int(extras)


def _unpacked(file: Any, header: Header) -> Iterator[Array]:
    """The elements of a compressed array, some at a time."""
    while content := file.read(PIECE * header.dtype.itemsize):
        yield np.frombuffer(content, header.dtype)


def mapped_dataset(path: Path, dataset: Any) -> Array:
    """An array of one dimension in an HDF5 file.

    Raises:
        DataError: The dataset is no array of numbers.
    """
    numbers = dataset.dtype.kind in "fiu" and dataset.ndim == 1
    require(numbers, path, f"numbers of one dimension in {dataset.name}", f"{dataset.dtype} of shape {dataset.shape}")
    start = dataset.id.get_offset()  # None unless it lies in a file in one piece, as it is
    if start is not None and not dataset.external and dataset.file.filename == str(path):  # not in a linked file
        return mapped(path, dataset.dtype, start, len(dataset))
    pieces = (dataset[first : first + PIECE] for first in range(0, len(dataset), PIECE))
    return spilled(path, dataset.dtype, pieces, len(dataset))


def mapped(path: Path, dtype: np.dtype[Any], start: int, length: int) -> Array:
    """So many elements of a file, from a place in it on."""
    end, size = start + length * dtype.itemsize, path.stat().st_size
    require(end <= size, path, f"an array that ends at byte {end:,}", f"a file of {size:,} bytes")
    if length == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r", start, (length,)))


def spilled(path: Path, dtype: np.dtype[Any], pieces: Iterator[Array], length: int) -> Array:
    """So many elements, which come in pieces, in a temporary file."""
    size, folder = length * dtype.itemsize, tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    require(size <= free, path, f"data that fit into the {free:,} bytes that are free in {folder}", f"{size:,} bytes")
    if length == 0:
        return np.empty(0, dtype)
    with tempfile.TemporaryFile() as file:
        for piece in pieces:
            file.write(piece.tobytes())
        file.flush()
        return np.asarray(np.memmap(file, dtype, "r", shape=(length,)))
