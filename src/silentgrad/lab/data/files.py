"""Files and the arrays in them: what is wrong with a file, named; and arrays that stay on disk, mapped.

An array is mapped from its file, or from a temporary one if it is compressed in it. A temporary file has no name, so
that it is gone with the process. It lies where the environment variable TMPDIR says.
"""

import math
import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silentgrad.errors import SilentgradError

Array = NDArray[Any]
PIECE = 2**22  # elements that are in memory at a time
_LOCAL_HEADER = 30  # bytes in front of the name of a member, of which the last four are the lengths of name and extras


class DataError(SilentgradError, ValueError):
    """A dataset that cannot be found, or a file that is not what it should be."""


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn what goes wrong while reading into a DataError that names the file: a damaged one can raise anything."""
    try:
        require(stat.S_ISREG(path.stat().st_mode), path, expected, "no regular file")  # a pipe would never end
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: expected {expected}, found no such file") from error
    except (EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected {expected}, found a damaged or truncated file ({error})") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"{path}: expected {expected}, found a file that cannot be read ({reason})") from error


def require(condition: bool, path: Path, expected: str, found: object) -> None:
    """Raise DataError, which names the file, what was expected and what was found, unless a condition holds."""
    if not condition:
        raise DataError(f"{path}: expected {expected}, found {found}")


def require_memory(size: int, path: Path) -> None:
    """Refuse what does not fit: a few bytes can claim to be, or unpack to, more than any machine holds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    require(size <= memory, path, f"data that fit into the {memory:,} bytes of memory", f"{size:,} bytes of them")


def in_print(columns: Sequence[str], place: int) -> str:
    """Return how a column is called in print, by its place from 0 on and the columns' names, if they have any.

    Example:
        >>> in_print((), 2), in_print(("a", "b"), 1)
        ('column 3', 'column 2 (b)')
    """
    return f"column {place + 1}" + (f" ({columns[place]})" if columns else "")


class Header(NamedTuple):
    """Description of an array in numpy's format, whose content begins at a position in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"

    def require_size(self, path: Path, size: int) -> None:
        """Refuse an array that claims another size than that of its file."""
        content, whole = size - self.start, math.prod(self.shape) * self.dtype.itemsize
        require(content == whole, path, f"an array of {self}", f"{content} bytes")


def npy_header(file: IO[bytes]) -> Header:
    first = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return Header(shape, dtype, file.tell())


def mapped_member(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    """Map an array of numbers of one dimension in an npz file."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        header = npy_header(file)
        _require_numbers(path, f"`{name}`", header.dtype, header.shape)
        header.require_size(path, member.file_size)
        if member.compress_type != zipfile.ZIP_STORED:
            contents = iter(lambda: file.read(PIECE * header.dtype.itemsize), b"")
            return _spilled(path, header.dtype, contents, *header.shape)
    with path.open("rb") as raw:
        raw.seek(member.header_offset + _LOCAL_HEADER - 4)
        content = member.header_offset + _LOCAL_HEADER + sum(struct.unpack("<2H", raw.read(4)))
    return _mapped(path, header.dtype, content + header.start, *header.shape)


def mapped_dataset(path: Path, dataset: Any) -> Array:
    """Map an array of numbers of one dimension in an HDF5 file, which anndata writes in chunks."""
    _require_numbers(path, dataset.name, dataset.dtype, dataset.shape)
    contents = (dataset[first : first + PIECE].tobytes() for first in range(0, len(dataset), PIECE))
    return _spilled(path, dataset.dtype, contents, len(dataset))


def _require_numbers(path: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    numbers = dtype.kind in "fiu" and len(shape) == 1
    require(numbers, path, f"numbers of one dimension in {name}", f"{dtype} of shape {shape}")


def _spilled(path: Path, dtype: np.dtype[Any], contents: Iterator[bytes], length: int) -> Array:
    """Map so many elements, whose bytes come in pieces, from a temporary file."""
    size, folder = length * dtype.itemsize, tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    require(size <= free, path, f"data that fit into the {free:,} bytes that are free in {folder}", f"{size:,} bytes")
    with tempfile.TemporaryFile() as file:
        file.writelines(contents)
        file.flush()
        return _mapped(file, dtype, 0, length)


def _mapped(file: Any, dtype: np.dtype[Any], start: int, length: int) -> Array:
    return np.asarray(np.memmap(file, dtype, "r", start, (length,))) if length else np.empty(0, dtype)
