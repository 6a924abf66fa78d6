"""HDF5 files that mean harm: whatever leads out of them or claims more than they hold is refused, and nothing else."""

import os
import resource
import signal
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from cells import ORDER, ROWS, WIDTH, as_anndata, assert_rows, counts
from refusals import refused
from silentgrad.lab.data import DataError, Selection, load
from silentgrad.lab.data.h5ad import put_obsm, read_anndata

SIDE_INFO = Selection(label="batch", covariates=("age",))
Change = Callable[[Any, Path], object]  # of an open file, in the folder of others
Pick = Callable[[Sequence[Any]], Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("cells") / "cells.h5ad"
    table = as_anndata(counts().astype(np.float32))
    table.obsm["X_pca"], table.uns["notes"] = np.ones((ROWS, 2)), {"of": "nobody"}
    table.write_h5ad(path)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path: Path, saved: bytes) -> Path:
    """Make a folder with files of somebody else's, and a pipe that nobody writes to."""
    for name in ("cells.h5ad", "victim.h5ad"):
        (tmp_path / name).write_bytes(saved)
    (tmp_path / "secret.raw").write_bytes(bytes(range(256)) * 16)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def others(folder: Path) -> dict[str, object]:
    """All that is in the folder of somebody else's."""
    found: dict[str, object] = {}
    for path in folder.iterdir():
        found[path.name] = path.read_bytes() if path.is_file() else path.stat().st_mode
    return {name: content for name, content in found.items() if name not in ("cells.h5ad", "copy.h5ad")}


# --- one by one


def linked(place: str, target: Callable[[Path], object]) -> Change:
    def change(file: Any, folder: Path) -> None:
        del file[place]
        file[place] = target(folder)

    return change


def made(place: str, make: Callable[[Any, str, Path], object]) -> Change:
    """Put something else in the place of an element, with its attributes where it can have any."""

    def change(file: Any, folder: Path) -> None:
        attributes = dict(file[place].attrs)
        del file[place]
        make(file, place, folder)
        with suppress(Exception):
            file[place].attrs.update(attributes)

    return change


def stored_in(name: str, count: int = 100) -> Callable[[Any, str, Path], object]:
    """Make a dataset whose numbers lie in another file."""
    return lambda group, place, folder: group.create_dataset(
        place, (count,), "f4", external=[(str(folder / name), 0, h5py.h5f.UNLIMITED)]
    )


def virtual(group: Any, place: str, folder: Path) -> None:
    layout = h5py.VirtualLayout((100,), "f4")
    layout[:] = h5py.VirtualSource(folder / "victim.h5ad", "X/data", (100,))
    group.create_virtual_dataset(place, layout)


def claims(*shape: int, dtype: object = "f4", **options: object) -> Callable[[Any, str, Path], object]:
    """Make a dataset of which nothing is stored."""
    return lambda group, place, _: group.create_dataset(place, shape, dtype, **options)


def one_text(count: int, text: str) -> Callable[[Any, str, Path], object]:
    """Many names that are all the same text: it is stored once, and compressed references to it."""

    def make(group: Any, place: str, _: Path) -> None:
        group[f"{place}_one"] = np.array([text], object)
        stored = group.create_dataset(
            place, (count,), h5py.string_dtype(), chunks=(count,), compression="gzip", maxshape=(None,)
        )
        group.file.flush()
        start = group[f"{place}_one"].id.get_offset()
        reference = Path(group.file.filename).read_bytes()[start : start + 16]  # length, address and number in the heap
        stored.id.write_direct_chunk((0,), zlib.compress(reference * count, 9))

    return make


