"""Sparse rows against SciPy's, and files of counts and tables as anndata, SciPy and pandas write them."""

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
from silentgrad.lab.data import (
    Batches,
    Counts,
    DataError,
    Observations,
    Reals,
    Rows,
    Selection,
    SparseRows,
    load,
    mapping,
    matrices,
)
from silentgrad.lab.data.module import ObservationData
from silentgrad.lab.data.sparse import SparseMatrix
from silentgrad.lab.training import DataConfig, ModelConfig
from silentgrad.lab.training.config import Settings, TrainConfig
from silentgrad.lab.training.machine import require_shares


@pytest.fixture(scope="module")
def h5ad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cells") / "cells.h5ad"
    as_anndata(counts().astype(np.float32)).write_h5ad(path)
    return path


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    frame().to_csv(path, index=False)
    return path


# --- sparse rows


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
    assert backwards.shape == dense.shape
    assert backwards.nbytes == dense.nbytes


def test_sparse_rows_go_through_the_laboratory_as_dense_ones_do(h5ad: Path) -> None:
    sparse = load(str(h5ad), selection=Selection(label="batch", offset="size"))
    dense = Counts(*splits_of(sparse), "dense", labels=sparse.labels, offset=sparse.offset)
    assert isinstance(sparse.train, SparseRows)
    assert sparse.event_shape == dense.event_shape == (WIDTH,)
    for (_, found), (_, expected) in zip(batches(sparse), batches(dense), strict=True):
        assert torch.equal(found.stored, expected.stored)
        assert torch.equal(found.labels, expected.labels)
        assert torch.equal(found.offset, expected.offset)
        assert torch.equal(sparse.as_seen(found), expected.stored.float())
        assert torch.equal(sparse.size(found), expected.stored.sum(1))
    one, other = ObservationData(observations=sparse), ObservationData(observations=dense)
    assert one.checksum == other.checksum
    assert torch.equal(sparse.rows("test").to(torch.device("cpu")).stored, dense.test)
    require_shares(Settings(DataConfig(batch_size=8), ModelConfig(), TrainConfig()), sparse)


def batches(observations: Observations) -> Batches[Rows]:
    return Batches(observations.rows("train"), 8, shuffle=True, seed=0)


def test_pieces_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    matrix = counts(300)
    sp.save_npz(path, matrix)
    whole = load(str(path), selection=Selection(offset="size"))
    for size in (1, 5, 64):
        monkeypatch.setattr(mapping, "PIECE", size)
        monkeypatch.setattr(matrices, "PIECE", size)
        pieces = load(str(path), selection=Selection(offset="size"))
        assert_rows(pieces, matrix.toarray())
        assert torch.equal(pieces.offset.train, whole.offset.train)


# --- files


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "i8", "f4"])
def test_a_matrix_of_scipy_is_read_or_mapped(tmp_path: Path, compressed: bool, dtype: str) -> None:
    path, matrix = tmp_path / "a.npz", counts(200).astype(dtype)
    sp.save_npz(path, matrix, compressed=compressed)
    found = load(str(path))
    assert isinstance(found, Counts)
    assert found.train[:1].dtype == torch.uint8
    assert_rows(found, matrix.toarray())


@pytest.mark.parametrize("matrix", [sp.csr_array(counts()), sp.csr_matrix((ROWS, WIDTH), dtype=int)])
def test_arrays_and_zeros_are_matrices_too(tmp_path: Path, matrix: Any) -> None:
    for compressed in (True, False):
        sp.save_npz(tmp_path / "a.npz", matrix, compressed)
        assert_rows(load(str(tmp_path / "a.npz")), matrix.toarray())


def test_numbers_of_another_machine_are_read(tmp_path: Path) -> None:
    matrix = counts()
    changed = {"data": matrix.data.astype(">f8"), "indices": matrix.indices.astype(">u8")}
    save_parts(tmp_path / "a.npz", indptr=matrix.indptr.astype(">i4"), **changed)
    assert_rows(load(str(tmp_path / "a.npz")), matrix.toarray())


def test_what_is_written_to_a_mapped_file_shows(tmp_path: Path) -> None:
    path, matrix = tmp_path / "a.npz", counts().astype(np.uint8)
    sp.save_npz(path, matrix, compressed=False)
    found = load(str(path))
    content = path.read_bytes()
    place = content.index(matrix.data.tobytes())
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
    assert isinstance(found, Counts)
    assert isinstance(found.train, Tensor if dense else SparseRows)
    assert found.train[:1].dtype == torch.int16
    assert_rows(found, anndata.read_h5ad(path).to_df().to_numpy())
    assert found.columns == tuple(f"gene{column}" for column in range(WIDTH))
    assert found.row_names.test == tuple(f"cell{row}" for row in ORDER[SPLITS[2]])


@pytest.mark.parametrize("userblock", [0, 512])
def test_a_dataset_in_one_piece_is_mapped(tmp_path: Path, userblock: int) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file["whole"] = np.arange(9)
        file.create_dataset("cut", data=np.arange(9), chunks=(4,))
        file["elsewhere"] = h5py.ExternalLink(tmp_path / "b.h5", "other")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["before"], file["other"] = np.arange(99), np.arange(9) + 5
    with h5py.File(path) as file:
        found = {name: mapping.mapped_dataset(path, file[name]) for name in ("whole", "cut", "elsewhere")}
    content = bytearray(path.read_bytes())
    place = content.index(np.arange(9).tobytes())
    with path.open("r+b") as written:
        written.seek(place)
        written.write(np.full(9, 7).tobytes())
    assert found["whole"].tolist() == [7] * 9
    assert found["cut"].tolist() == list(range(9))
    assert found["elsewhere"].tolist() == list(range(5, 14))


def test_a_layer_is_taken_in_place_of_x(tmp_path: Path) -> None:
    path = tmp_path / "cells.h5ad"
    as_anndata(counts().astype(np.float32).log1p()).write_h5ad(path)
    with pytest.raises(DataError, match=r"row 1, column 1 \(gene0\): expected a count, found .*--data.layer"):
        load(str(path))
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
    table = frame()[["age", "gene0"]]
    table.to_csv(tmp_path / "whole.csv", index=False)
    assert isinstance(load(str(tmp_path / "whole.csv")), Reals)
    assert isinstance(load(str(h5ad)), Counts)
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
        assert found.rows("train").stored.dtype == dtype
        assert found.as_seen(found.rows("test")).dtype == torch.float32
        assert_rows(found, dense)


def test_rows_without_entries_and_unsorted_ones_are_read(tmp_path: Path) -> None:
    dense = counts().toarray()
    dense[[0, 1, 30, 49]] = 0
    matrix = sp.csr_matrix(dense)
    backwards = matrix[:, ::-1].tocsr()
    backwards.indices[:] = WIDTH - 1 - backwards.indices  # each row's columns fall
    backwards.has_sorted_indices = False
    assert np.array_equal(backwards.toarray(), dense)
    sp.save_npz(tmp_path / "a.npz", backwards)
    assert_rows(load(str(tmp_path / "a.npz")), dense)
