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

from silentgrad.lab.data.columns import Series, TableRows, require_column, side_column
from silentgrad.lab.data.files import Array, DataError, mapped_dataset, reading, require, require_memory
from silentgrad.lab.data.sparse import checked
from silentgrad.lab.kinds import Selection
from silentgrad.sparse import SparseMatrix

ARRAYS = ("array", "string-array")
COLUMNS = (*ARRAYS, "categorical", "nullable-integer", "nullable-boolean", "nullable-string-array")
DEFLATED = 1032  # bytes that deflate makes of one, at the most
SHUFFLE, DEFLATE, CHECKSUM, LZF = 2, 1, 3, 32000  # filters of HDF5, of which none makes more of a byte than deflate
FILTERS = [[], [SHUFFLE], [DEFLATE], [LZF], [SHUFFLE, DEFLATE], [SHUFFLE, LZF]]  # in order, beside checksums
AT_ONCE = 2**27  # bytes that are in memory at a time
DEEPEST = 100  # groups within one another, of which HDF5 walks through all to reach one


def read_h5ad(path: Path, selection: Selection) -> TableRows:
    """Read the counts in X or in a layer, and side columns of `obs`."""
    with _opened(path) as file:
        matrix = _matrix(path, file, selection.layer)
        obs, var = _member(path, file, "obs"), _member(path, file, "var")
        _require_encoding(path, matrix, ("csr_matrix", "array"))
        shape = np.asarray(matrix.attrs["shape"] if _is_group(matrix) else matrix.shape)
        found = tuple(shape.tolist())
        rows, width = (_length(path, frame) for frame in (obs, var))
        require(found == (rows, width), path, f"counts of {rows} rows and {width} columns, as in obs and var", found)
        if _is_group(matrix):
            _require_lengths(path, matrix, rows, width)
        row_names, columns = _index(path, obs), _index(path, var)
        side_columns = {name: _column(path, obs, name, rows) for name in selection.side_columns}
        return TableRows(path, _values(path, matrix, shape), columns, side_columns, row_names)


def read_anndata(path: Path) -> Any:
    """Read a whole file as an AnnData object, once it is known to hold as much as it claims."""
    with _opened(path) as file:
        _require_stored(path, file)
        from anndata.io import read_elem  # type: ignore[import-untyped]

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


def _require_encoding(path: Path, element: Any, allowed: tuple[str, ...]) -> None:
    """Refuse an element of another kind; files of anndata before 0.8 do not say."""
    found = _word(path, element, "encoding-type")
    require(found in allowed, path, f"{' or '.join(allowed)} as the encoding-type of {element.name}", found)


def _member(path: Path, group: Any, name: str) -> Any:
    require(_is_group(group), path, f"{group.name} as a group", "data")
    require(name in group, path, f"{name!r} in {group.name}", f"{sorted(group)}")
    return group[name]


def _matrix(path: Path, file: Any, layer: str | None) -> Any:
    """Return what holds the counts, of which the file holds as much as it claims."""
    matrix = _member(path, file, "X" if layer is None else "layers")
    if layer is not None:
        require(layer in matrix, path, f"a layer {layer!r} (--data.layer)", f"layers {sorted(matrix)}")
        matrix = _member(path, matrix, layer)
    if _word(path, matrix, "encoding-type") == "csc_matrix":
        raise DataError(
            f"{path}: expected {matrix.name} in rows (csr_matrix), found it in columns (csc_matrix): "
            "save it after X = X.tocsr()"
        )
    _require_stored(path, matrix)
    return matrix