def gigabyte() -> bytes:
    """Zeros, deflated: one block many times, and their checksum."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\x9c" + 1024 * block + b"\x03\x00" + struct.pack(">HH", 2**30 % 65521, 1)


def inflates(*filters: str, mask: int = 0) -> Callable[[Any, str, Path], object]:
    """Make a dataset of the right size whose one chunk inflates to 1 GB, in 1 MB or, compressed twice, in less."""

    def make(group: Any, place: str, _: Path) -> None:
        count, properties = counts().nnz, h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((count,))
        for name in filters:
            properties.set_shuffle() if name == "shuffle" else properties.set_deflate()
        packed = zlib.compress(gigabyte()) if filters.count("deflate") == 2 else gigabyte()
        space, dtype = h5py.h5s.create_simple((count,)), h5py.h5t.IEEE_F32LE
        dataset = h5py.h5d.create(group.id, place.encode(), dtype, space, properties)
        dataset.write_direct_chunk((0,), packed, mask)

    return make


def zeros(count: int, dtype: str, step: int = 1) -> Callable[[Any, str, Path], object]:
    """Make a dataset of many zeros, which deflate to a thousandth."""

    def make(group: Any, place: str, _: Path) -> None:
        stored = group.create_dataset(place, (count,), dtype, chunks=(step,), compression=9)
        packed = zlib.compress(bytes(step * stored.dtype.itemsize), 9)
        for first in range(0, count, step):
            stored.id.write_direct_chunk((first,), packed)

    return make


TEXT = h5py.string_dtype()
HARM: dict[str, tuple[Change, str]] = {
    "obsm elsewhere": (linked("obsm", lambda f: h5py.ExternalLink(f / "victim.h5ad", "/")), "a link of /obsm to '.*v"),
    "a pipe for X": (linked("X", lambda f: h5py.ExternalLink(f / "pipe", "X")), "a link of /X to '.*pipe'"),
    "link to nothing": (linked("X", lambda _: h5py.SoftLink("/nowhere")), "cannot be read"),
    "storage elsewhere": (made("X/data", stored_in("secret.raw")), "of /X/data in the file itself, found external st"),
    "virtual": (made("X/data", virtual), "of /X/data in the file itself, found a virtual dataset"),
    "2.4 GB of nothing": (made("X/data", claims(600_000_000)), "2,400,000,000 bytes of /X/data, found 0 bytes stored"),
    "1 GB in a chunk": (made("X/data", inflates("deflate")), "chunks of .* bytes in /X/data, found larger ones"),
    "1 GB not shuffled": (made("X/data", inflates("shuffle", "deflate", mask=1)), "in /X/data, found larger ones"),
    "1 GB compressed twice": (made("X/data", inflates("deflate", "deflate")), r"lzf, found the filters \[1, 1\]"),
    "a dense X of nothing": (made("layers/counts", claims(ROWS, 10**8, dtype="u1")), "50 rows and 7 columns, as in"),
    "many of one name": (made("obs/batch/categories", one_text(10**6, "cell")), "found .* of /obs/batch/cat.* or more"),
    "one long name": (made("obs/batch/categories", one_text(5000, "cell" * 5000)), "bytes of /obs/batch/cat.* or more"),
    "1 GB of zeros": (made("X/data", zeros(2**28, "f4", 2**24)), "1,073,741,824 bytes of /X/data, found"),
    "1 GB of names": (made("obs/_index", zeros(ROWS, "S20000000")), "1,000,000,000 bytes of /obs/_index, found"),
    "deep groups": (lambda file, _: file["uns"].create_group("/".join(["a"] * 1500)), "at most 100 groups within one"),
    "references": (
        made("obs/batch/codes", lambda g, place, _: g.create_dataset(place, data=[g.ref] * ROWS, dtype=h5py.ref_dtype)),
        "numbers or text in /obs/batch/codes, found references",
    ),
    "many words": (
        lambda file, _: file["obs/batch"].attrs.create("encoding-type", ["categorical"] * 99, dtype=TEXT),
        "one value, or numbers, as 'encoding-type' of /obs/batch, found several",
    ),
}


def in_child(work: Callable[[], object]) -> str:
    """Return what some work says, in a process of its own, which is killed when it takes more than 5 s."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        try:
            os.write(writer, str(work()).encode())
        finally:  # and never back into the tests
            os._exit(sys.exc_info()[0] is not None)
    os.close(writer)
    with os.fdopen(reader) as said:
        words = said.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return words


