"""Every format round-trips, every broken file is named, every split and every order is the same everywhere."""

import gzip
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pooch
import pytest
import torch
from PIL import Image
from torch import Tensor

from silentgrad.lab.data import NAMES, Batches, DataError, Rows, dequantize, load
from silentgrad.lab.data import catalogue as cat
from silentgrad.lab.data import formats as fmt
from silentgrad.lab.data import sources as src
from silentgrad.lab.data.module import ObservationData

SHARED = Path(os.environ.get("SILENTGRAD_DATA") or Path(__file__).parents[2] / "shared" / "data")
MNIST = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")


def pixels(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.RandomState(1).randint(0, 256, shape).astype(np.uint8)


def idx(images: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return struct.pack(">4I", 0x803, *images.shape) + images.tobytes()


def same(images: Tensor, array: np.ndarray[Any, Any]) -> bool:
    return images.dtype == torch.uint8 and torch.equal(images, torch.from_numpy(array.copy()))


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


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_round_trip(tmp_path: Path, suffix: str) -> None:
    images, path = pixels(4, 5, 6), tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(idx(images)) if suffix else idx(images))
    assert same(fmt.read_idx(path), images[:, None])


def test_cifar_binary_round_trip(tmp_path: Path) -> None:
    records, path = pixels(4, 3073), tmp_path / "data_batch_1.bin"
    records.tofile(path)
    assert same(fmt.read_cifar_binary(path), records[:, 1:].reshape(4, 3, 32, 32))


@pytest.mark.parametrize("key", ["data", b"data"])
def test_cifar_pickle_round_trip(tmp_path: Path, key: str | bytes) -> None:
    rows, path = pixels(4, 3072), tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({key: rows, b"labels": [1, 2, 3, 4], b"batch_label": b"one"}))
    assert same(fmt.read_cifar_pickle(path), rows.reshape(4, 3, 32, 32))


def test_cifar_pickle_as_python_2_wrote_it(tmp_path: Path) -> None:
    """Protocol 2 with numpy's old module name and byte strings for everything."""
    row, path = bytes(range(256)) * 12, tmp_path / "data_batch_1"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"  # _reconstruct(ndarray, (0,), "b")
        b"(I1\n(I1\nI3072\ntcnumpy\ndtype\n(U\x02u1I0\nI1\ntR(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\n"
        b"T" + struct.pack("<i", len(row)) + row + b"tb"
    )
    path.write_bytes(b"\x80\x02}U\x04data" + array + b"s.")
    assert same(fmt.read_cifar_pickle(path), np.frombuffer(row, np.uint8).reshape(1, 3, 32, 32))


def test_imagenet_round_trip(tmp_path: Path) -> None:
    parts = [pixels(3, 48), pixels(2, 48)]
    paths = [tmp_path / f"train_data_batch_{i}.npz" for i in (1, 2)]
    for path, part in zip(paths, parts, strict=True):
        np.savez(path, data=part, labels=np.ones(len(part)))
    assert same(fmt.read_imagenet(paths, 4), np.concatenate(parts).reshape(5, 3, 4, 4))


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("shape", [(7, 4, 5), (7, 4, 5, 3), (7, 4, 5, 1), (7, 3, 4, 5)])
def test_array_round_trip(tmp_path: Path, shape: tuple[int, ...], suffix: str) -> None:
    array, path = pixels(*shape), tmp_path / f"images{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, whatever=array)
    first = array[:, None] if array.ndim == 3 else array if shape[1] == 3 else array.transpose(0, 3, 1, 2)
    assert same(fmt.read_array(path), first)


@pytest.mark.parametrize("channels", [1, 3])
def test_folder_round_trip(tmp_path: Path, channels: int) -> None:
    array = pixels(3, 4, 5, channels)
    for i, image in enumerate(array):
        path = tmp_path / ("sub" if i else ".") / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.squeeze()).save(path)
    assert same(fmt.read_folder(tmp_path), array.transpose(0, 3, 1, 2))


def test_folder_of_grey_and_colour_is_colour(tmp_path: Path) -> None:
    Image.fromarray(pixels(4, 4)).save(tmp_path / "a.png")
    Image.fromarray(pixels(4, 4, 3)).save(tmp_path / "b.png")
    assert fmt.read_folder(tmp_path).shape == (2, 3, 4, 4)


# Broken files