def _require_lengths(path: Path, matrix: Any, rows: int, width: int) -> None:
    """Refuse parts of a sparse matrix that do not fit each other, before any of them is copied to disk."""
    starts, places, values = (_member(path, matrix, name) for name in ("indptr", "indices", "data"))
    found = [part.shape if hasattr(part, "shape") else None for part in (starts, places, values)]
    require(found[0] == (rows + 1,), path, f"{rows + 1} numbers in {starts.name}", found[0])
    entries = int(starts[-1]) if starts.dtype.kind in "iu" else -1
    require(entries <= rows * width, path, f"at most {rows * width} numbers in {matrix.name}", entries)
    for part, shape in ((places, found[1]), (values, found[2])):
        require(shape == (entries,), path, f"{entries} numbers in {part.name}, where indptr ends", shape)


def _values(path: Path, matrix: Any, shape: Array) -> Tensor | SparseMatrix:
    if _is_group(matrix):
        return checked(path, shape, *(mapped_dataset(path, matrix[name]) for name in ("indptr", "indices", "data")))
    numbers = matrix.dtype.kind in "fiu" and matrix.size > 0
    require(numbers, path, f"a table of numbers in {matrix.name}", f"{matrix.dtype} of shape {matrix.shape}")
    require_memory(8 * matrix.size, path)
    return torch.from_numpy(matrix.astype(np.float64)[:])


def _length(path: Path, frame: Any) -> int:
    """Return the number of rows that a frame claims, before any of their names is read."""
    _require_encoding(path, frame, ("dataframe",))
    names = _member(path, frame, _word(path, frame, "_index"))
    require(len(getattr(names, "shape", None) or ()) == 1, path, f"one name per row in {names.name}", "something else")
    return int(names.shape[0])


def _index(path: Path, frame: Any) -> tuple[str, ...]:
    _require_encoding(path, frame, ("dataframe",))
    return tuple(map(str, _element(path, _member(path, frame, _word(path, frame, "_index")), ARRAYS)))


def _element(path: Path, element: Any, allowed: tuple[str, ...], rows: int | None = None) -> Array:
    """Return one value per row, read by anndata, if there are as many as said."""
    from anndata.io import read_elem

    _require_encoding(path, element, allowed)
    whole = element
    if _is_group(element):
        whole = element.get("codes", element.get("values"))
    if rows is not None and hasattr(whole, "shape"):
        require(whole.shape == (rows,), path, f"{rows} values in {whole.name}", f"shape {whole.shape}")
    _require_stored(path, element)
    nested = _is_group(element) and any(map(_is_group, element.values()))
    require(not nested, path, f"arrays in {element.name}", "groups")
    with reading(path, f"one value per row in {element.name}"):
        values: Array = read_elem(element)
        require(np.ndim(values) == 1, path, f"one dimension of {element.name}", f"shape {np.shape(values)}")
    return values


def _column(path: Path, frame: Any, name: str, rows: int) -> Series:
    columns = sorted(set(frame) - {_word(path, frame, "_index")})
    require_column(path, name, columns, frame.name)
    values = _element(path, frame[name], COLUMNS, rows)
    require(len(values) == rows, path, f"{rows} values in the column {name!r}", len(values))
    return side_column(name, values)


@contextmanager
def _opened(path: Path, mode: str = "r") -> Iterator[Any]:
    """Open a file of anndata that does not lead out of itself, "r" to read it or "r+" to change it."""
    try:
        import anndata  # type: ignore[import-untyped]  # noqa: F401 (reads what is in the file)
        import h5py  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: to read .h5ad needs an extra: pip install 'silentgrad[counts]'") from error
    with reading(path, "an .h5ad file"), h5py.File(path, mode, rdcc_nbytes=AT_ONCE) as file:
        _require_links_within(path, file)
        elements: dict[str, Any] = {}
        file.visititems(elements.__setitem__)
        for element in elements.values():
            if isinstance(element, h5py.Dataset):
                expected = f"the data of {element.name} in the file itself"
                require(not element.external, path, expected, "external storage")
                require(not element.is_virtual, path, expected, "a virtual dataset of other ones")
        _require_encoding(path, file, ("anndata",))
        yield file


def _is_group(element: Any) -> bool:
    """Return True for a group of other elements."""
    return hasattr(element, "visititems")


