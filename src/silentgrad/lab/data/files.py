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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silentgrad.errors import SilentgradError

Array = NDArray[Any]
PIECE = 2**22  # elements that are in memory at a time
# Readers of headers in versions of numpy's format.
HEADERS = dict.fromkeys([(2, 0), (3, 0)], np.lib.format.read_array_header_2_0)
HEADERS[1, 0] = np.lib.format.read_array_header_1_0
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


def names_or_numbers(columns: Sequence[str], count: int) -> Sequence[str]:
    """Return the names of columns, or of rows; numbers from 1 on if they have none."""
    return columns or [str(number) for number in range(1, count + 1)]


class Header(NamedTuple):
    """Description of an array of numbers: what numpy's format says of one, or HDF5."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """The bytes that the array claims."""
        return math.prod(self.shape) * self.dtype.itemsize

    def require(self, path: Path, name: str, size: int) -> None:
        """Refuse what is no array of numbers, or claims another size than its own in the file."""
        require(self.dtype.kind in "fiu", path, f"numbers in {name}", f"{self.dtype} of shape {self.shape}")
        require(size == self.size, path, f"{self.dtype} of shape {self.shape} in {name}", f"{size} bytes")

    def mapped(self, file: Any, start: int) -> Array:
        """Map the array from a position in a file."""
        order: Any = "F" if self.by_columns else "C"
        array = np.memmap(file, self.dtype, "r", start, self.shape, order) if self.size else np.empty(self.shape)
        return np.asarray(array, self.dtype)


def mapped_member(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    """Map an array of numbers in an npz file."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        header = Header(*HEADERS[np.lib.format.read_magic(file)](file))
        start = file.tell()
        header.require(path, f"`{name}`", member.file_size - start)
        if member.compress_type != zipfile.ZIP_STORED:
            return _spilled(path, header, iter(lambda: file.read(PIECE), b""))
    with path.open("rb") as raw:
        raw.seek(member.header_offset + _LOCAL_HEADER - 4)
        content = member.header_offset + _LOCAL_HEADER + sum(struct.unpack("<2H", raw.read(4)))
    return header.mapped(path, content + start)


def mapped_dataset(path: Path, dataset: Any) -> Array:
    """Map an array of numbers in an HDF5 file, which anndata writes in chunks."""
    header = Header(dataset.shape, False, dataset.dtype)
    header.require(path, dataset.name, header.size)
    contents = (dataset[first : first + PIECE].tobytes() for first in range(0, len(dataset), PIECE))
    return _spilled(path, header, contents)


def _spilled(path: Path, header: Header, contents: Iterator[bytes]) -> Array:
    """Map an array whose bytes come in pieces from a temporary file."""
    folder = tempfile.gettempdir()
    free, found = shutil.disk_usage(folder).free, f"{header.size:,} bytes"
    require(header.size <= free, path, f"data that fit into the {free:,} bytes that are free in {folder}", found)
    with tempfile.TemporaryFile() as file:
        file.writelines(contents)
        file.flush()
        return header.mapped(file, 0)
