"""Cost of serving batches of a large sparse matrix of counts from disk, in time and memory.

    python benchmarks/sparse.py                                   # some minutes, and 3.6 GB of disk for as long
    python benchmarks/sparse.py --train --batches 100             # with a step of training after each batch
    python benchmarks/sparse.py --rows 20000 --columns 2000       # some seconds

A matrix with one column of every twenty filled (5 %) is written in pieces, as `scipy.sparse.save_npz(...,
compressed=False)` would, read as any data set is, and served in random order. Memory is told apart by what it is: pages
of the file, which the system takes back when it needs them, and memory of the process itself, which is to stay below
the limit. A step of training is that of a linear decoder with 10 latents, a negative binomial likelihood and an encoder
with one layer of 128 units, by the exact gradient.
"""

import argparse
import itertools
import statistics
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.build import model_for
from silentgrad.lab.data import Batches, Observations, Rows, Selection, load
from silentgrad.lab.training import ModelConfig

BATCH = 128
START_ROWS = 1000
STRATUM = 20  # columns of which one is filled
PIECE = 2**22  # entries that are made at a time
LIMIT = 2**31  # bytes of memory of the process itself
Array = np.ndarray[Any, np.dtype[Any]]


def write_matrix(path: Path, rows: int, columns: int) -> None:
    """Return counts in CSR form, in an npz file without compression."""
    filled = columns // STRATUM
    with zipfile.ZipFile(path, "w") as archive:
        _write(archive, "indices", np.int32, rows * filled, _indices(rows, filled))
        _write(archive, "indptr", np.int64, rows + 1, iter([np.arange(rows + 1, dtype=np.int64) * filled]))
        np.save(archive_file(archive, "format"), b"csr")
        np.save(archive_file(archive, "shape"), np.array([rows, columns]))
        _write(archive, "data", np.float32, rows * filled, _counts(rows, filled))


def archive_file(archive: zipfile.ZipFile, name: str) -> Any:
    return archive.open(f"{name}.npy", "w", force_zip64=True)


def _write(archive: zipfile.ZipFile, name: str, dtype: type, length: int, pieces: Iterator[Array]) -> None:
    described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (length,)}
    with archive_file(archive, name) as file:
        np.lib.format.write_array_header_1_0(file, described)
        for piece in pieces:
            file.write(piece.tobytes())


def _indices(rows: int, filled: int) -> Iterator[Array]:
    """One column of each stratum, some rows at a time."""
    rng, first = np.random.default_rng(0), STRATUM * np.arange(filled, dtype=np.int32)
    for count in _pieces(rows, filled):
        yield first + rng.integers(0, STRATUM, (count, filled), dtype=np.int32)


def _counts(rows: int, filled: int) -> Iterator[Array]:
    rng = np.random.default_rng(1)
    for count in _pieces(rows, filled):
        yield rng.integers(1, 50, (count, filled)).astype(np.float32)


def _pieces(rows: int, filled: int) -> Iterator[int]:
    """Numbers of rows that are made at a time."""
    step = max(1, PIECE // filled)
    for first in range(0, rows, step):
        yield min(step, rows - first)


class Memory:
    """The most resident memory of each kind that this process has had within a `with`, beyond what it had before."""

    def __init__(self) -> None:
        self.before = resident()
        self.most = dict.fromkeys(self.before, 0)
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            for kind, size in resident().items():
                self.most[kind] = max(self.most[kind], size - self.before[kind])


def resident() -> dict[str, int]:
    """Bytes in memory that the process has of its own (RssAnon), and those of files (RssFile)."""
    sizes = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        kind, _, size = line.partition(":")
        if kind in ("RssAnon", "RssFile"):
            sizes[kind] = 1024 * int(size.split()[0])
    return sizes


def read(path: Path) -> Observations:
    """Return the matrix as observations, with an offset."""
    start = time.perf_counter()
    counts = load(str(path), selection=Selection(offset="size"))
    print(f"read and looked through in {time.perf_counter() - start:.1f} s: {len(counts.train)} training rows")
    return counts


class Times(NamedTuple):
    """Milliseconds of each batch: to fetch it as a model sees it, and to do a step with it."""

    fetching: list[float]
    steps: list[float]


def serve(counts: Observations, batches: int, step: Callable[[Rows, Tensor], object]) -> Times:
    """Fetch batches in random order; after each, a step is done with it."""
    times = Times([], [])
    feed = itertools.islice(Batches(counts.rows("train"), BATCH, shuffle=True, seed=0), batches)
    start = time.perf_counter()
    for _, rows in feed:
        x = counts.as_seen(rows)
        fetched = time.perf_counter()
        step(rows, x)
        end = time.perf_counter()
        times.fetching.append(1e3 * (fetched - start))
        times.steps.append(1e3 * (end - fetched))
        start = end
    return times


def training_step(counts: Observations) -> Callable[[Rows, Tensor], object]:
    """Return a step of training of a model that starts from a few rows."""
    torch.manual_seed(0)
    model = model_for(ModelConfig(latent_dim=10, hidden=[128]), counts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = counts.rows("train").between(0, START_ROWS)
    model.tractable.init_from_data(counts.as_seen(first), offset=first.side_info.offset)

    def step(rows: Rows, x: Tensor) -> None:
        optimizer.zero_grad()
        model(x, 1, rows.side_info).total.backward()
        optimizer.step()

    return step


def nothing(rows: Rows, x: Tensor) -> None:
    """No step at all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--columns", type=int, default=30_000)
    parser.add_argument("--batches", type=int, default=500, help=f"how many of {BATCH} rows to serve")
    parser.add_argument("--train", action="store_true", help="do a step of training with each batch")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if absent")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        matrix = Path(folder) / "counts.npz"
        write_matrix(matrix, given.rows, given.columns)
        print(f"{given.rows} x {given.columns}, {matrix.stat().st_size / 1e9:.2f} GB on disk")
        with Memory() as memory:
            counts = read(matrix)
            step = nothing
            if given.train:
                step = training_step(counts)
            times = serve(counts, given.batches, step)
    fetching = times.fetching
    told = f"{statistics.median(fetching):.1f} ms (median of {len(fetching)}), at most {max(fetching):.1f} ms"
    print(f"a batch of {BATCH} rows: {told}")
    if given.train:
        print(f"a step of training with it: {statistics.median(times.steps):.0f} ms")
    own, of_files = memory.most["RssAnon"], memory.most["RssFile"]
    print(f"memory beyond the start: at most {own / 2**20:.0f} MiB of its own (limit {LIMIT / 2**20:.0f} MiB)")
    print(f"and {of_files / 2**20:.0f} MiB of pages of files, which the system may take back")


if __name__ == "__main__":
    main()