@pytest.mark.parametrize(("change", "message"), HARM.values(), ids=HARM)
def test_what_leads_out_or_is_not_there_is_refused(folder: Path, change: Change, message: str) -> None:
    path = folder / "cells.h5ad"
    with h5py.File(path, "r+") as file:
        change(file, folder)
    before = others(folder)
    selection = Selection("counts" if "rows and" in message else None, "batch")
    said = in_child(lambda: refused(DataError, message, lambda: load(str(path), selection=selection)))
    assert (str(path) in said, "\n" in said) == (True, False)
    assert others(folder) == before


@pytest.mark.parametrize("link", [lambda f: h5py.ExternalLink(f / "victim.h5ad", "/"), lambda _: h5py.SoftLink("/uns")])
def test_nothing_is_written_through_a_link(folder: Path, link: Callable[[Path], object]) -> None:
    path = folder / "cells.h5ad"
    with h5py.File(path, "r+") as file:
        linked("obsm", link)(file, folder)
    before = others(folder)
    refused(DataError, "a link", lambda: put_obsm(path, "X_silentgrad", torch.zeros(ROWS, 2)))
    assert others(folder) == before


def test_links_within_a_file_compression_and_nothing_under_a_name_are_read(folder: Path) -> None:
    path = folder / "cells.h5ad"
    matrix = sp.csr_matrix(np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) % 99, dtype=np.float32)
    table = as_anndata(matrix)
    table.uns["nothing"] = None
    table.write_h5ad(path, compression="gzip", compression_opts=9)
    assert read_anndata(path).uns == {"nothing": None}
    with h5py.File(path, "r+") as file:
        file["layers/soft"], file["layers/hard"] = h5py.SoftLink("/X"), file["X"]
        file["uns/round"] = file["/"]
    for layer in ("soft", "hard"):
        assert_rows(load(str(path), selection=Selection(layer)), matrix.toarray())
    put_obsm(path, "X_silentgrad", torch.ones(ROWS, 2))
    with h5py.File(path) as file:
        assert file["obsm/X_silentgrad"].shape == (ROWS, 2)


# --- many at random

PLACES = ["X", "X/data", "X/indices", "X/indptr", "obs", "obs/_index", "obs/age", "obs/batch", "obs/batch/codes"]
PLACES += ["obs/batch/categories", "var", "var/_index", "obsm", "obsm/X_pca", "layers", "layers/counts", "uns/notes"]
NUMBERS = {"X/data": counts().data, "X/indices": counts().indices, "X/indptr": counts().indptr}
TYPES = ["S4", "?", "f8", "u1", "c16", TEXT, h5py.ref_dtype, h5py.regionref_dtype, h5py.vlen_dtype("i4")]
TYPES += [np.dtype([("a", "i4"), ("b", "f4")]), np.dtype(("i4", (3,)))]
LENGTHS = [0, 1, WIDTH, ROWS, ROWS + 1, counts().nnz]
NAMES = ["X", "obs", "a\nb", "a/b", "é" * 300, "..", "obs/age"]
WORDS = ["array", "csr_matrix", "categorical", "dict", 7, [2**40, 2**40], [-1, 1], ["a"] * 999, 1e300, *NAMES]
ATTRIBUTES = ["encoding-type", "encoding-version", "_index", "column-order", "shape", "more"]
FILTERS = [{}, {"chunks": (1024,)}, {"chunks": (1024,), "compression": 9}, {"chunks": (64,), "fletcher32": True}]


def sizes(pick: Pick, place: str) -> Change:
    """Sizes of which nothing is stored, little to much."""
    dtype, options = pick(["f4", "u1", "i8", TEXT]), pick(FILTERS)
    return made(place, claims(10 ** pick(range(11)), dtype=dtype, maxshape=(None,), **options))


def filled(pick: Pick, place: str) -> Change:
    """Much that is stored in little: zeros that are compressed, or one text many times."""
    zeros, text = np.zeros(10 ** pick(range(7)), np.uint8), "name" * 10 ** pick(range(4))
    put = partial(h5py.Group.create_dataset, data=zeros, compression=9, shuffle=True)
    return made(place, pick([one_text(10 ** pick(range(6)), text), lambda group, name, _: put(group, name)]))