Write = Callable[[Path], object]
CUT = gzip.compress(idx(pixels(40, 28, 28)))[:-500]
BROKEN: list[tuple[Callable[[Path], Tensor], str, Write, str]] = [
    (fmt.read_idx, "cut.gz", lambda p: p.write_bytes(CUT), "truncated"),
    (fmt.read_idx, "plain.gz", lambda p: p.write_bytes(idx(pixels(1, 2, 2))), "cannot be read"),
    (fmt.read_idx, "short", lambda p: p.write_bytes(b"\0\0"), "2 bytes"),
    (fmt.read_idx, "labels", lambda p: p.write_bytes(struct.pack(">4I", 0x801, 8, 0, 0)), "0x00000801"),
    (fmt.read_idx, "lacking", lambda p: p.write_bytes(idx(pixels(2, 2, 2))[:-3]), "8 bytes, found 5 bytes"),
    (fmt.read_cifar_binary, "b.bin", lambda p: p.write_bytes(bytes(3072)), "3073 bytes .*, found 3072 bytes"),
    (fmt.read_cifar_binary, "empty.bin", lambda p: p.write_bytes(b""), "found 0 bytes"),
    (fmt.read_cifar_pickle, "cut", lambda p: p.write_bytes(pickle.dumps({"data": pixels(2, 3072)})[:-99]), "refused"),
    (fmt.read_cifar_pickle, "list", lambda p: p.write_bytes(pickle.dumps([1])), "dictionary, found list"),
    (fmt.read_cifar_pickle, "none", lambda p: p.write_bytes(pickle.dumps({})), "found NoneType"),
    (fmt.read_cifar_pickle, "size", lambda p: p.write_bytes(pickle.dumps({"data": pixels(2, 9)})), r"\(2, 9\)"),
    (fmt.read_array, "float.npy", lambda p: np.save(p, np.ones((2, 3, 3))), "uint8, found float64"),
    (fmt.read_array, "flat.npy", lambda p: np.save(p, pixels(2, 3)), r"shape .*, found uint8 of shape \(2, 3\)"),
    (fmt.read_array, "five.npy", lambda p: np.save(p, pixels(2, 5, 5, 5)), r"C = 1 or 3, found"),
    (
        fmt.read_array,
        "cut.npy",
        lambda p: (np.save(p, pixels(9, 9, 9)), os.truncate(p, 300)),
        r"\(9, 9, 9\), found 172 bytes",
    ),
    (fmt.read_array, "object.npy", lambda p: np.save(p, np.array([{}])), "uint8, found object"),
    (fmt.read_array, "two.npz", lambda p: np.savez(p, a=pixels(2, 3, 3), b=pixels(2, 3, 3)), r"\['a', 'b'\]"),
    (fmt.read_array, "cut.npz", lambda p: (np.savez(p, pixels(9, 9, 9)), os.truncate(p, 300)), "truncated|cannot"),
    (fmt.read_array, "text.npz", lambda p: p.write_text("no"), "not a zip file"),
    (lambda p: fmt.read_imagenet([p], 4), "x.npz", lambda p: np.savez(p, labels=np.ones(3)), "data"),
    (lambda p: fmt.read_imagenet([p], 4), "y.npz", lambda p: np.savez(p, data=pixels(3, 47)), r"48\), found"),
    (lambda p: fmt.read_imagenet([p], 4), "z.npz", lambda p: np.savez(p, data=pixels(3)), "two dimensions"),
    (lambda p: fmt.read_folder(p.parent), "bad.png", lambda p: p.write_bytes(b"not an image"), "cannot be read"),
]


