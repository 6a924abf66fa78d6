"""Readers of the files that image datasets come in; each returns uint8 `(images, channels, height, width)`.

Files of MNIST and CIFAR-10 are the canonical ones, by their checksum or size (`sources`), before they are read: the
python version of CIFAR-10 is a program. All others are checked here, and nothing in them is executed. What is wrong
raises :class:`DataError` with the file's name, what was expected and what was found.
"""

import gzip
import pickle
import struct
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from silentgrad.lab.data.files import Array, mapped_member, reading, require, require_memory

Bytes = NDArray[np.uint8]
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_CIFAR_SHAPE = (3, 32, 32)
_GRAY, _COLOR = frozenset({"1", "L", "LA"}), frozenset({"P", "RGB", "RGBA", "CMYK", "YCbCr"})


def read_idx(path: Path) -> Tensor:
    """Read images of MNIST and its relatives: a number, the shape and the pixels, after their checksum is verified."""
    with reading(path, "an idx file of images"), gzip.open(path) as file:
        content = bytearray(file.read())  # bytes are read-only
        shape = struct.unpack(">3I", content[4:16])
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=16).reshape(shape)).unsqueeze(1)


def read_cifar_binary(path: Path) -> Tensor:
    """Read CIFAR-10's binary version, after its size is verified: per image a label and 3072 bytes, by channels."""
    with reading(path, "a batch of CIFAR-10's binary version"):
        return torch.from_numpy(np.fromfile(path, np.uint8).reshape(-1, 3073)[:, 1:].reshape(-1, *_CIFAR_SHAPE))


def read_cifar_pickle(path: Path) -> Tensor:
    """Read CIFAR-10's python version; the file is a program, so that its checksum has to be verified before."""
    with reading(path, "a batch of CIFAR-10's python version"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, about what Python 2 wrote
        rows = pickle.loads(path.read_bytes(), encoding="bytes")[b"data"]
    return torch.from_numpy(rows.reshape(-1, *_CIFAR_SHAPE))


def _member(path: Path, name: str | None = None) -> Bytes:
    """Map an array of images in an npz file; without a name, `data` or the only one."""
    content = "images" if name is None else f"`{name}`"
    with reading(path, f"an npz file with {content}"), zipfile.ZipFile(path) as archive:
        if name is None:
            names = [member.removesuffix(".npy") for member in archive.namelist()]
            require("data" in names or len(names) == 1, path, "one array, or one called `data`", names)
            name = "data" if "data" in names else names[0]
        return _images(path, mapped_member(path, archive, name))


def _images(path: Path, array: Array) -> Bytes:
    """Refuse what is no array of bytes."""
    images = array.dtype == np.uint8 and array.size > 0
    cure = ': of x from 0 to 1, (x * 255).round().astype("uint8")' if array.dtype.kind == "f" else ""
    require(images, path, "images of uint8", f"{array.dtype} of shape {array.shape}{cure}")
    return array


def read_imagenet(paths: Sequence[Path], size: int) -> Tensor:
    """Read downsampled ImageNet: npz files whose `data` is `(images, 3 * size * size)`, one after the other."""
    parts, width = [], 3 * size * size
    for path in paths:
        part = _member(path, "data")
        require(part.shape[1:] == (width,), path, f"`data` of shape (images, {width})", f"shape {part.shape}")
        parts.append(part)
    require_memory(sum(part.nbytes for part in parts), paths[0].parent)
    return torch.from_numpy(np.concatenate(parts).reshape(-1, 3, size, size))


def read_array(path: Path) -> Tensor:
    """Map a `.npy` file, or a `.npz` file's `data` or only array.

    Shapes: `(images, height, width)`, `(images, height, width, channels)` or `(images, channels, height, width)`, with
    one or three channels; where both of the latter would fit, the channels come first.
    """
    if path.suffix == ".npz":
        array = _member(path)
    else:
        with reading(path, "a numpy array"):
            array = _images(path, np.lib.format.open_memmap(path, mode="r"))
    with warnings.catch_warnings():
        # a read-only map is meant: a writable one would have to fit into memory
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        images = torch.from_numpy(array)
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() == 4 and images.shape[1] in (1, 3):
        return images
    expected = "shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3"
    require(images.dim() == 4 and images.shape[3] in (1, 3), path, expected, f"{array.dtype} of shape {array.shape}")
    return images.permute(0, 3, 1, 2)


def read_folder(folder: Path, resize: int | None = None) -> Tensor:
    """Read every image file in a folder and its subfolders, in the order of their paths; gray only if all are.

    Images of different sizes are refused, or cropped to squares and scaled to `resize` pixels a side.
    """
    paths = [folder / name for name in names_of(folder)]
    require(bool(paths), folder, f"image files ({', '.join(sorted(SUFFIXES))})", "none")
    modes, (width, height) = set(), (resize or 0, resize or 0)
    for path in paths:
        with reading(path, "an image"), Image.open(path) as image:
            modes.add(image.mode)
            require(image.mode in _GRAY | _COLOR, path, "an image of 8 bits per channel", f"one of mode {image.mode}")
            across, down = image.size
        width, height = width or across, height or down
        same, found = resize or (across, down) == (width, height), f"{across}x{down} (--data.resize makes them alike)"
        require(bool(same), path, f"{width}x{height} pixels like {paths[0].name}", found)
    mode = "L" if modes <= _GRAY else "RGB"
    require_memory(len(paths) * height * width * len(mode), folder)
    images = np.empty((len(paths), height, width, len(mode)), np.uint8)
    for path, pixels in zip(paths, images, strict=True):
        with reading(path, "an image"), Image.open(path) as image:
            fitted = image.convert(mode)
            if resize is not None:
                fitted = ImageOps.fit(fitted, (resize, resize))
            pixels[:] = np.asarray(fitted).reshape(pixels.shape)
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def names_of(folder: Path) -> list[str]:
    """Return the paths of the images within a folder, in their order; the first part may be a class."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return [path.relative_to(folder).as_posix() for path in paths]


def classes_of(folder: Path) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the class of each image as a number, and their names, if all images are in subfolders of two or more."""
    found, in_folder, _ = zip(*(name.partition("/") for name in names_of(folder)), strict=True)
    classes = sorted(set(found))
    if len(classes) < 2 or not all(in_folder):
        return None, ()
    return torch.tensor(list(map(classes.index, found))), tuple(classes)
