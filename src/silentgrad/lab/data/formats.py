"""Readers of the file formats that image datasets come in; each returns uint8 `(images, channels, height, width)`.

Every reader checks what it reads and raises :class:`DataError` with the file's name, what was expected and what was
found. None of them executes anything from a file.
"""

import gzip
import math
import os
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from silentgrad.errors import SilentgradError
from silentgrad.lab.data.pickles import read_pickle

Bytes = NDArray[np.uint8]
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_CIFAR_SHAPE = (3, 32, 32)
_GREY, _COLOUR = frozenset({"1", "L", "LA"}), frozenset({"P", "RGB", "RGBA", "CMYK", "YCbCr"})


class DataError(SilentgradError, ValueError):
    """A dataset that cannot be found, or a file that is not what it should be."""


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turns what goes wrong while reading into a DataError that names the file: a damaged one can raise anything."""
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
    """Raises DataError, which names the file, what was expected and what was found, unless a condition holds."""
    if not condition:
        raise DataError(f"{path}: expected {expected}, found {found}")


def require_memory(size: int, path: Path) -> None:
    """Refuses what does not fit: a few bytes can claim to be, or unpack to, more than any machine holds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    require(size <= memory, path, f"data that fit into the {memory:,} bytes of memory", f"{size:,} bytes of them")


def read_idx(path: Path) -> Tensor:
    """Images of MNIST and its relatives: a big-endian header 0x00000803, count, height, width, then the pixels."""
    with reading(path, "an idx file of images"), _opened(path) as file:
        header = file.read(16)
        require(len(header) == 16, path, "an idx header of 16 bytes", f"{len(header)} bytes")
        magic, count, height, width = struct.unpack(">4I", header)
        require(magic == 0x803, path, "the idx number of three-dimensional bytes, 0x00000803", f"0x{magic:08x}")
        size = count * height * width
        require_memory(size, path)
        content = file.read(size + 1)
    expected = f"{count} images of {height}x{width}, {size} bytes"
    require(len(content) <= size, path, expected, "more")
    require(len(content) == size, path, expected, f"{len(content)} bytes")
    pixels = np.frombuffer(content, np.uint8)
    return torch.from_numpy(pixels.reshape(count, 1, height, width).copy())  # a buffer of bytes is read-only


def _opened(path: Path) -> BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.open(path)
    return path.open("rb")


def read_cifar_binary(path: Path) -> Tensor:
    """CIFAR-10's binary version: per image one byte of label and 3072 bytes, channel by channel."""
    with reading(path, "a batch of CIFAR-10's binary version"):
        content = np.fromfile(path, np.uint8)
    whole = content.size > 0 and content.size % 3073 == 0
    require(whole, path, "a multiple of 3073 bytes (CIFAR-10, binary version)", f"{content.size} bytes")
    return torch.from_numpy(content.reshape(-1, 3073)[:, 1:].reshape(-1, *_CIFAR_SHAPE))


def read_cifar_pickle(path: Path) -> Tensor:
    """CIFAR-10's python version: a pickled dictionary whose `data` is `(images, 3072)`."""
    expected = "a batch of CIFAR-10's python version"
    with reading(path, expected):
        content = path.read_bytes()
        try:
            batch = read_pickle(content)
        except Exception as error:  # a malformed pickle can raise anything
            raise DataError(f"{path}: expected {expected}, found a pickle that was refused ({error})") from error
    if not isinstance(batch, dict):
        raise DataError(f"{path}: expected a dictionary, found {type(batch).__name__}")
    return _rows(path, batch.get(b"data", batch.get("data")), _CIFAR_SHAPE)


def _rows(path: Path, array: object, shape: tuple[int, int, int]) -> Tensor:
    expected = f"`data` of uint8 and shape (images, {np.prod(shape)})"
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: expected {expected}, found {type(array).__name__}")
    rows = array.ndim == 2 and array.shape[1] == np.prod(shape) and len(array) > 0
    require(rows and array.dtype == np.uint8, path, expected, _kind(array))
    return torch.from_numpy(array.reshape(-1, *shape))


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


class Header(NamedTuple):
    """What an array in numpy's format says of itself.

    Args:
        shape: Shape of the array.
        dtype: Type of its elements.
        start: Position in the file at which its content begins.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int

    @property
    def kind(self) -> str:
        """Type and shape of the array, in print."""
        return f"{self.dtype} of shape {self.shape}"

    def check(self, path: Path, size: int) -> None:
        """Refuses what is no array of bytes, or says to be another size than that of its file."""
        whole = min(self.shape, default=0) > 0
        require(self.dtype == np.uint8 and whole, path, "images of uint8", self.kind)
        self.require_size(path, size)

    def require_size(self, path: Path, size: int) -> None:
        """Refuses an array that says to be another size than that of its file."""
        content = size - self.start
        whole = math.prod(self.shape) * self.dtype.itemsize
        require(content == whole, path, f"an array of {self.kind}", f"{content} bytes")


def npy_header(file: IO[bytes]) -> Header:
    """What the array in a file of numpy's format says of itself."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    return Header(shape, dtype, file.tell())