@pytest.mark.parametrize(("read", "name", "write", "message"), BROKEN, ids=[case[1] for case in BROKEN])
def test_broken_file_is_named(
    tmp_path: Path, read: Callable[[Path], Tensor], name: str, write: Write, message: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("read", [fmt.read_idx, fmt.read_cifar_binary, fmt.read_cifar_pickle, fmt.read_array])
def test_missing_file_is_named(tmp_path: Path, read: Callable[[Path], Tensor]) -> None:
    with pytest.raises(DataError, match=r"nowhere.npy: .*no such file"):
        read(tmp_path / "nowhere.npy")


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", range(6))
def test_malicious_pickle_is_not_executed(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": Malicious(tmp_path / "executed")}, protocol))
    with pytest.raises(DataError, match="mkdir"):
        fmt.read_cifar_pickle(tmp_path / "batch")
    assert not (tmp_path / "executed").exists()


def test_unusable_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected image files .*found none"):
        fmt.read_folder(tmp_path)
    Image.fromarray(pixels(64, 64)).save(tmp_path / "a.png")
    Image.fromarray(pixels(64, 65)).save(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"b.png: expected 64x64 pixels like a.png, found 65x64"):
        fmt.read_folder(tmp_path)
    os.remove(tmp_path / "b.png")
    os.truncate(tmp_path / "a.png", 1000)  # the header is whole, the pixels are not
    with pytest.raises(DataError, match=r"a.png: .*truncated"):
        fmt.read_folder(tmp_path)
    Image.fromarray(pixels(64, 64).astype(np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="8 bits per channel, found one of mode I;16"):
        fmt.read_folder(tmp_path)


# Sources


def small_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "mnist") -> None:
    """Sixty training and ten test images in place of the canonical files, with their own checksums."""
    folder.mkdir(parents=True)
    for file, count in zip(MNIST, (60, 10), strict=True):
        (folder / file).write_bytes(gzip.compress(idx(pixels(count, 28, 28)), mtime=len(name)))
    known = {file: (f"md5:{pooch.file_hash(str(folder / file), alg='md5')}",) for file in MNIST}
    mirrors = src.SOURCES[name][0].mirrors
    monkeypatch.setattr(src, "SOURCES", {**src.SOURCES, name: (src.Source(known, mirrors=mirrors),)})


@pytest.mark.parametrize("place", ["mnist", "."])
def test_found_in_either_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    root = tmp_path / "root"
    small_mnist(root / place, monkeypatch)
    images = load("mnist", root)
    assert (len(images.train), len(images.valid), len(images.test)) == (54, 6, 10)
    assert images.event_shape == (1, 28, 28)
    monkeypatch.setenv("SILENTGRAD_DATA", str(root))
    assert torch.equal(load("mnist").train, images.train)
    assert "54 + 6 + 10" in cat.check("mnist")


def test_found_in_the_cache(tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_mnist(offline / "mnist", monkeypatch)
    assert len(load("mnist", tmp_path).train) == 54


def test_another_datasets_files_of_the_same_name_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    small_mnist(root, monkeypatch)
    assert src.find("fashion-mnist", root) is None
    small_mnist(root / "fashion-mnist", monkeypatch, "fashion-mnist")
    assert src.locate("fashion-mnist", root)[MNIST[0]].parent == root / "fashion-mnist"


def test_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_mnist(tmp_path / "mnist", monkeypatch)
    (tmp_path / "mnist" / MNIST[0]).write_bytes(gzip.compress(idx(pixels(60, 28, 28)), 1))
    with pytest.raises(DataError, match=r"train-images.*expected md5:\w+, found md5:"):
        load("mnist", tmp_path)
    assert "expected md5:" in {row.name: row.where for row in cat.describe(tmp_path)}["mnist"]


def test_offline_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "mnist") in message
    for file in MNIST:
        assert file in message
    for mirror in src.SOURCES["mnist"][0].mirrors:
        assert f"no route to {mirror}" in message


@pytest.mark.parametrize("name", ["imagenet32", "imagenet64"])
def test_imagenet_is_requested_not_downloaded(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"(?s)train_data_batch_1.npz.*val_data.npz.*image-net.org"):
        load(name, tmp_path)
    with pytest.raises(DataError, match="was not found"):
        cat.check(name, tmp_path)


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
    assert len(load("mnist", tmp_path / "root").test) == 10
    assert len(asked) == 4
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
        archive=src.Remote("small.tar.gz", digest),
    )

    def download(_: str, output: str, __: object) -> None:
        Path(output).write_bytes((tmp_path / "small.tar.gz").read_bytes())

    monkeypatch.undo()
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *_, **__: download)
    monkeypatch.setattr(src, "SOURCES", {"cifar10": (source,)})
    assert sorted(src.locate("cifar10", tmp_path / "root")) == sorted(batches)
    assert (len(load("cifar10", tmp_path / "root").train), len(load("cifar10", tmp_path / "root").valid)) == (9, 1)


