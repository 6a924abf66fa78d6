"""Files of counts and tables that are damaged, or lie: each is refused by its name."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from cells import WIDTH, as_anndata, counts, frame, save_parts
from silentgrad.lab.data import DataError, Selection, load, mapping

# --- damaged files

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
DAMAGED: dict[str, tuple[str, Write, str]] = {
    "csc": ("a.npz", lambda p: sp.save_npz(p, counts().tocsc()), r"found one of form csc: save matrix.tocsr\(\)"),
    "coo": ("a.npz", lambda p: sp.save_npz(p, counts().tocoo()), "found one of form coo"),
    "no form": ("a.npz", lambda p: save_parts(p, format=3), "found one of form 3"),
    "object form": ("a.npz", lambda p: save_parts(p, format={}), "a word or two numbers in `format`, found object"),
    "cut": ("a.npz", lambda p: cut_short(p, lambda q: sp.save_npz(q, counts())), "cannot be read|truncated|not a zip"),
    "text": ("a.npz", lambda p: p.write_text("no"), "not a zip file"),
    "no column": ("a.npz", lambda p: save_parts(p, indices=BAD_INDEX), "columns from 0 to 6, found 0 to 7"),
    "negative column": ("a.npz", lambda p: save_parts(p, indices=BAD_INDEX - 1), "columns from 0 to 6, found -1 to"),
    "few columns": ("a.npz", lambda p: save_parts(p, indices=counts().indices[1:]), "entries with a column each"),
    "backwards": ("a.npz", lambda p: save_parts(p, indptr=BACKWARDS), "starts of rows that rise from 0 on"),
    "many starts": ("a.npz", lambda p: save_parts(p, indptr=np.arange(9)), "51 starts of rows, found 9"),
    "real starts": ("a.npz", lambda p: save_parts(p, indptr=counts().indptr * 1.0), "places that are integers"),
    "twice": ("a.npz", lambda p: save_parts(p, indices=counts().indices * 0), r"twice: .* matrix.sum_duplicates\(\)"),
    "three dimensions": ("a.npz", lambda p: save_parts(p, shape=np.array([5, 5, 2])), "two numbers in `shape`"),
    "no rows": ("a.npz", lambda p: save_parts(p, shape=np.array([0, 7])), r"rows and columns, found one of shape \[0"),
    "words": ("a.npz", lambda p: save_parts(p, data=np.array(["a"])), "numbers of one dimension in `data`"),
    "objects": ("a.npz", lambda p: save_parts(p, data=np.array([{}])), "numbers of one dimension in `data`, found obj"),
    "square": ("a.npz", lambda p: save_parts(p, data=np.ones((2, 2))), "numbers of one dimension in `data`"),
    "no data": ("a.npz", lambda p: np.savez(p, format=b"csr", shape=np.array([2, 2])), "cannot be read"),
    "h5ad text": ("a.h5ad", lambda p: p.write_text("no"), "an .h5ad file, found a file that cannot be read"),
    "h5ad cut": ("a.h5ad", lambda p: cut_short(p, lambda q: h5ad_with(q, len)), "cannot be read"),
    "other hdf5": ("a.h5ad", lambda p: h5py.File(p, "w").close(), "anndata as the encoding-type of /, found none"),
    "no X": ("a.h5ad", lambda p: h5ad_with(p, lambda f: f.__delitem__("X")), "expected 'X' in /, found"),
    "no obs": ("a.h5ad", lambda p: h5ad_with(p, lambda f: f.__delitem__("obs")), "expected 'obs' in /, found"),
    "csc h5ad": ("a.h5ad", lambda p: as_anndata(counts().tocsc()).write_h5ad(p), r"csc_matrix\): save it after"),
    "h5ad index": ("a.h5ad", lambda p: h5ad_with(p, put("X/indices", BAD_INDEX)), "columns from 0 to 6, found 0 to 7"),
    "h5ad words": ("a.h5ad", lambda p: h5ad_with(p, put("X/data", "no")), "numbers of one dimension in /X/data"),
    "few cells": ("a.h5ad", lambda p: h5ad_with(p, put("obs/_index", ["a"])), "counts of 1 rows and 7 columns"),
    "codes": (
        "a.h5ad",
        lambda p: h5ad_with(p, put("obs/batch/codes", [9] * 50)),
        "codes of 3 categories in /obs/batch",
    ),
    "few codes": ("a.h5ad", lambda p: h5ad_with(p, put("obs/batch/codes", [1])), "50 values in the column 'batch'"),
    "parquet text": ("a.parquet", lambda p: p.write_text("no"), "a table in a parquet file, found a file that cannot"),
    "empty parquet": ("a.parquet", lambda p: frame()[:0].to_parquet(p), "rows and columns of numbers, found a table"),
}


@pytest.mark.parametrize(("name", "write", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_named(tmp_path: Path, name: str, write: Write, message: str) -> None:
    path = tmp_path / name
    write(path)
    selection = Selection()
    if name != "a.npz":
        selection = Selection(label="batch")
    with pytest.raises(DataError, match=message) as error:
        load(str(path), selection=selection)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_matrix_that_unpacks_to_more_than_the_disk_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sp.save_npz(tmp_path / "a.npz", counts())
    monkeypatch.setattr(mapping.shutil, "disk_usage", lambda _: mapping.shutil._ntuple_diskusage(9, 9, 9))
    with pytest.raises(DataError, match="data that fit into the 9 bytes that are free in"):
        load(str(tmp_path / "a.npz"))


def test_a_member_that_ends_behind_its_file_is_refused(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "a.npz", counts(), compressed=False)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        member = archive.getinfo("data.npy")
    with pytest.raises(DataError, match=r"an array that ends at byte .*, found a file of"):
        mapping.mapped(tmp_path / "a.npz", np.dtype("f8"), member.header_offset, 10**6)