@contextmanager
def _npz_member(path: Path, name: str | None) -> Iterator[tuple[Header, IO[bytes]]]:
    """An array of an npz file, checked, at its beginning; without a name, `data` or the only one."""
    content = "images"
    if name is not None:
        content = f"`{name}`"
    with reading(path, f"an npz file with {content}"), zipfile.ZipFile(path) as archive:
        member = f"{name or _only_array(path, archive)}.npy"
        with archive.open(member) as file:
            header = npy_header(file)
            header.check(path, archive.getinfo(member).file_size)
            file.seek(0)
            yield header, file


def _only_array(path: Path, archive: zipfile.ZipFile) -> str:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    if "data" in names:
        return "data"
    require(len(names) == 1, path, "one array, or one called `data`", names)
    return names[0]


def read_imagenet(paths: Sequence[Path], size: int) -> Tensor:
    """Downsampled ImageNet: npz files whose `data` is `(images, 3 * size * size)`, concatenated in the given order.

    The headers come first, so that memory holds all images once and one file's twice, not everything twice.
    """
    counts = [_npz_length(path, 3 * size * size) for path in paths]
    require_memory(sum(counts) * 3 * size * size, paths[0].parent)
    images = torch.empty(sum(counts), 3, size, size, dtype=torch.uint8)
    for path, part in zip(paths, images.split(counts), strict=True):
        part.copy_(_rows(path, _from_npz(path, "data"), (3, size, size)))
    return images


def _npz_length(path: Path, width: int) -> int:
    with _npz_member(path, "data") as (header, _):
        require(len(header.shape) == 2, path, "`data` of two dimensions", f"shape {header.shape}")
        require(header.shape[1] == width, path, f"`data` of shape (images, {width})", f"shape {header.shape}")
    return header.shape[0]


def _from_npz(path: Path, name: str | None) -> Bytes:
    with _npz_member(path, name) as (header, file):
        require_memory(math.prod(header.shape), path)
        array: Bytes = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _from_npy(path: Path) -> Bytes:
    with reading(path, "a numpy array"):
        with path.open("rb") as file:
            npy_header(file).check(path, path.stat().st_size)
        array: Bytes = np.lib.format.open_memmap(path, mode="r")
    return array


def _array(path: Path) -> Bytes:
    if path.suffix == ".npz":
        return _from_npz(path, None)
    return _from_npy(path)


def read_array(path: Path) -> Tensor:
    """A `.npy` file, memory-mapped so that it stays on disk, or a `.npz` file's `data` or only array.

    Shapes: `(images, height, width)`, `(images, height, width, channels)` or `(images, channels, height, width)`, with
    one or three channels; where both of the latter would fit, the channels come first.
    """
    array = _array(path)
    with warnings.catch_warnings():
        # a read-only map is meant: a writable one would have to fit into memory
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        images = torch.from_numpy(array)
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() == 4 and images.shape[1] in (1, 3):
        return images
    expected = "shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3"
    require(images.dim() == 4 and images.shape[3] in (1, 3), path, expected, _kind(array))
    return images.permute(0, 3, 1, 2)


def read_folder(folder: Path) -> Tensor:
    """Every image file in a folder and its subfolders, in the order of their paths; grey only if all are grey."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    require(bool(paths), folder, f"image files ({', '.join(sorted(SUFFIXES))})", "none")
    modes, sizes = zip(*map(_header, paths), strict=True)
    width, height = sizes[0]
    for path, size in zip(paths, sizes, strict=True):
        require(size == sizes[0], path, f"{width}x{height} pixels like {paths[0].name}", f"{size[0]}x{size[1]}")
    mode = "RGB"
    if _GREY.issuperset(modes):
        mode = "L"
    require_memory(len(paths) * height * width * len(mode), folder)
    images = np.empty((len(paths), height, width, len(mode)), np.uint8)
    for path, image in zip(paths, images, strict=True):
        image[:] = _pixels(path, mode).reshape(image.shape)
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def _header(path: Path) -> tuple[str, tuple[int, int]]:
    """Mode and size, (width, height), of an image."""
    with reading(path, "an image"), Image.open(path) as image:
        mode, size = image.mode, image.size
    require(mode in _GREY | _COLOUR, path, "an image of 8 bits per channel", f"one of mode {mode}")
    return mode, size


def _pixels(path: Path, mode: str) -> Bytes:
    with reading(path, "an image"), Image.open(path) as image:
        return np.asarray(image.convert(mode))