def test_partial_cifar_of_either_version(tmp_path: Path) -> None:
    binary, python = tmp_path / "b" / "cifar10", tmp_path / "p" / "cifar-10-batches-py"
    binary.mkdir(parents=True)
    python.mkdir(parents=True)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        np.zeros(30_730_000, np.uint8).tofile(binary / name)
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        (python / name).write_bytes(pickle.dumps({b"data": pixels(20, 3072)}))
    assert [len(split) for split in _splits("cifar10", tmp_path / "b")] == [9000, 1000, 10000]
    assert [len(split) for split in _splits("cifar10", tmp_path / "p")] == [36, 4, 20]
    os.truncate(binary / "test_batch.bin", 30_730_000 - 3073)
    with pytest.raises(DataError, match=r"test_batch.bin: expected size:30730000, found size:30726927"):
        load("cifar10", tmp_path / "b")


def test_imagenet_batches_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "imagenet32"
    folder.mkdir()
    for i in range(1, 11):
        np.savez(folder / f"train_data_batch_{i}.npz", data=np.full((2, 3072), i, np.uint8))
    np.savez(folder / "val_data.npz", data=pixels(3, 3072))
    train, valid, test = _splits("imagenet32", tmp_path)
    assert train[:, 0, 0, 0].tolist() == [i for i in range(1, 10) for _ in range(2)]
    assert valid[:, 0, 0, 0].tolist() == [10, 10]
    assert len(test) == 3


def _splits(name: str, root: Path | None = None) -> tuple[Tensor, Tensor, Tensor]:
    images = load(name, root)
    return images.train, images.valid, images.test


# Catalogue


def test_digits_need_no_files() -> None:
    images = load("digits")
    assert [len(split) for split in (images.train, images.valid, images.test)] == [1297, 250, 250]
    assert images.levels == 17
    assert images.event_shape == (1, 8, 8)
    assert int(images.train.max()) == 16
    assert torch.equal(images.test, load("digits").test)
    assert images.train[0, 0, 3].tolist() == [0, 0, 0, 0, 12, 11, 0, 0]  # the order is part of the definition


def test_array_splits_are_deterministic_and_disjoint(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100, dtype=np.uint8).reshape(100, 1, 1).repeat(2, 1))
    splits = _splits(str(tmp_path / "a.npy"))
    assert [len(split) for split in splits] == [80, 10, 10]
    values = [split[:, 0, 0, 0].tolist() for split in splits]
    assert sorted(chain(*values)) == list(range(100))
    assert values[0] != sorted(values[0])
    torch.manual_seed(5)
    np.random.seed(5)
    assert all(torch.equal(a, b) for a, b in zip(splits, _splits(str(tmp_path / "a.npy")), strict=True))


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


def test_folder_by_path(tmp_path: Path) -> None:
    for i in range(3):
        Image.fromarray(pixels(2, 2)).save(tmp_path / f"{i}.png")
    assert [len(split) for split in _splits(str(tmp_path))] == [1, 1, 1]
    os.remove(tmp_path / "0.png")
    with pytest.raises(DataError, match="expected images for train, validation and test, found 0, 1 and 1"):
        load(str(tmp_path))


def test_unknown_name() -> None:
    with pytest.raises(DataError, match=r"(?s)Did you mean cifar10\?") as caught:
        load("cifar-10")
    assert all(name in str(caught.value) for name in NAMES)


def test_describe_covers_every_name(tmp_path: Path) -> None:
    rows = cat.describe(tmp_path)
    assert tuple(row.name for row in rows) == NAMES
    assert [row.where for row in rows] == ["scikit-learn"] + ["not found"] * 5
    assert "1297 + 250 + 250" in cat.check("digits")


SPLITS = {"mnist": (55000, 5000, 10000), "cifar10": (None, None, 10000), "imagenet32": (None, None, None)}


@pytest.mark.parametrize("name", SPLITS)
def test_real_files(name: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"{SHARED / name} does not exist; set SILENTGRAD_DATA to a folder with {name}/ to run this")
    images = load(name, SHARED)
    assert images.event_shape == {row.name: row.shape for row in cat.describe(SHARED)}[name]
    for split, count in zip((images.train, images.valid, images.test), SPLITS[name], strict=True):
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
    batches.set_epoch(epoch)
    return [batch.flatten().tolist() for _, batch in batches]


