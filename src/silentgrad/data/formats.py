"""Readers of the file formats that image datasets come in; each returns uint8 `(images, channels, height, width)`.

Every reader checks what it reads and raises :class:`DataError` with the file's name, what was expected and what was
found. None of them executes anything from a file.
"""

import gzip
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from silentgrad.errors import SilentgradError

Bytes = NDArray[np.uint8]
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_CIFAR_SHAPE = (3, 32, 32)
_GREY, _COLOUR = frozenset({"1", "L", "LA"}), frozenset({"P", "RGB", "RGBA", "CMYK", "YCbCr"})


class DataError(SilentgradError, ValueError):
    """A dataset that cannot be found, or a file that is not what it should be."""


@contextmanager
def _reading(path: Path, expected: str) -> Iterator[None]:
    """Turns whatever goes wrong while reading into a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: expected {expected}, found no such file") from error
    except (EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected {expected}, found a damaged or truncated file ({error})") from error
    except (OSError, KeyError, SyntaxError, TypeError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: expected {expected}, found a file that cannot be read ({error})") from error


def _require(condition: bool, path: Path, expected: str, found: object) -> None:
    if not condition:
        raise DataError(f"{path}: expected {expected}, found {found}")


def read_idx(path: Path) -> Tensor:
    """Images of MNIST and its relatives: a big-endian header 0x00000803, count, height, width, then the pixels."""
    with _reading(path, "an idx file of images"), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        content = file.read()
    _require(len(content) >= 16, path, "an idx header of 16 bytes", f"{len(content)} bytes")
    magic, count, height, width = struct.unpack(">4I", content[:16])
    _require(magic == 0x803, path, "the idx number of three-dimensional bytes, 0x00000803", f"0x{magic:08x}")
    pixels = np.frombuffer(content, np.uint8, offset=16)
    expected = f"{count} images of {height}x{width}, {count * height * width} bytes"
    _require(pixels.size == count * height * width, path, expected, f"{pixels.size} bytes")
    return torch.from_numpy(pixels.reshape(count, 1, height, width).copy())  # a buffer of bytes is read-only


def read_cifar_binary(path: Path) -> Tensor:
    """CIFAR-10's binary version: per image one byte of label and 3072 bytes, channel by channel."""
    with _reading(path, "a batch of CIFAR-10's binary version"):
        content = np.fromfile(path, np.uint8)
    whole = content.size > 0 and content.size % 3073 == 0
    _require(whole, path, "a multiple of 3073 bytes (CIFAR-10, binary version)", f"{content.size} bytes")
    return torch.from_numpy(content.reshape(-1, 3073)[:, 1:].reshape(-1, *_CIFAR_SHAPE))