def types(pick: Pick, place: str) -> Change:
    shape, dtype = pick([(pick(LENGTHS),)] * 8 + [(pick(LENGTHS), 2), ()]), pick(TYPES)
    options = pick([{"shape": shape, "dtype": dtype, "fillvalue": None}] * 9 + [{"data": h5py.Empty("f4")}])
    return made(place, lambda group, name, _: group.create_dataset(name, **options))


def retyped(pick: Pick, place: str) -> Change:
    """Store the same numbers in another type, which is a right file still."""
    place, options = pick(list(NUMBERS)), pick([{}, {"chunks": (7,)}, {"compression": 9}])
    data = NUMBERS[place].astype(pick(["i4", "i8", "u2", ">i4"]))
    return made(place, lambda group, name, _: group.create_dataset(name, data=data, **options))


def renamed(pick: Pick, place: str) -> Change:
    return lambda file, _: file.move(place, pick(NAMES))


def described(pick: Pick, place: str) -> Change:
    return lambda file, _: file[place].attrs.__setitem__(pick(ATTRIBUTES), pick(WORDS))


def hard_links(pick: Pick, place: str) -> Change:
    return lambda file, folder: linked(place, lambda _: file[pick(["/", *PLACES])])(file, folder)


def links(pick: Pick, place: str) -> Change:
    name, target = pick(["victim.h5ad", "pipe", "secret.raw", "nowhere.h5"]), pick(["/", *PLACES])
    soft = pick([target, f"/{target}", "..", "/nowhere"])
    return linked(place, lambda folder: pick([h5py.ExternalLink(folder / name, target), h5py.SoftLink(soft)]))


def storage(pick: Pick, place: str) -> Change:
    return made(place, pick([stored_in("secret.raw", pick(LENGTHS)), stored_in("pipe"), virtual]))


WITHIN = (sizes, filled, types, retyped, renamed, described, hard_links)
WITHOUT = (links, storage)  # at the end, since what is behind a link is not to be changed here


def mutate(path: Path, seed: int) -> None:
    """Change a file in one to three ways, as far as they go together."""
    rng = np.random.default_rng(seed)

    def pick(items: Sequence[Any]) -> Any:
        return items[rng.integers(len(items))]

    kinds = [pick(WITHIN) for _ in range(rng.integers(3))]
    if not kinds or rng.random() < 0.3:
        kinds.append(pick(WITHOUT))
    for kind in kinds:
        with suppress(Exception), h5py.File(path, "r+") as file:
            kind(pick, pick(PLACES))(file, path.parent)


def is_right(path: Path) -> bool:
    """Return whether a file is read as h5py and SciPy read it, and written as anndata reads it."""
    found = load(str(path), selection=SIDE_INFO)
    with h5py.File(path) as file:
        x, names = file["X"], anndata.io.read_elem(file["obs"][file["obs"].attrs["_index"]])
        dense = sp.csr_matrix((x["data"][:], x["indices"][:], x["indptr"][:]), x.attrs["shape"]).toarray()
    assert_rows(found, dense)
    assert found.row_names.train == tuple(map(str, names[ORDER[:40]]))
    copy = path.with_name("copy.h5ad")
    copy.write_bytes(path.read_bytes())
    put_obsm(copy, "X_silentgrad", torch.ones(ROWS, 2))
    with h5py.File(copy) as file:
        return np.array_equal(anndata.io.read_elem(file["obsm/X_silentgrad"]), np.ones((ROWS, 2)))


def read_all(folder: Path, saved: bytes, seeds: range) -> str:
    """Return how many mutated files were read, and how much memory they took, in bytes at the most."""
    path, before, read = folder / "cells.h5ad", others(folder), 0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in seeds:
        path.write_bytes(saved)
        mutate(path, seed)
        signal.alarm(5)
        with suppress(DataError):
            read += is_right(path)
        signal.alarm(0)
        assert others(folder) == before, seed
    return f"{read} {1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory)}"


def test_mutated_files_are_read_right_or_refused(folder: Path, saved: bytes) -> None:
    read, memory = map(int, in_child(partial(read_all, folder, saved, range(200))).split())
    assert 30 < read < 60
    assert memory < 100e6
