"""Files that mean harm, or only look odd: each is refused by its name, at once, and nothing hangs or crashes."""

import contextlib
import gzip
import io
import os
import pickle
import stat
import struct
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from silentgrad.lab.data import DataError, load
from silentgrad.lab.data import formats as fmt
from silentgrad.lab.data.pickles import MOST_CONTAINERS

Read = Callable[[Path], Tensor]


def npy(header: str | bytes, version: tuple[int, int] = (1, 0), content: bytes = bytes(48)) -> bytes:
    """An array file with a header of one's own."""
    text = header.encode() if isinstance(header, str) else header
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + content


def described(shape: str = "(3, 4, 4)", kind: str = "'|u1'", fortran: str = "False") -> str:
    return f"{{'descr': {kind}, 'fortran_order': {fortran}, 'shape': {shape}}}\n"


ODD = {
    "no dictionary": npy("[1, 2, 3]\n"),
    "no python": npy("{'descr': \n"),
    "unclosed string": npy("{'descr': '''\n"),
    "nested": npy("(" * 5000 + ")" * 5000),
    "bytes": npy(b"\xff\xfe\x00\x80"),
    "not in utf-8": npy(b"\xff\xfe\x00\x80", (3, 0)),
    "long header": npy(" " * 20000 + described()),
    "no shape": npy("{'descr': '|u1', 'fortran_order': False}\n"),
    "unknown version": npy(described(), (9, 9)),
    "truncated header": npy(described())[:30],
    "only the magic": b"\x93NUMPY",
    "empty": b"",
    "objects": npy(described(kind="'|O'")),
    "structured": npy(described(kind="[('a', '|u1'), ('b', '<f4')]")),
    "sub-arrays": npy(described(kind="('|u1', (2**70,))")),
    "unknown kind": npy(described(kind="'nonsense'")),
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


def in_npz(content: bytes, name: str = "data.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
@pytest.mark.parametrize("content", ODD.values(), ids=ODD.keys())
def test_odd_arrays_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.npy").write_bytes(content)
    (tmp_path / "odd.npz").write_bytes(in_npz(content))
    reads: list[tuple[str, Read]] = [("odd.npy", lambda path: load(str(path)).train)]
    reads += [("odd.npz", fmt.read_array), ("odd.npz", lambda path: fmt.read_imagenet([path], 4))]
    for name, read in reads:
        with pytest.raises(DataError) as caught:
            read(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("fortran", [False, True])
def test_every_version_and_order_is_read(tmp_path: Path, version: tuple[int, int], fortran: bool) -> None:
    images = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    content = npy(described(fortran=str(fortran)), version, images.tobytes("F" if fortran else "C"))
    (tmp_path / "a.npy").write_bytes(content)
    (tmp_path / "a.npz").write_bytes(in_npz(content))
    for name in ("a.npy", "a.npz"):
        assert np.array_equal(fmt.read_array(tmp_path / name)[:, 0].numpy(), images)


def lying_zip() -> bytes:
    """A few bytes that say to be more than any machine's memory, in the archive's directory too."""
    size = 2**50
    content = bytearray(in_npz(npy(described(f"({size // 16}, 4, 4)"), content=b"")))
    header = len(npy(described(f"({size // 16}, 4, 4)"), content=b""))
    place = content.index(b"PK\x01\x02")
    content[place + 24 : place + 28] = b"\xff" * 4  # the true size follows in an extra field
    extra = struct.pack("<HHQ", 1, 8, size + header)
    content[place + 30 : place + 32] = struct.pack("<H", len(extra))
    end = content.index(b"PK\x05\x06")
    name = struct.unpack("<H", content[place + 28 : place + 30])[0]
    content[place + 46 + name : place + 46 + name] = extra
    (length,) = struct.unpack("<I", content[end + len(extra) + 12 : end + len(extra) + 16])
    content[end + len(extra) + 12 : end + len(extra) + 16] = struct.pack("<I", length + len(extra))
    return bytes(content)


UNREADABLE: dict[str, tuple[str, bytes, Read]] = {
    "zip bomb": ("a.npz", lying_zip(), fmt.read_array),
    "zip bomb of rows": ("a.npz", lying_zip(), lambda path: fmt.read_imagenet([path], 4)),
    "no such member": ("a.npz", in_npz(npy(described()), "other.npy"), lambda path: fmt.read_imagenet([path], 4)),
    "empty archive": ("a.npz", b"PK\x05\x06" + bytes(18), fmt.read_array),
    "member that is no array": ("a.npz", in_npz(b"text", "data"), fmt.read_array),
    "array in place of an archive": ("a.npz", npy(described()), fmt.read_array),
    "idx bomb": ("a.gz", gzip.compress(struct.pack(">4I", 0x803, *[2**32 - 1] * 3) + bytes(9)), fmt.read_idx),
    "idx with more": ("a", struct.pack(">4I", 0x803, 1, 1, 1) + bytes(9), fmt.read_idx),
}


@pytest.mark.parametrize(("name", "content", "read"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_archives_that_lie_are_named(tmp_path: Path, name: str, content: bytes, read: Read) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        read(tmp_path / name)


PIPES: list[tuple[str, Read]] = [
    ("a.npy", fmt.read_array),
    ("a.npz", fmt.read_array),
    ("a.npz", lambda path: fmt.read_imagenet([path], 4)),
    ("a.gz", fmt.read_idx),
    ("a", fmt.read_idx),
    ("a.bin", fmt.read_cifar_binary),
    ("a", fmt.read_cifar_pickle),
    ("a.png", lambda path: fmt.read_folder(path.parent)),
]


@pytest.mark.parametrize(("name", "read"), PIPES)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str, read: Read) -> None:
    os.mkfifo(tmp_path / name)
    writer = os.open(tmp_path / name, os.O_RDWR)
    end = threading.Timer(1, os.close, [writer])  # until then, who opens it waits for what will be written
    end.start()
    with pytest.raises(DataError, match=f"{name}: expected .*, found no regular file"):
        read(tmp_path / name)
    assert end.is_alive()
    end.cancel()
    os.close(writer)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "real.npy", np.ones((3, 4, 4), np.uint8))
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    assert len(fmt.read_array(tmp_path / "link.npy")) == 3
    assert stat.S_ISLNK((tmp_path / "link.npy").lstat().st_mode)


# Pickles


def cifar_batch(images: int) -> bytes:
    """A batch as Python 2 wrote CIFAR-10's, protocol 2, labels and file names included."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    rows = np.random.RandomState(0).randint(0, 256, images * 3072).astype(np.uint8).tobytes()
    labels = b"".join(b"K" + bytes([i % 10]) for i in range(images))
    names = b"".join(text(f"{i:09}.png".encode()) + b"r" + struct.pack("<I", 20 + i) for i in range(images))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09U\x01bq\x0a\x87q\x0bRq\x0c(K\x01"
        b"J"
        + struct.pack("<i", images)
        + b"M\x00\x0c\x86q\x0dcnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(rows)) + rows + b"tb"
    )
    head = b"\x80\x02}q\x01(" + text(b"batch_label") + b"q\x02" + text(b"training batch 1 of 5") + b"q\x03"
    lists = text(b"labels") + b"q\x04]q\x05(" + labels + b"e" + text(b"data") + b"q\x06" + array
    return head + lists + text(b"filenames") + b"q\x12]q\x13(" + names + b"eu."


def test_a_real_batch_is_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(cifar_batch(10_000))
    start = time.process_time()
    images = fmt.read_cifar_pickle(tmp_path / "data_batch_1")
    assert time.process_time() - start < 2
    assert images.shape == (10_000, 3, 32, 32)
    expected = np.random.RandomState(0).randint(0, 256, 10_000 * 3072).astype(np.uint8)
    assert np.array_equal(images.numpy().ravel(), expected)


NESTED = b"\x80\x02}" + b")" + b"\x85" * 1_000_000 + b"Ns."


def test_a_nested_key_does_not_crash_the_interpreter(tmp_path: Path) -> None:
    """Tried in a process of its own, since the hash of a nested tuple would take this one down."""
    (tmp_path / "batch").write_bytes(NESTED)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(DataError):
            fmt.read_cifar_pickle(tmp_path / "batch")
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


PICKLES = {
    "nested lists": (b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".", f"more than {MOST_CONTAINERS} containers"),
    "nested through names": (b"\x80\x02}" + b"q\x00h\x00\x85q\x01h\x01\x85" * 100 + b"Ns.", "containers"),
    "set as a key": (b"\x80\x04}(\x91Ns.", "FROZENSET"),
    "gap in the numbers": (b"\x80\x02}r\xff\xff\xff\x7f.", "gaps"),
    "another object": (b"\x80\x02cnumpy\nndarray\n)\x81.", "NEWOBJ"),
    "an extension": (b"\x80\x02\x82\x01.", "EXT1"),
    "array of objects": (pickle.dumps({"data": np.array([None])}), "not one of bytes"),
    "array of floats": (pickle.dumps({"data": np.ones((2, 3072))}), "not one of bytes"),
    "array without content": (b"\x80\x02}U\x04datacnumpy\nndarray\n)Rs.", "refused"),
}


@pytest.mark.parametrize(("content", "reason"), PICKLES.values(), ids=PICKLES.keys())
def test_pickles_with_more_than_a_batch_needs_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        fmt.read_cifar_pickle(tmp_path / "batch")