class _ArrayUnpickler(pickle.Unpickler):
    """Rebuilds containers, numbers, strings and numpy arrays, and nothing else.

    A pickle calls whatever it names; here it can only name what numpy itself writes for an array.
    """

    _reconstruct = np.empty(0).__reduce__()[0]  # lives in numpy.core before numpy 2, in numpy._core since
    _admitted = {  # noqa: RUF012 (read only)
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._admitted:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not part of an array")
        return self._admitted[module, name]


def read_cifar_pickle(path: Path) -> Tensor:
    """CIFAR-10's python version: a pickled dictionary whose `data` is `(images, 3072)`."""
    expected = "a batch of CIFAR-10's python version"
    with _reading(path, expected), open(path, "rb") as file:
        try:
            batch = _ArrayUnpickler(file, encoding="bytes").load()  # the files were written by Python 2
        except Exception as error:  # a malformed pickle can raise anything
            raise DataError(f"{path}: expected {expected}, found a pickle that was refused ({error})") from error
    _require(isinstance(batch, dict), path, "a dictionary", type(batch).__name__)
    return _rows(path, batch.get(b"data", batch.get("data")), _CIFAR_SHAPE)


def _rows(path: Path, array: object, shape: tuple[int, int, int]) -> Tensor:
    expected = f"`data` of uint8 and shape (images, {np.prod(shape)})"
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: expected {expected}, found {type(array).__name__}")
    right = array.dtype == np.uint8 and array.ndim == 2 and array.shape[1] == np.prod(shape) and len(array) > 0
    _require(right, path, expected, _kind(array))
    return torch.from_numpy(array.reshape(-1, *shape))


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def read_imagenet(paths: Sequence[Path], size: int) -> Tensor:
    """Downsampled ImageNet: npz files whose `data` is `(images, 3 * size * size)`, concatenated in the given order.

    The headers come first, so that memory holds all images once and one file's twice, not everything twice.
    """
    counts = [_npz_length(path) for path in paths]
    images = torch.empty(sum(counts), 3, size, size, dtype=torch.uint8)
    for path, part in zip(paths, images.split(counts), strict=True):
        with _reading(path, "an npz file with `data`"), _npz(path) as archive:
            part.copy_(_rows(path, archive["data"], (3, size, size)))
    return images


@contextmanager
def _npz(path: Path) -> Iterator[Mapping[str, Any]]:
    # given a path, numpy leaves a damaged file open
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        yield archive


def _npz_length(path: Path) -> int:
    expected = "an npz file with `data`"
    with _reading(path, expected), zipfile.ZipFile(path) as archive, archive.open("data.npy") as file:
        shape = _npy_shape(file)
    _require(len(shape) == 2, path, "`data` of two dimensions", f"shape {shape}")
    return shape[0]


def _npy_shape(file: IO[bytes]) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return header(file)[0]


def read_array(path: Path) -> Tensor:
    """A `.npy` file, memory-mapped so that it stays on disk, or a `.npz` file's `data` or only array.

    Shapes: `(images, height, width)`, `(images, height, width, channels)` or `(images, channels, height, width)`, with
    one or three channels; where both of the latter would fit, the channels come first.
    """
    with _reading(path, "a numpy array"):
        array = _from_npz(path) if path.suffix == ".npz" else np.lib.format.open_memmap(path, mode="r")
    _require(array.dtype == np.uint8 and array.size > 0, path, "images of uint8", _kind(array))
    with warnings.catch_warnings():
        # a read-only map is meant: a writable one would have to fit into memory
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        images = torch.from_numpy(array)
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() == 4 and images.shape[1] in (1, 3):
        return images
    expected = "shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3"
    _require(images.dim() == 4 and images.shape[3] in (1, 3), path, expected, _kind(array))
    return images.permute(0, 3, 1, 2)


def _from_npz(path: Path) -> Bytes:
    with _npz(path) as archive:
        names = list(archive)
        _require("data" in names or len(names) == 1, path, "one array, or one called `data`", names)
        array: Bytes = archive["data" if "data" in names else names[0]]
    return array


def read_folder(folder: Path) -> Tensor:
    """Every image file in a folder and its subfolders, in the order of their paths; grey only if all are grey."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    _require(bool(paths), folder, f"image files ({', '.join(sorted(SUFFIXES))})", "none")
    modes, sizes = zip(*(_header(path) for path in paths), strict=True)
    mode, (width, height) = "L" if _GREY.issuperset(modes) else "RGB", sizes[0]
    for path, size in zip(paths, sizes, strict=True):
        _require(size == sizes[0], path, f"{width}x{height} pixels like {paths[0].name}", f"{size[0]}x{size[1]}")
    images = np.empty((len(paths), height, width, len(mode)), np.uint8)
    for path, image in zip(paths, images, strict=True):
        image[:] = _pixels(path, mode).reshape(image.shape)
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def _header(path: Path) -> tuple[str, tuple[int, int]]:
    with _reading(path, "an image"), Image.open(path) as image:
        mode, size = image.mode, image.size
    _require(mode in _GREY | _COLOUR, path, "an image of 8 bits per channel", f"one of mode {mode}")
    return mode, size


def _pixels(path: Path, mode: str) -> Bytes:
    with _reading(path, "an image"), Image.open(path) as image:
        return np.asarray(image.convert(mode))