def test_order_depends_on_seed_and_epoch_only() -> None:
    orders = {(s, e): order(Batches(NUMBERED, 8, True, seed=s), e) for s in range(3) for e in range(3)}
    assert len({str(value) for value in orders.values()}) == 9
    for (seed, epoch), value in orders.items():
        torch.manual_seed(seed + epoch + 100)
        assert order(Batches(NUMBERED, 8, True, seed=seed), epoch) == value
        assert sorted(chain(*value)) == list(range(50))
    assert order(Batches(NUMBERED, 50, False, seed=0), 1) == [list(range(50))]


def test_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    order(Batches(NUMBERED, 8, True, seed=0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_together_are_one_process(world_size: int, drop_last: bool) -> None:
    images = NUMBERED[:47]  # the last batch, of 7, does not divide evenly
    alone = order(Batches(images, 8, True, 0, drop_last=drop_last), 3)
    ranks = [order(Batches(images, 8, True, 0, r, world_size, drop_last), 3) for r in range(world_size)]
    assert [list(chain(*shares)) for shares in zip(*ranks, strict=True)] == alone
    assert len(alone) == len(Batches(images, 8, True, 0, drop_last=drop_last)) == 6 - drop_last


def test_batch_sizes_that_cannot_be_shared() -> None:
    for batch_size, world_size in ((9, 2), (0, 1), (-4, 2)):
        with pytest.raises(DataError, match="positive multiple"):
            Batches(NUMBERED, batch_size, True, 0, 0, world_size)
    with pytest.raises(DataError, match="leave 2 rows to 4 processes"):
        Batches(NUMBERED, 8, True, 0, 0, 4)


class Recorder(lightning.LightningModule):
    """Trains nothing and remembers what it is fed; stops as if interrupted at a given step."""

    def __init__(self, stop: int = -1) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, int, list[int]]] = []
        self.validated: list[str] = []
        self.stop = stop

    def training_step(self, batch: tuple[int, Rows], _: int) -> Tensor:
        if len(self.seen) == self.stop:
            raise InterruptedError
        self.seen.append((self.current_epoch, batch[0], batch[1].stored.flatten().tolist()))
        return self.weight * 0

    def validation_step(self, split: str, _: int) -> None:
        self.validated.append(split)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


# Lightning's own: its use of torch's LeafSpec, advice on loading with workers, and a folder that it made itself
quiet_lightning = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning", "ignore:Checkpoint directory:UserWarning", "ignore:.*num_workers:UserWarning"
)


def trainer(folder: Path, epochs: int, *callbacks: lightning.Callback) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        default_root_dir=folder, max_epochs=epochs, accelerator="cpu", devices=1, callbacks=[*callbacks], **quiet
    )


def every_step(folder: Path) -> lightning.Callback:
    return lightning.pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=1)


def numbered_data(tmp_path: Path) -> ObservationData:
    np.save(tmp_path / "numbered.npy", NUMBERED.squeeze(1).numpy())
    return ObservationData(str(tmp_path / "numbered.npy"), batch_size=8, seed=3)


@quiet_lightning
def test_lightning_sets_the_epoch(tmp_path: Path) -> None:
    data, module = numbered_data(tmp_path), Recorder()
    trainer(tmp_path, 3, every_step(tmp_path / "run")).fit(module, data)
    expected = Batches(data.observations.train, 8, True, 3)
    assert [[b for e, _, b in module.seen if e == epoch] for epoch in range(3)] == [
        order(expected, e) for e in range(3)
    ]
    assert [index for epoch, index, _ in module.seen if epoch == 1] == list(range(5))
    assert module.validated[-1:] == ["valid"]


@quiet_lightning
@pytest.mark.parametrize("stop", [7, 10])
def test_resumed_run_sees_what_an_uninterrupted_one_does(tmp_path: Path, stop: int) -> None:
    whole, first, second = Recorder(), Recorder(stop), Recorder()
    trainer(tmp_path, 3, every_step(tmp_path / "whole")).fit(whole, numbered_data(tmp_path))
    with pytest.raises(InterruptedError):
        trainer(tmp_path, 3, every_step(tmp_path / "cut")).fit(first, numbered_data(tmp_path))
    last = tmp_path / "cut" / "last.ckpt"
    trainer(tmp_path, 3, every_step(last.parent)).fit(second, numbered_data(tmp_path), ckpt_path=last)
    assert first.seen + second.seen == whole.seen