def _require_links_within(path: Path, file: Any) -> None:
    """Refuse external links, and soft links to nothing; no link is followed before all are known to stay inside."""
    links: dict[str, Any] = {}

    def keep(name: str, link: Any) -> bool | None:
        links[name] = link
        return name.count("/") >= DEEPEST or None  # True ends the walk

    too_deep = file.visititems_links(keep)
    require(not too_deep, path, f"at most {DEEPEST} groups within one another", "more")
    for name, link in links.items():
        if hasattr(link, "filename"):
            raise DataError(f"{path}: expected data in the file itself, found a link of /{name} to {link.filename!r}")
    for name in (name for name, link in links.items() if hasattr(link, "path")):
        with reading(path, f"the target of the link /{name} in the file"):
            file[name]


def _require_stored(path: Path, element: Any) -> None:
    """Refuse a dataset, or a group, that claims more than the file holds, in data, an attribute or texts."""
    parts = {"": element}
    if _is_group(element):
        element.visititems(parts.__setitem__)
    for part in parts.values():
        for name in part.attrs:
            attribute = part.attrs.get_id(name)
            names = name == "column-order" and _is_group(part) and math.prod(attribute.shape or ()) <= len(part)
            allowed = _is_short(attribute) or names
            require(allowed, path, f"one value, or numbers, as {name!r} of {part.name}", "several")
        if hasattr(part, "chunks"):
            _require_size(path, part)


def _word(path: Path, element: Any, name: str) -> str:
    """Return an attribute that is one word; `none` if it is not there."""
    if name not in element.attrs:
        return "none"
    require(_is_short(element.attrs.get_id(name)), path, f"one word as {name!r} of {element.name}", "several")
    return str(element.attrs[name])


def _is_short(attribute: Any) -> bool:
    """Return True for one value, or numbers, which cannot be longer than the file."""
    one = attribute.shape == () and attribute.dtype.subdtype is None
    return attribute.dtype.kind in "fiu" or (one and attribute.dtype.kind in "bOSU")


def _require_size(path: Path, dataset: Any) -> None:
    """Refuse a dataset whose chunks are more bytes than its filters can make of those stored."""
    size, stored, name = path.stat().st_size, dataset.id.get_storage_size(), dataset.name
    require(dataset.shape is not None, path, f"data in {name}", "none")
    require(stored <= size, path, f"{name} in a file of {size:,} bytes", f"{stored:,} bytes of it")
    item, chunks = dataset.id.get_type().get_size(), dataset.chunks or (1,) * dataset.ndim
    claimed = item * math.prod(-(-n // step) * step for n, step in zip(dataset.shape, chunks, strict=True))
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(place)[0] for place in range(properties.get_nfilters())]
    known = [each for each in filters if each != CHECKSUM] in FILTERS
    require(known, path, f"{name} compressed once, by gzip or lzf", f"the filters {filters} of HDF5")
    held = DEFLATED * stored if filters else stored
    require(claimed <= held, path, f"{claimed:,} bytes of {name}", f"{stored:,} bytes stored")
    require_memory(item * math.prod(chunks), path)  # a chunk is in memory as a whole
    if DEFLATE in filters:
        _require_inflated(path, dataset, item * math.prod(chunks), 1 << filters.index(DEFLATE))
    if dataset.dtype.kind == "S":
        require(claimed <= max(size, AT_ONCE), path, f"texts in a file of {size:,} bytes", f"{claimed:,} in {name}")
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
    require(dataset.size <= size, path, f"texts in a file of {size:,} bytes", f"{dataset.size:,} in {dataset.name}")
    if dataset.ndim == 0:
        return
    step, total = max(64, AT_ONCE // size), 0
    for first in range(0, len(dataset), step):
        total += sum(map(len, dataset[first : first + step]))
        require(total <= size, path, f"texts in a file of {size:,} bytes", f"{total:,} bytes of {dataset.name} or more")
