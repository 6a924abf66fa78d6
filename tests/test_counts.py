"""Sparse rows against SciPy's; files of counts and tables as other libraries write them, and damaged ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cells import ORDER, ROWS, SPLITS, WIDTH, as_anndata, assert_rows, counts, frame, save_parts, splits_of
from refusals import refused
from silentgrad import sparse
from silentgrad.lab.data import Batches, Counts, DataError, Reals, Selection, SparseRows, files, load
from silentgrad.lab.training.checkpoints import checksum_of
from silentgrad.sparse import SparseMatrix


@st.composite
def selections(draw: st.DrawFn) -> tuple[sp.csr_matrix, list[int]]:
    rows, width = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    numbers = draw(st.lists(st.integers(0, 3), min_size=rows * width, max_size=rows * width))
    matrix = sp.csr_matrix(np.array(numbers).reshape(rows, width))
    return matrix, draw(st.lists(st.integers(0, rows - 1), max_size=12))


@settings(deadline=None, max_examples=200)
@given(selections())
def test_a_dense_batch_is_the_rows_that_scipy_gives(case: tuple[sp.csr_matrix, list[int]]) -> None:
    matrix, chosen = case
    rows, width = matrix.shape
    made = SparseMatrix(matrix.indptr.astype(np.int64), matrix.indices, matrix.data, width, np.dtype("u1"))
    backwards = SparseRows(made, torch.arange(rows).flip(0))
    dense = torch.from_numpy(matrix.toarray()[::-1].astype(np.uint8))
    index = torch.tensor(chosen, dtype=torch.int64)
    assert torch.equal(backwards.index_select(0, index), dense[index])
    assert torch.equal(backwards[1:4], dense[1:4])
    assert torch.equal(backwards[::2], dense[::2])
    assert (backwards.shape, backwards.nbytes) == (dense.shape, dense.nbytes)


def test_sparse_rows_go_through_the_laboratory_as_dense_ones_do(h5ad: Path) -> None:
    loaded = load(str(h5ad), selection=Selection(label="batch", offset="size"))
    dense = Counts(*splits_of(loaded), "dense", labels=loaded.labels, offset=loaded.offset)
    assert isinstance(loaded.train, SparseRows)
    assert loaded.event_shape == dense.event_shape == (WIDTH,)
    batches = (Batches(observations.rows("train"), 8, shuffle=True, seed=0) for observations in (loaded, dense))
    for (_, found), (_, expected) in zip(*batches, strict=True):
        assert torch.equal(found.stored, expected.stored)
        assert torch.equal(found.labels, expected.labels)
        assert torch.equal(found.side_info.offset, expected.side_info.offset)
        assert torch.equal(loaded.as_seen(found), expected.stored.float())
    assert checksum_of(loaded) == checksum_of(dense)
    assert torch.equal(loaded.rows("test").to(torch.device("cpu")).stored, dense.test)


def test_pieces_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, matrix = tmp_path / "a.npz", counts(300)
    sp.save_npz(path, matrix)
    whole = load(str(path), selection=Selection(offset="size"))
    for size in (1, 5, 64):
        monkeypatch.setattr(files, "PIECE", size)
        monkeypatch.setattr(sparse, "PIECE", size)
        pieces = load(str(path), selection=Selection(offset="size"))
        assert_rows(pieces, matrix.toarray())
        assert torch.equal(pieces.offset.train, whole.offset.train)


def unsorted() -> sp.csr_matrix:
    """Make counts with rows of zeros, whose columns fall within each row."""
    dense = counts().toarray()
    dense[[0, 1, 30, 49]] = 0
    backwards = sp.csr_matrix(dense)[:, ::-1].tocsr()
    backwards.indices[:] = WIDTH - 1 - backwards.indices
    backwards.has_sorted_indices = False
    assert np.array_equal(backwards.toarray(), dense)
    return backwards


MATRICES: dict[str, Any] = {
    **{dtype: counts(200).astype(dtype) for dtype in ("u1", "u2", "i4", "i8", "f4")},
    "array": sp.csr_array(counts()),
    "zeros": sp.csr_matrix((ROWS, WIDTH), dtype=int),
    "unsorted": unsorted(),
}


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_of_scipy_is_read_or_mapped(tmp_path: Path, compressed: bool, name: str) -> None:
    path, matrix = tmp_path / "a.npz", MATRICES[name]
    sp.save_npz(path, matrix, compressed=compressed)
    found = load(str(path))
    assert (type(found), found.train[:1].dtype) == (Counts, torch.uint8)
    assert_rows(found, matrix.toarray())


def test_numbers_of_another_machine_are_read(tmp_path: Path) -> None:
    matrix = counts()
    changed = {"data": matrix.data.astype(">f8"), "indices": matrix.indices.astype(">u8")}
    save_parts(tmp_path / "a.npz", indptr=matrix.indptr.astype(">i4"), **changed)
    assert_rows(load(str(tmp_path / "a.npz")), matrix.toarray())


def test_what_is_written_to_a_mapped_file_shows(tmp_path: Path) -> None:
    path, matrix = tmp_path / "a.npz", counts().astype(np.uint8)
    sp.save_npz(path, matrix, compressed=False)
    found = load(str(path))
    place = path.read_bytes().index(matrix.data.tobytes())
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([9] * matrix.nnz))
    assert set(found.train[:].unique().tolist()) == {0, 9}


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u2"])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("dense", [False, True])
def test_what_anndata_writes_is_read(tmp_path: Path, dtype: str, compression: str | None, dense: bool) -> None:
    matrix, path = counts(1000).astype(dtype), tmp_path / "cells.h5ad"
    as_anndata(matrix.toarray() if dense else matrix).write_h5ad(path, compression=compression)
    found = load(str(path))
    assert (type(found), found.train[:1].dtype) == (Counts, torch.int16)
    assert isinstance(found.train, Tensor if dense else SparseRows)
    assert_rows(found, anndata.read_h5ad(path).to_df().to_numpy())
    assert found.columns == tuple(f"gene{column}" for column in range(WIDTH))
    assert found.row_names.test == tuple(f"cell{row}" for row in ORDER[SPLITS[2]])


def test_a_layer_is_taken_in_place_of_x(tmp_path: Path) -> None:
    path = tmp_path / "cells.h5ad"
    as_anndata(counts().astype(np.float32).log1p()).write_h5ad(path)
    refused(DataError, r"row 1, column 1 \(gene0\): expected a count, found .*--data.layer", lambda: load(str(path)))
    assert_rows(load(str(path), selection=Selection(layer="counts")), counts().toarray())
    with pytest.raises(DataError, match=r"a layer 'raw' \(--data.layer\), found layers \['counts'\]"):
        load(str(path), selection=Selection(layer="raw"))


@pytest.mark.parametrize("suffix", [".tsv", ".parquet"])
def test_tables_of_every_ending_are_the_same(csv: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table{suffix}"
    if suffix == ".tsv":
        frame().to_csv(path, sep="\t", index=False)
    else:
        frame().to_parquet(path)
    selection = Selection(label="batch", covariates=("age", "batch"), offset="depth")
    found, expected = (load(str(which), None, "counts", selection) for which in (path, csv))
    assert_rows(found, counts().toarray())
    assert_rows(expected, counts().toarray())
    assert found.columns == expected.columns == tuple(f"gene{column}" for column in range(WIDTH))
    assert torch.equal(found.offset.test, expected.offset.test)
    named = dict(zip(found.covariate_names, found.covariates.test.T, strict=True))
    assert set(named) == set(expected.covariate_names) == {"age", "batch=b1", "batch=b2"}
    for name, column in zip(expected.covariate_names, expected.covariates.test.T, strict=True):
        assert torch.equal(named[name], column)


def test_kinds_by_themselves_and_by_name(csv: Path, h5ad: Path, tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "a.npz", counts())
    np.savez(tmp_path / "images.npz", np.zeros((ROWS, 4, 4), np.uint8))
    assert load(str(tmp_path / "images.npz")).event_shape == (1, 4, 4)
    frame()[["age", "gene0"]].to_csv(tmp_path / "whole.csv", index=False)
    assert [type(load(str(path))) for path in (tmp_path / "whole.csv", h5ad)] == [Reals, Counts]
    as_anndata(np.random.default_rng(0).normal(size=(ROWS, WIDTH))).write_h5ad(tmp_path / "reals.h5ad")
    assert isinstance(load(str(tmp_path / "reals.h5ad"), kind="reals"), Reals)
    for path in (h5ad, tmp_path / "a.npz"):
        with pytest.raises(DataError, match=r"--data.kind reals is for tables, but .* is a sparse matrix"):
            load(str(path), kind="reals")


@pytest.mark.parametrize(("largest", "dtype"), [(9, torch.uint8), (300, torch.int16), (70_000, torch.int32)])
def test_counts_are_stored_in_the_smallest_type(tmp_path: Path, largest: int, dtype: torch.dtype) -> None:
    dense = counts().toarray()
    dense[3, 2] = largest
    np.save(tmp_path / "a.npy", dense)
    sp.save_npz(tmp_path / "a.npz", sp.csr_matrix(dense))
    for name in ("a.npy", "a.npz"):
        found = load(str(tmp_path / name), kind="counts")
        assert (found.rows("train").stored.dtype, found.as_seen(found.rows("test")).dtype) == (dtype, torch.float32)
        assert_rows(found, dense)


Write = Callable[[Path], object]


def cut_short(path: Path, save: Write) -> None:
    save(path)
    path.write_bytes(path.read_bytes()[:-400])


def h5ad_with(path: Path, change: Callable[[Any], object]) -> None:
    as_anndata(counts().astype(np.float32)).write_h5ad(path)
    with h5py.File(path, "a") as file:
        change(file)


def put(place: str, values: object) -> Callable[[Any], None]:
    """Replaces an element of a file, and leaves its attributes."""

    def change(file: Any) -> None:
        attributes = dict(file[place].attrs)
        del file[place]
        file[place] = values
        file[place].attrs.update(attributes)

    return change


BAD_INDEX = np.r_[counts().indices[:-1], WIDTH]
BACKWARDS = counts().indptr[::-1]
OUTSIDE = "one value per row in /obs/batch, found .*codes need to be between -1 and"
DAMAGED: dict[str, tuple[str, Write, str]] = {
    "csc": ("a.npz", lambda p: sp.save_npz(p, counts().tocsc()), r"found one of form csc: save matrix.tocsr\(\)"),
    "coo": ("a.npz", lambda p: sp.save_npz(p, counts().tocoo()), "found one of form coo"),
    "no form": ("a.npz", lambda p: save_parts(p, format=3), "found one of form 3"),
    "object form": ("a.npz", lambda p: save_parts(p, format={}), "Object arrays cannot be loaded"),
    "cut": ("a.npz", lambda p: cut_short(p, lambda q: sp.save_npz(q, counts())), "cannot be read|truncated|not a zip"),
    "text": ("a.npz", lambda p: p.write_text("no"), "not a zip file"),
    "no column": ("a.npz", lambda p: save_parts(p, indices=BAD_INDEX), "columns from 0 to 6, found 0 to 7"),
    "negative column": ("a.npz", lambda p: save_parts(p, indices=BAD_INDEX - 1), "columns from 0 to 6, found -1 to"),
    "few columns": ("a.npz", lambda p: save_parts(p, indices=counts().indices[1:]), "entries with a column each"),
    "backwards": ("a.npz", lambda p: save_parts(p, indptr=BACKWARDS), "starts of rows that rise from 0 on"),
    "many starts": ("a.npz", lambda p: save_parts(p, indptr=np.arange(9)), "51 starts of rows, found 9"),
    "real starts": ("a.npz", lambda p: save_parts(p, indptr=counts().indptr * 1.0), "places that are integers"),
    "twice": ("a.npz", lambda p: save_parts(p, indices=counts().indices * 0), r"twice: .* matrix.sum_duplicates\(\)"),
    "three dimensions": ("a.npz", lambda p: save_parts(p, shape=np.array([5, 5, 2])), r"one of shape \[5, 5"),
    "no rows": ("a.npz", lambda p: save_parts(p, shape=np.array([0, 7])), r"rows and columns, found one of shape \[0"),
    "words": ("a.npz", lambda p: save_parts(p, data=np.array(["a"])), "numbers in `data`, found <U1"),
    "objects": ("a.npz", lambda p: save_parts(p, data=np.array([{}])), "numbers in `data`, found obj"),
    "square": ("a.npz", lambda p: save_parts(p, data=np.ones((2, 2))), "numbers of one dimension .*found shape"),
    "no data": ("a.npz", lambda p: np.savez(p, format=b"csr", shape=np.array([2, 2])), "cannot be read"),
    "h5ad text": ("a.h5ad", lambda p: p.write_text("no"), "an .h5ad file, found a file that cannot be read"),
    "h5ad cut": ("a.h5ad", lambda p: cut_short(p, lambda q: h5ad_with(q, len)), "cannot be read"),
    "other hdf5": ("a.h5ad", lambda p: h5py.File(p, "w").close(), "anndata as the encoding-type of /, found none"),
    "no X": ("a.h5ad", lambda p: h5ad_with(p, lambda f: f.__delitem__("X")), "object 'X' doesn't exist"),
    "no obs": ("a.h5ad", lambda p: h5ad_with(p, lambda f: f.__delitem__("obs")), "object 'obs' doesn't exist"),
    "csc h5ad": ("a.h5ad", lambda p: as_anndata(counts().tocsc()).write_h5ad(p), r"csc_matrix: save it after"),
    "h5ad index": ("a.h5ad", lambda p: h5ad_with(p, put("X/indices", BAD_INDEX)), "columns from 0 to 6, found 0 to 7"),
    "h5ad words": ("a.h5ad", lambda p: h5ad_with(p, put("X/data", "no")), "numbers in /X/data, found obj"),
    "few cells": ("a.h5ad", lambda p: h5ad_with(p, put("obs/_index", ["a"])), "1 values in /obs/batch, found 50"),
    "codes": ("a.h5ad", lambda p: h5ad_with(p, put("obs/batch/codes", [9] * 50)), OUTSIDE),
    "few codes": ("a.h5ad", lambda p: h5ad_with(p, put("obs/batch/codes", [1])), "50 values in /obs/batch, found 1"),
    "parquet text": ("a.parquet", lambda p: p.write_text("no"), "a table in a parquet file, found a file that cannot"),
    "empty parquet": ("a.parquet", lambda p: frame()[:0].to_parquet(p), "rows and columns of numbers, found a table"),
}


@pytest.mark.parametrize(("name", "write", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_named(tmp_path: Path, name: str, write: Write, message: str) -> None:
    path, selection = tmp_path / name, Selection() if name == "a.npz" else Selection(label="batch")
    write(path)
    said = refused(DataError, message, lambda: load(str(path), selection=selection))
    assert (str(path) in said, "\n" in said) == (True, False)


def test_a_matrix_that_unpacks_to_more_than_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sp.save_npz(tmp_path / "a.npz", counts())
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: files.shutil._ntuple_diskusage(9, 9, 9))
    refused(DataError, "data that fit into the 9 bytes that are free in", lambda: load(str(tmp_path / "a.npz")))
