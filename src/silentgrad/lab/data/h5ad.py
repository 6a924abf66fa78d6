"""Counts in `.h5ad` files, which anndata reads element by element, behind a guard of HDF5 files.

X and the layers are sparse matrices or arrays of cells by genes; sparse ones stay on disk. `obs` has a column per thing
that is known of the cells, `var` one per thing that is known of the genes.

An HDF5 file can lead out of itself, by external links, external storage and virtual datasets: whoever follows them
reads other files as data, waits for a pipe, or writes into somebody's file. It can also claim sizes of which nothing is
stored, or have millions of names refer to one text. Both are refused before anything is read.
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silentgrad.lab.data.columns import TableRows, require_column, side_column
from silentgrad.lab.data.files import Array, DataError, mapped_dataset, reading, require, require_memory
from silentgrad.lab.data.sparse import checked
from silentgrad.lab.kinds import Selection
from silentgrad.sparse import SparseMatrix

SHUFFLE, DEFLATE, CHECKSUM, LZF = 2, 1, 3, 32000  # filters of HDF5
DEFLATED = 1032  # bytes that deflate makes of one, at the most
PACKED = 256  # bytes that a dataset may claim for each one stored
SMALL = 2**23  # bytes that any dataset may claim
AT_ONCE = 2**27  # bytes that are in memory at a time
DEEPEST = 100  # groups within one another, of which HDF5 walks through all to reach one


def read_h5ad(path: Path, selection: Selection) -> TableRows:
    """Read the counts in X or in a layer, and side columns of `obs`."""
    with _opened(path) as file:
        obs, var = file["obs"], file["var"]
        row_names, columns = (tuple(map(str, _values(path, frame[frame.attrs["_index"]]))) for frame in (obs, var))
        known = {}
        for name in selection.side_columns:
            require_column(path, name, sorted({*obs} - {obs.attrs["_index"]}), obs.name)
            values = _values(path, obs[name])
            require(len(values) == len(row_names), path, f"{len(row_names)} values in {obs[name].name}", len(values))
            known[name] = side_column(name, values)
        layer, layers = selection.layer, sorted(file.get("layers", {}))
        require(layer in (None, *layers), path, f"a layer {layer!r} (--data.layer)", f"layers {layers}")
        matrix = file["X"] if layer is None else file["layers"][layer]
        return TableRows(path, _counts(path, matrix, len(row_names), len(columns)), columns, known, row_names)


def read_anndata(path: Path) -> Any:
    """Read a whole file as an AnnData object, once it is known to hold as much as it claims."""
    with _opened(path) as file:
        from anndata.io import read_elem  # type: ignore[import-untyped]

        elements: dict[str, Any] = {}
        file.visititems(elements.__setitem__)
        for element in elements.values():
            if getattr(element, "shape", None) is not None:  # a group has none, nor has nothing
                _require_held(path, element)
        return read_elem(file)


def put_obsm(path: Path, name: str, values: Tensor) -> None:
    """Write numbers of each cell, in the order of the file, into its `obsm`, in place of others of that name."""
    with _opened(path, "r+") as file:
        from anndata.io import write_elem

        if "obsm" not in file:
            write_elem(file, "obsm", {})
        own = _is_group(file["obsm"]) and not hasattr(file.get("obsm", getlink=True), "path")
        require(own, path, "/obsm as a group", "data, or a link to another group")
        write_elem(file["obsm"], name, values.numpy())


def _counts(path: Path, matrix: Any, rows: int, width: int) -> Tensor | SparseMatrix:
    """Return the numbers of a sparse matrix, which stay on disk, or of an array."""
    shape = np.asarray(matrix.attrs["shape"] if _is_group(matrix) else matrix.shape)
    expected = f"counts of {rows} rows and {width} columns, as in obs and var"
    require(shape.tolist() == [rows, width], path, expected, tuple(shape.tolist()))
    if _is_group(matrix):
        form, advice = matrix.attrs["encoding-type"], ": save it after X = X.tocsr()"
        require(form == "csr_matrix", path, f"{matrix.name} in rows (csr_matrix)", f"it as {form}{advice}")
        parts = [matrix[name] for name in ("indptr", "indices", "data")]
        for part in parts:
            _require_held(path, part)
        return checked(path, shape, *(mapped_dataset(path, part) for part in parts))
    _require_held(path, matrix)
    numbers = matrix.dtype.kind in "fiu" and matrix.size > 0
    require(numbers, path, f"a table of numbers in {matrix.name}", f"{matrix.dtype} of shape {matrix.shape}")
    require_memory(8 * matrix.size, path)
    return torch.from_numpy(matrix.astype(np.float64)[:])


def _values(path: Path, element: Any) -> Array:
    """Return one value per row, read by anndata."""
    from anndata.io import read_elem

    for part in map(element.__getitem__, element) if _is_group(element) else [element]:
        _require_held(path, part)
    with reading(path, f"one value per row in {element.name}"):
        values: Array = read_elem(element)
        require(np.ndim(values) == 1, path, f"one dimension of {element.name}", f"shape {np.shape(values)}")
    return values


@contextmanager
def _opened(path: Path, mode: str = "r") -> Iterator[Any]:
    """Open a file of anndata that does not lead out of itself, "r" to read it or "r+" to change it."""
    try:
        import anndata  # type: ignore[import-untyped]  # noqa: F401 (reads what is in the file)
        import h5py  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: to read .h5ad needs an extra: pip install 'silentgrad[counts]'") from error

    def outside(name: str, link: Any) -> str | None:  # whose word ends the walk
        if hasattr(link, "filename"):
            return f"a link of /{name} to {link.filename!r}"
        return "more" if name.count("/") >= DEEPEST else None

    with reading(path, "an .h5ad file"), h5py.File(path, mode, rdcc_nbytes=AT_ONCE) as file:
        found = file.visititems_links(outside)
        expected = f"data in the file itself, in at most {DEEPEST} groups within one another"
        require(found is None, path, expected, found)
        elements = {"": file}
        file.visititems(elements.__setitem__)
        for element in elements.values():
            if isinstance(element, h5py.Dataset):
                expected = f"the data of {element.name} in the file itself"
                require(not element.external, path, expected, "external storage")
                require(not element.is_virtual, path, expected, "a virtual dataset of other ones")
            _require_short_attributes(path, element)
        form = file.attrs.get("encoding-type", "none")  # files of anndata before 0.8 do not say
        require(form == "anndata", path, "anndata as the encoding-type of /", form)
        yield file


def _is_group(element: Any) -> bool:
    """Return True for a group of other elements."""
    return hasattr(element, "visititems")


def _require_short_attributes(path: Path, element: Any) -> None:
    """Refuse attributes of many texts, which may all be the same long one; numbers are no longer than the file."""
    for name in element.attrs:
        attribute = element.attrs.get_id(name)
        one = attribute.shape == () and attribute.dtype.subdtype is None and attribute.dtype.kind in "bOSU"
        names = name == "column-order" and _is_group(element) and math.prod(attribute.shape or ()) <= len(element)
        short = attribute.dtype.kind in "fiu" or one or names
        require(short, path, f"one value, or numbers, as {name!r} of {element.name}", "several")


def _require_held(path: Path, dataset: Any) -> None:
    """Refuse a dataset whose chunks are more bytes than its filters should make of those stored."""
    require(getattr(dataset, "shape", None) is not None, path, f"data in {dataset.name}", "a group, or none")
    size, stored, name = path.stat().st_size, dataset.id.get_storage_size(), dataset.name
    item, chunks = dataset.id.get_type().get_size(), dataset.chunks or (1,) * dataset.ndim
    claimed = item * math.prod(-(-n // step) * step for n, step in zip(dataset.shape, chunks, strict=True))
    fits = claimed <= max(SMALL, PACKED * min(stored, size))
    require(fits, path, f"{claimed:,} bytes of {name}", f"{stored:,} bytes stored")
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(place)[0] for place in range(properties.get_nfilters())]
    once = [each for each in filters if each not in (CHECKSUM, SHUFFLE)] in ([], [DEFLATE], [LZF])
    require(once, path, f"{name} compressed once, by gzip or lzf", f"the filters {filters} of HDF5")
    if DEFLATE in filters:
        _require_inflated(path, dataset, item * math.prod(chunks), 1 << filters.index(DEFLATE))
    if dataset.dtype.kind == "O":
        _require_texts(path, dataset, size)


def _require_inflated(path: Path, dataset: Any, size: int, unfiltered: int) -> None:
    """Refuse a chunk that inflates to more than its size and a checksum: HDF5 would hold all of it in memory.

    A chunk whose mask has the bit `unfiltered` is not deflated.
    """
    found: list[Any] = []
    dataset.id.chunk_iter(found.append)
    for chunk in found:
        if DEFLATED * chunk.size > AT_ONCE and not chunk.filter_mask & unfiltered:
            _, raw = dataset.id.read_direct_chunk(chunk.chunk_offset)
            inflated = zlib.decompressobj().decompress(raw, size + 5)
            require(len(inflated) <= size + 4, path, f"chunks of {size:,} bytes in {dataset.name}", "larger ones")


def _require_texts(path: Path, dataset: Any, size: int) -> None:
    """Refuse texts that are longer together than the file: it has each in full, unless several are the same one."""
    text = dataset.dtype.metadata is not None and dataset.dtype.metadata.get("vlen") in (str, bytes)
    require(text and dataset.ndim <= 1, path, f"numbers or text in {dataset.name}", "references or arrays of arrays")
    step, total = max(64, AT_ONCE // size), 0
    for first in range(0, len(dataset) if dataset.ndim else 0, step):
        texts = dataset[first : first + step]
        total += len(texts) + sum(map(len, texts))
        require(total <= size, path, f"texts in a file of {size:,} bytes", f"{total:,} bytes of {dataset.name} or more")
