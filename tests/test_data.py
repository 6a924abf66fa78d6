"""Formats round-trip, splits and orders are the same everywhere, and files that mean harm or look odd are refused."""

import gzip
import io
import os
import pickle
import re
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import torch
from PIL import Image
from torch import Tensor

from cells import splits_of
from refusals import refused
from silentgrad.lab.data import NAMES, Batches, DataError, dequantize, load
from silentgrad.lab.data import catalogue as cat
from silentgrad.lab.data import images as fmt
from silentgrad.lab.data import sources as src

Read = Callable[[Path], Tensor]
SHARED = Path(os.environ.get("SILENTGRAD_DATA") or Path(__file__).parents[2] / "shared" / "data")
MNIST = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")


def pixels(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.RandomState(1).randint(0, 256, shape).astype(np.uint8)


def idx(images: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return struct.pack(">4I", 0x803, *images.shape) + images.tobytes()


@pytest.fixture(autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reaches the network, the user's cache or the user's data."""
    cache = tmp_path_factory.mktemp("cache")

    def refuse(url: str, *_: object, **__: object) -> str:
        raise OSError(f"no route to {url}")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    monkeypatch.setattr(pooch, "os_cache", lambda _: cache)
    monkeypatch.delenv("SILENTGRAD_DATA", raising=False)
    return cache


# Formats


def python_2_batch(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Write a batch of CIFAR-10 as Python 2 did, which had numbers in place of False and True."""
    return pickle.dumps({b"data": rows, b"labels": [1] * len(rows)}, 2).replace(b"\x89\x88\x87", b"K\x00K\x01\x87")


GRAY, RECORDS, ROWS = pixels(4, 5, 6), pixels(4, 3073), pixels(4, 3072)
ROUND_TRIPS: dict[str, tuple[Read, bytes, np.ndarray[Any, Any]]] = {
    "images.gz": (fmt.read_idx, gzip.compress(idx(GRAY)), GRAY[:, None]),
    "batch_1.bin": (fmt.read_cifar_binary, RECORDS.tobytes(), RECORDS[:, 1:].reshape(4, 3, 32, 32)),
    "batch of Python 2": (fmt.read_cifar_pickle, python_2_batch(ROWS), ROWS.reshape(4, 3, 32, 32)),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_a_file_of_images_round_trip(tmp_path: Path, name: str) -> None:
    read, content, expected = ROUND_TRIPS[name]
    (tmp_path / name).write_bytes(content)
    torch.testing.assert_close(read(tmp_path / name), torch.from_numpy(expected))


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("shape", [(7, 4, 5), (7, 4, 5, 3), (7, 4, 5, 1), (7, 3, 4, 5)])
def test_array_round_trip(tmp_path: Path, shape: tuple[int, ...], suffix: str) -> None:
    array, path = pixels(*shape), tmp_path / f"images{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, whatever=array)
    first = array[:, None] if array.ndim == 3 else array if shape[1] == 3 else array.transpose(0, 3, 1, 2)
    torch.testing.assert_close(fmt.read_array(path), torch.from_numpy(first))


@pytest.mark.parametrize("channels", [1, 3])
def test_folder_round_trip(tmp_path: Path, channels: int) -> None:
    array = pixels(3, 4, 5, channels)
    for i, image in enumerate(array):
        path = tmp_path / ("sub" if i else ".") / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.squeeze()).save(path)
    torch.testing.assert_close(fmt.read_folder(tmp_path), torch.from_numpy(array).movedim(3, 1))
    refused(DataError, "expected ten images at least, .* found 3", lambda: load(str(tmp_path)))


# Broken files


def imagenet(path: Path) -> Tensor:
    return fmt.read_imagenet([path], 4)


def folder(path: Path) -> Tensor:
    return fmt.read_folder(path.parent)


def npy(header: str, version: tuple[int, int] = (1, 0), content: bytes = bytes(48)) -> bytes:
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + length + header.encode() + content


def described(shape: str = "(3, 4, 4)", kind: str = "'|u1'", fortran: str = "False") -> str:
    return f"{{'descr': {kind}, 'fortran_order': {fortran}, 'shape': {shape}}}\n"


ODD = {
    "no python": npy("{'descr': \n"),
    "nested": npy("(" * 5000 + ")" * 5000),
    "long header": npy(" " * 20000 + described()),
    "unknown version": npy(described(), (9, 9)),
    "truncated header": npy(described())[:30],
    "empty": b"",
    "objects": npy(described(kind="'|O'")),
    "structured": npy(described(kind="[('a', '|u1'), ('b', '<f4')]")),
    "sub-arrays": npy(described(kind="('|u1', (2**70,))")),
    "negative": npy(described("(-3, 4, 4)")),
    "negative twice": npy(described("(-3, -4, 4)")),
    "overflow": npy(described(f"({2**62}, 4, 4)")),
    "overflow to the right size": npy(described(f"({2**64 + 3}, 4, 4)")),
    "too large for a number": npy(described(f"({10**30}, 4, 4)")),
    "more than there is": npy(described("(30, 4, 4)")),
    "less than there is": npy(described("(1, 4, 4)")),
    "no images": npy(described("(0, 4, 4)"), content=b""),
    "a single number": npy(described("()"), content=b"1"),
    "many dimensions": npy(described(f"({'1, ' * 99})"), content=b"1"),
}


def in_npz(content: bytes, name: str = "data.npy", claimed: int | None = None) -> bytes:
    """Make an archive of one member, of which its directory may claim another size."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        archive.filelist[0].file_size = claimed or len(content)
    return file.getvalue()


def saved(save: Callable[..., None], *arrays: np.ndarray[Any, Any], **named: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


HEADER = npy(described(f"({2**46}, 4, 4)"), content=b"")
LYING = in_npz(HEADER, claimed=2**50 + len(HEADER))  # a few bytes that say to be more than any machine's memory
BROKEN: list[tuple[Read, str, bytes, str]] = [
    (fmt.read_idx, "cut.gz", gzip.compress(idx(pixels(40, 28, 28)))[:-500], "truncated"),
    (fmt.read_idx, "plain.gz", idx(pixels(1, 2, 2)), "cannot be read"),
    (fmt.read_cifar_pickle, "list", pickle.dumps([1]), "cannot be read"),
    (fmt.read_array, "float.npy", saved(np.save, np.ones((2, 3, 3))), r"uint8, found float64 .*\(x \* 255\)\.round"),
    (fmt.read_array, "flat.npy", saved(np.save, pixels(2, 3)), r"shape .*, found uint8 of shape \(2, 3\)"),
    (fmt.read_array, "five.npy", saved(np.save, pixels(2, 5, 5, 5)), r"C = 1 or 3, found"),
    (fmt.read_array, "cut.npy", saved(np.save, pixels(9, 9, 9))[:300], "cannot be read"),
    (fmt.read_array, "two.npz", saved(np.savez, a=pixels(2, 3, 3), b=pixels(2, 3, 3)), r"\['a', 'b'\]"),
    (fmt.read_array, "cut.npz", saved(np.savez, pixels(9, 9, 9))[:300], "truncated|cannot"),
    (fmt.read_array, "text.npz", b"no", "not a zip file"),
    (fmt.read_array, "zip bomb.npz", LYING, "bytes that are free"),
    (fmt.read_array, "empty archive.npz", b"PK\x05\x06" + bytes(18), "one array"),
    (fmt.read_array, "member that is no array.npz", in_npz(b"text", "data"), "images"),
    (imagenet, "no such member.npz", in_npz(npy(described()), "other.npy"), "data"),
    (imagenet, "x.npz", saved(np.savez, labels=np.ones(3)), "data"),
    (imagenet, "y.npz", saved(np.savez, data=pixels(3, 47)), r"48\), found"),
    (imagenet, "z.npz", saved(np.savez, data=pixels(3)), r"48\), found shape"),
    (folder, "bad.png", b"not an image", "cannot be read"),
]


@pytest.mark.parametrize(("read", "name", "content", "message"), BROKEN, ids=[case[1] for case in BROKEN])
def test_broken_file_is_named(tmp_path: Path, read: Read, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert str(tmp_path / name) in refused(DataError, message, lambda: read(tmp_path / name))


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
@pytest.mark.parametrize("content", ODD.values(), ids=ODD.keys())
def test_odd_arrays_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.npy").write_bytes(content)
    (tmp_path / "odd.npz").write_bytes(in_npz(content))
    reads: list[tuple[str, Read]] = [("npy", lambda path: load(str(path)).train), ("npz", fmt.read_array)]
    for suffix, read in [*reads, ("npz", imagenet)]:
        path = tmp_path / f"odd.{suffix}"
        said = refused(DataError, re.escape(str(path)), lambda read=read, path=path: read(path))
        assert "\n" not in said


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("fortran", [False, True])
def test_every_version_and_order_is_read(tmp_path: Path, version: tuple[int, int], fortran: bool) -> None:
    images = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    content = npy(described(fortran=str(fortran)), version, images.tobytes("F" if fortran else "C"))
    (tmp_path / "real").write_bytes(content)
    (tmp_path / "a.npy").symlink_to(tmp_path / "real")
    (tmp_path / "a.npz").write_bytes(in_npz(content))
    for name in ("a.npy", "a.npz"):
        assert np.array_equal(fmt.read_array(tmp_path / name)[:, 0].numpy(), images)


READS: list[tuple[str, Read]] = [
    ("a.npy", fmt.read_array),
    ("a.npz", fmt.read_array),
    ("a.npz", imagenet),
    ("a.gz", fmt.read_idx),
    ("a.bin", fmt.read_cifar_binary),
    ("a", fmt.read_cifar_pickle),
    ("a.png", folder),
]


@pytest.mark.parametrize(("name", "read"), READS)
def test_what_is_not_there_is_named_and_a_pipe_is_not_waited_for(tmp_path: Path, name: str, read: Read) -> None:
    refused(DataError, f"{name}: .*no such file|found none", lambda: read(tmp_path / name))
    os.mkfifo(tmp_path / name)
    writer = os.open(tmp_path / name, os.O_RDWR)
    end = threading.Timer(1, os.close, [writer])  # until then, who opens it waits for what will be written
    end.start()
    refused(DataError, f"{name}: expected .*, found no regular file", lambda: read(tmp_path / name))
    assert end.is_alive()
    end.cancel()
    os.close(writer)


def test_folders_of_images_of_several_kinds_and_unusable_ones(tmp_path: Path) -> None:
    refused(DataError, r"expected image files .*found none", lambda: fmt.read_folder(tmp_path))
    Image.fromarray(pixels(64, 64)).save(tmp_path / "a.png")
    Image.fromarray(pixels(64, 64, 3)).save(tmp_path / "b.png")
    assert fmt.read_folder(tmp_path).shape == (2, 3, 64, 64)  # gray and color together are color
    Image.fromarray(pixels(64, 65)).save(tmp_path / "b.png")
    refused(DataError, r"b.png: expected 64x64 pixels like a.png, found 65x64", lambda: fmt.read_folder(tmp_path))
    os.remove(tmp_path / "b.png")
    os.truncate(tmp_path / "a.png", 1000)  # the header is whole, the pixels are not
    refused(DataError, r"a.png: .*truncated", lambda: fmt.read_folder(tmp_path))
    Image.fromarray(pixels(64, 64).astype(np.uint16)).save(tmp_path / "a.png")
    refused(DataError, "8 bits per channel, found one of mode I;16", lambda: fmt.read_folder(tmp_path))


# Sources


def genuine(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *files: str, place: str = ".") -> None:
    """Take the files of a folder for the canonical ones."""
    known = {file: (f"md5:{pooch.file_hash(str(folder / file), alg='md5')}",) for file in files}
    source = src.Source(known, folder=place, mirrors=src.SOURCES[name][0].mirrors)
    monkeypatch.setattr(src, "SOURCES", {**src.SOURCES, name: (source,)})


def small_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "mnist") -> None:
    """Sixty training and ten test images in place of the canonical files."""
    folder.mkdir(parents=True)
    for file, count in zip(MNIST, (60, 10), strict=True):
        (folder / file).write_bytes(gzip.compress(idx(pixels(count, 28, 28)), mtime=len(name)))
    genuine(folder, monkeypatch, name, *MNIST)


@pytest.mark.parametrize("place", ["mnist", "."])
def test_files_are_found(place: str, tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    small_mnist(root / place, monkeypatch)
    images = load("mnist", root)
    assert ([len(split) for split in splits_of(images)], images.event_shape) == ([54, 6, 10], (1, 28, 28))
    monkeypatch.setenv("SILENTGRAD_DATA", str(root))
    assert torch.equal(load("mnist").train, images.train)
    assert "54 + 6 + 10" in cat.describe("mnist")
    (root / place).rename(offline / "mnist")
    assert len(load("mnist", tmp_path).train) == 54


@pytest.mark.parametrize("name", ["mnist", "imagenet32", "imagenet64"])
def test_offline_says_what_to_put_where(tmp_path: Path, name: str) -> None:
    """ImageNet has to be requested, and is not downloaded."""
    source = src.SOURCES[name][0]
    told = [str(tmp_path / name), *source.required, *(f"no route to {mirror}" for mirror in source.mirrors)]
    said = refused(DataError, "", lambda: load(name, tmp_path))
    assert all(word in said for word in told)
    assert ("image-net.org" in said) == name.startswith("imagenet")


def test_second_mirror_is_tried(tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_mnist(tmp_path / "remote", monkeypatch)
    asked: list[str] = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path, **_: object) -> None:
        asked.append(url)
        if "ossci" in url:
            raise ValueError("wrong checksum")
        assert known_hash.startswith("md5:")
        path.mkdir(exist_ok=True)
        (path / fname).write_bytes((tmp_path / "remote" / fname).read_bytes())

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert (len(load("mnist", tmp_path / "root").test), len(asked)) == (10, 4)
    assert (offline / "mnist" / MNIST[0]).is_file()


def test_downloaded_archive_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pooch, with a file for a server."""
    known = ("size:6146",)
    batches = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    with tarfile.open(tmp_path / "small.tar.gz", "w:gz") as archive:
        for batch in batches:
            pixels(2, 3073).tofile(tmp_path / batch)
            archive.add(tmp_path / batch, f"cifar-10-batches-bin/{batch}")
    digest = f"md5:{pooch.file_hash(str(tmp_path / 'small.tar.gz'), alg='md5')}"
    source = src.Source(
        dict.fromkeys((batches[0], batches[-1]), known),
        dict.fromkeys(batches[1:-1], known),
        folder="cifar-10-batches-bin",
        mirrors=("https://example.org/",),
        archive={"small.tar.gz": digest},
    )

    def download(_: str, output: str, __: object) -> None:
        Path(output).write_bytes((tmp_path / "small.tar.gz").read_bytes())

    monkeypatch.undo()
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *_, **__: download)
    monkeypatch.setattr(src, "SOURCES", {"cifar10": (source,)})
    assert sorted(src.locate("cifar10", tmp_path / "root")) == sorted(batches)
    assert [len(split) for split in splits_of(load("cifar10", tmp_path / "root"))] == [9, 1, 2]


def test_partial_cifar_is_verified(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for name in ("data_batch_1.bin", "test_batch.bin"):
        np.zeros(30_730_000, np.uint8).tofile(folder / name)
    assert [len(split) for split in splits_of(load("cifar10", tmp_path))] == [9000, 1000, 10000]
    os.truncate(folder / "test_batch.bin", 30_730_000 - 3073)
    wrong = r"test_batch.bin: expected size:30730000, found size:30726927"
    refused(DataError, wrong, lambda: load("cifar10", tmp_path))


def test_a_pickle_is_run_only_if_it_is_the_canonical_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, names = tmp_path / "cifar-10-batches-py", ("data_batch_1", "data_batch_2", "test_batch")
    folder.mkdir()
    program = f"cos\nmkdir\n(S'{tmp_path / 'executed'}'\ntR."  # what pickle writes of a call of os.mkdir
    for name in names:
        (folder / name).write_text(program)
    refused(DataError, r"data_batch_\d: expected md5:\w+, found md5:", lambda: load("cifar10", tmp_path))
    assert not (tmp_path / "executed").exists()
    assert any("expected md5:" in str(row["found"]) for row in cat.listed(tmp_path))
    for name in names:
        (folder / name).write_bytes(python_2_batch(pixels(20, 3072)))
    genuine(folder, monkeypatch, "cifar10", *names, place=folder.name)
    assert [len(split) for split in splits_of(load("cifar10", tmp_path))] == [36, 4, 20]


def test_imagenet_batches_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "imagenet32"
    folder.mkdir()
    for i in range(1, 11):
        np.savez(folder / f"train_data_batch_{i}.npz", data=np.full((2, 3072), i, np.uint8))
    np.savez(folder / "val_data.npz", data=pixels(3, 3072))
    train, valid, test = splits_of(load("imagenet32", tmp_path))
    assert train[:, 0, 0, 0].tolist() == [i for i in range(1, 10) for _ in range(2)]
    assert (valid[:, 0, 0, 0].tolist(), len(test)) == ([10, 10], 3)


# Catalogue


def test_array_splits_are_deterministic_and_disjoint(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100, dtype=np.uint8).reshape(100, 1, 1).repeat(2, 1))
    splits = splits_of(load(str(tmp_path / "a.npy")))
    assert [len(split) for split in splits] == [80, 10, 10]
    values = [split[:, 0, 0, 0].tolist() for split in splits]
    assert sorted(chain(*values)) == list(range(100))
    assert values[0] != sorted(values[0])
    torch.manual_seed(5)
    np.random.seed(5)
    torch.testing.assert_close(splits_of(load(str(tmp_path / "a.npy"))), splits)


def test_large_npy_stays_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(40, dtype=np.uint8).reshape(10, 2, 2))
    monkeypatch.setattr(cat, "_IN_MEMORY", 0)
    with pytest.warns(UserWarning, match="split in its own order"):
        images = load(str(path))
    with open(path, "r+b") as file:  # what is written to the file shows in the tensors
        file.seek(-40, os.SEEK_END)
        file.write(bytes([99] * 40))
    assert images.train.unique().tolist() == images.test.unique().tolist() == [99]
    assert [len(batch) for _, batch in Batches(images.train, 3, shuffle=True, seed=0)] == [3, 3, 2]


def test_digits_need_no_files_and_every_name_is_described(tmp_path: Path) -> None:
    images = load("digits")
    assert (images.levels, images.event_shape, int(images.train.max())) == (17, (1, 8, 8), 16)
    assert torch.equal(images.test, load("digits").test)
    assert images.train[0, 0, 3].tolist() == [0, 0, 0, 0, 12, 11, 0, 0]  # the order is part of the definition
    rows = cat.listed(tmp_path)
    assert tuple(row["name"] for row in rows) == NAMES
    assert [row["found"] for row in rows] == ["scikit-learn"] + ["not found"] * 5
    assert "1297 + 250 + 250" in cat.describe("digits")
    said = refused(DataError, r"(?s)Did you mean cifar10\?", lambda: load("cifar-10"))
    assert all(name in said for name in NAMES)


SPLITS = {"mnist": (55000, 5000, 10000), "cifar10": (None, None, 10000), "imagenet32": (None, None, None)}


@pytest.mark.parametrize("name", SPLITS)
def test_real_files(name: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"{SHARED / name} does not exist; set SILENTGRAD_DATA to a folder with {name}/ to run this")
    images = load(name, SHARED)
    assert images.event_shape == {row["name"]: row["shape"] for row in cat.listed(SHARED)}[name]
    for split, count in zip(splits_of(images), SPLITS[name], strict=True):
        assert split.dtype == torch.uint8
        assert len(split) == (count or len(split)) > 0
        assert 0.05 < split[:1000].float().mean() / 255 < 0.6


# Feeding


def test_dequantize() -> None:
    images = torch.arange(17, dtype=torch.uint8).repeat(1000, 1)
    y = dequantize(images, 17, torch.Generator().manual_seed(0))
    assert y.dtype == torch.float32
    assert torch.equal((y * 17).floor().clamp(max=16), images.float())
    assert abs(float((y * 17 - images).mean()) - 0.5) < 0.01
    assert torch.equal(y, dequantize(images, 17, torch.Generator().manual_seed(0)))
    assert not torch.equal(y, dequantize(images, 17))


NUMBERED = torch.arange(50, dtype=torch.uint8).reshape(50, 1, 1, 1)


def order(batches: Batches, epoch: int = 0) -> list[list[int]]:
    batches.epoch = epoch
    return [batch.flatten().tolist() for _, batch in batches]


def test_order_depends_on_seed_and_epoch_only() -> None:
    """And leaves the global random state alone."""
    orders = {(s, e): order(Batches(NUMBERED, 8, True, seed=s), e) for s in range(3) for e in range(3)}
    assert len({str(value) for value in orders.values()}) == 9
    for (seed, epoch), value in orders.items():
        torch.manual_seed(seed + epoch + 100)
        before = torch.get_rng_state()
        assert order(Batches(NUMBERED, 8, True, seed=seed), epoch) == value
        assert torch.equal(before, torch.get_rng_state())
        assert sorted(chain(*value)) == list(range(50))
    assert order(Batches(NUMBERED, 50, False, seed=0), 1) == [list(range(50))]


def test_an_epoch_of_steps_draws_every_batch_from_all_rows() -> None:
    images = NUMBERED[:20]
    alone = order(Batches(images, 8, True, 0, steps=30), 3)
    assert [len(batch) for batch in alone] == [8] * 30
    assert {*chain(*alone)} == {*range(20)}
    assert len({*map(str, alone)}) == 30
    assert any(len({*batch}) < 8 for batch in alone)  # with replacement
    assert order(Batches(images, 8, True, 0, steps=30), 4) != alone
    refused(DataError, "no order", lambda: Batches(images, 8, False, 0, steps=30))


@pytest.mark.parametrize("steps", [None, 30])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_together_are_one_process(world_size: int, steps: int | None) -> None:
    images = NUMBERED[:47]  # the last batch of an epoch, of 7, does not divide evenly
    alone = order(Batches(images, 8, True, 0, steps=steps), 3)
    ranks = [Batches(images, 8, True, 0, rank, world_size, steps=steps) for rank in range(world_size)]
    batches = [*zip(*(order(rank, 3) for rank in ranks), strict=True)]
    assert [list(chain(*shares)) for shares in batches] == alone
    assert len(alone) == len(ranks[0]) == (steps or 6)
    assert [ranks[0].shares(i) for i in range(len(alone))] == [[len(share) for share in shares] for shares in batches]


def test_batch_sizes_that_cannot_be_shared() -> None:
    for batch_size, world_size in ((9, 2), (0, 1), (-4, 2)):
        call = partial(Batches, NUMBERED, batch_size, True, 0, 0, world_size)
        refused(DataError, "positive multiple", call)
    refused(DataError, "leave 2 rows to 4 processes", lambda: Batches(NUMBERED, 8, True, 0, 0, 4))
