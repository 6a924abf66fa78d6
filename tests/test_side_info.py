"""Side information: labels, covariates, size factors and masks, against pandas; and each error by its name."""

import importlib.util
import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from cells import ORDER, ROWS, SPLITS, as_anndata, assert_rows, cells, counts, frame, splits_of
from refusals import refused
from silentgrad.lab.build import model_for
from silentgrad.lab.data import Counts, DataError, Selection, Splits, load
from silentgrad.lab.settings import ConfigError
from silentgrad.lab.training import DataConfig, ModelConfig


def test_labels_keep_their_names(h5ad: Path) -> None:
    known, train = cells(), ORDER[SPLITS[0]]
    names = {"batch": ("b2", "b1", "never"), "type": ("B", "T", "missing"), "sick": None, "flag": None}
    for name, expected_names in names.items():
        found = load(str(h5ad), selection=Selection(label=name))
        assert expected_names in (None, found.label_names)
        expected = known[name].astype(object).where(known[name].notna(), "missing").astype(str)
        assert [found.label_names[code] for code in found.labels.train] == expected.iloc[train].tolist()
    for name in ("age", "some"):
        found = load(str(h5ad), selection=Selection(label=name))
        assert found.label_names == ()
        expected = known[name].astype("Float64").to_numpy(float, na_value=np.nan)[train]
        np.testing.assert_array_equal(found.labels.train.numpy(), expected)


def test_covariates_are_standardized_and_one_hot(h5ad: Path) -> None:
    known, train = cells(), ORDER[SPLITS[0]]
    found = load(str(h5ad), selection=Selection(covariates=("age", "batch", "sick")))
    age = (known["age"] - known["age"].iloc[train].mean()) / known["age"].iloc[train].std(ddof=0)
    assert found.covariate_names == ("age", "batch=b2", "batch=b1", "sick=False", "sick=True")
    batch, sick = known["batch"], known["sick"]
    expected = np.stack([age, batch == "b2", batch == "b1", sick == 0, sick == 1], 1)
    for part, rows in zip(found.covariates, SPLITS, strict=True):
        assert part.dtype == torch.float32
        np.testing.assert_allclose(part.numpy(), expected[ORDER[rows]].astype(float), rtol=1e-6)


def test_offsets_are_logarithms_of_sizes(h5ad: Path) -> None:
    sums, train = np.asarray(counts().sum(1)).ravel(), ORDER[SPLITS[0]]
    expected = np.log(sums / np.median(sums[train]))
    found = load(str(h5ad), selection=Selection(offset="size"))
    by_column = load(str(h5ad), selection=Selection(offset="depth"))
    for part, column, rows in zip(found.offset, by_column.offset, SPLITS, strict=True):
        assert part.dtype == torch.float32
        np.testing.assert_allclose(part.numpy(), expected[ORDER[rows]], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(column.numpy(), np.log(cells()["depth"].iloc[ORDER[rows]]), rtol=1e-6, atol=1e-7)
    assert found.rows("test").between(1, 3).side_info.offset.tolist() == found.offset.test[1:3].tolist()
    few, told = found.offset._replace(valid=torch.zeros(4)), "the valid split has 5 rows, but 4 offset"
    refused(DataError, told, lambda: Counts(*splits_of(found), "dense", offset=few))


def test_a_model_without_weights_for_covariates_says_so(tmp_path: Path) -> None:
    frame()[["batch", "age", "depth"]].to_csv(tmp_path / "a.csv", index=False)
    labelled = load(str(tmp_path / "a.csv"), selection=Selection(label="batch"))
    assert model_for(ModelConfig(latent_dim=2, hidden=[8]), labelled)
    found = load(str(tmp_path / "a.csv"), selection=Selection(covariates=("batch",)))
    told = r"--data.covariates is for counts: .* gaussian has no weights"
    refused(ConfigError, told, lambda: model_for(ModelConfig(), found))


def test_row_names_are_one_per_row() -> None:
    stored = torch.arange(6).reshape(3, 2)
    with pytest.raises(DataError, match="the test split has 3 rows, but 2 row_names"):
        Counts(stored, stored, stored, "counts", row_names=Splits(("a",) * 3, ("b",) * 3, ("c",) * 2))


GAPS = Selection(missing=True)


def with_gaps() -> np.ndarray:
    values = np.random.default_rng(2).normal(size=(ROWS, 4)) * [1, 10, 100, 1] + [0, 5, -7, 2]
    values[np.random.default_rng(3).random((ROWS, 4)) < 0.3] = np.nan
    return values


def write_table(path: Path, values: np.ndarray) -> None:
    table = pd.DataFrame(values, columns=list("abcd"))
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".npy":
        np.save(path, values)
    else:
        table.to_csv(path, sep={".csv": ",", ".tsv": "\t"}[path.suffix], index=False)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".npy", ".parquet"])
def test_missing_entries_become_a_mask_only_if_asked_for(tmp_path: Path, suffix: str) -> None:
    path, values = tmp_path / f"gaps{suffix}", with_gaps()
    write_table(path, values)
    refused(DataError, r"expected a finite number, found .*--data.missing true", lambda: load(str(path)))
    found = load(str(path), selection=GAPS)
    train = values[ORDER[SPLITS[0]]]
    np.testing.assert_allclose(found.mean.numpy(), np.nanmean(train, 0))
    np.testing.assert_allclose(found.deviation.numpy(), np.nanstd(train, 0))
    standardized = (values - np.nanmean(train, 0)) / np.nanstd(train, 0)
    for split, part in zip(("train", "valid", "test"), SPLITS, strict=True):
        rows = found.rows(split)
        assert np.array_equal(rows.side_info.mask.numpy(), ~np.isnan(values[ORDER[part]]))
        assert rows.stored.isfinite().all()
        seen = found.as_seen(rows.between(0, 5)).numpy()
        np.testing.assert_allclose(seen, np.nan_to_num(standardized[ORDER[part]][:5]), rtol=1e-6, atol=1e-9)
    values[0, 0] = math.inf
    write_table(path, values)
    refused(DataError, "expected a finite number, found '?inf", lambda: load(str(path), selection=GAPS))


def test_missing_counts_are_seen_as_zeros(tmp_path: Path) -> None:
    dense = counts().toarray().astype(float)
    dense[5, 1:3] = np.nan
    np.save(tmp_path / "a.npy", dense)
    found = load(str(tmp_path / "a.npy"), kind="counts", selection=GAPS)
    assert_rows(found, np.nan_to_num(dense))
    mask = torch.cat([found.mask.train, found.mask.valid, found.mask.test])
    assert (~mask).sum() == 2
    np.save(tmp_path / "b.npy", counts().toarray())
    assert load(str(tmp_path / "b.npy"), kind="counts", selection=GAPS).mask.train.all()


@pytest.mark.parametrize("value", [-1, 0.5, np.nan, np.inf, 1e30])
def test_what_is_no_count_is_named(tmp_path: Path, value: float) -> None:
    matrix = counts().astype(float)
    place = matrix.indptr[7]
    matrix.data[place] = value
    dense = matrix.toarray()
    sp.save_npz(tmp_path / "a.npz", matrix)
    as_anndata(matrix).write_h5ad(tmp_path / "sparse.h5ad")
    as_anndata(dense).write_h5ad(tmp_path / "dense.h5ad")
    for name, gene in {"a.npz": "", "sparse.h5ad": r" \(gene0\)", "dense.h5ad": r" \(gene0\)"}.items():
        told = rf"{name}: row 8, column 1{gene}: expected a (finite|count)"
        assert "missing" not in refused(DataError, told, partial(load, str(tmp_path / name)))


def in_order(train: object, test: object) -> list[object]:
    """A column with a value in training rows, and another in one test row."""
    column = [train] * ROWS
    column[ORDER[-1]] = test
    return column


TEXTS = {
    "no number.csv": "a,b\n,2\n3,NA\n",
    "short.csv": "a,b\n1,2\n3\n",
    "underlined.csv": "a,b\n , NaN\n3,1_0\n",
    "bare.csv": "1,2\n" * 20,
    "twice.csv": "a,b,b\n" + "1,2,3\n" * 20,
}
COLUMNS: dict[str, dict[str, list[object]]] = {
    "zero.csv": {"depth": in_order(1.0, 0.0)},
    "negative.csv": {"depth": in_order(1.0, -1.5)},
    "infinite.csv": {"depth": in_order(1.0, math.inf)},
    "new.csv": {"age": [*(["young", "old"] * ROWS)[: ORDER[-1]], "new", *["old"] * (ROWS - ORDER[-1] - 1)]},
    "one number.csv": {"age": in_order(3.0, 4.0)},
    "one word.csv": {"age": in_order("same", 4.0)},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are refused, or whose selection is."""
    folder, gaps, dense = tmp_path_factory.mktemp("refused"), with_gaps(), counts().toarray()
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    for name, columns in COLUMNS.items():
        frame().assign(**columns).to_csv(folder / name, index=False)
    frame().to_parquet(folder / "a.parquet")
    frame()[["batch"]].to_csv(folder / "labels.csv", index=False)
    gaps[ORDER[SPLITS[0]], 2] = np.nan
    write_table(folder / "gaps.csv", gaps)
    np.save(folder / "a.npy", dense)
    sp.save_npz(folder / "a.npz", counts())
    dense[11] = 0
    sp.save_npz(folder / "empty.npz", sp.csr_matrix(dense))
    return folder


LABEL, SIZE, LAYER = Selection(label="b"), Selection(offset="size"), Selection("raw")
BY_AGE = Selection(label="batch", covariates=("age",), offset="depth")
BY_SIZE, ROW = Selection(label="batch", offset="depth"), ORDER[-1] + 1
UNUSABLE = f"size factors above 0 .* found {{}} in row {ROW}"
REFUSED: list[tuple[str, Selection, str]] = [
    ("cells.h5ad", Selection(label="sex"), "expected a column 'sex', found 'age', 'batch', .* in /obs"),
    ("cells.h5ad", Selection(covariates=("age", "sex")), "expected a column 'sex'"),
    ("cells.h5ad", Selection(offset="sex"), "expected a column 'sex'"),
    ("cells.h5ad", Selection(covariates=("some",)), "row 1 has no value in the column 'some'"),
    ("cells.h5ad", Selection(covariates=("type",)), "row 1 has no value in the column 'type'"),
    ("cells.h5ad", Selection(offset="some"), "row 1 has no value in the column 'some'"),
    ("cells.h5ad", Selection(offset="batch"), r"size factors above 0 in .*--data.offset\), found categories"),
    ("cells.h5ad", Selection(index="age"), r"file for --data.index, found a .h5ad file"),
    ("cells.h5ad", GAPS, r"file for --data.missing, found a .h5ad file"),
    ("digits", LABEL, "--data.label is for tables and counts, but digits holds images"),
    ("digits", GAPS, "--data.missing is for tables and counts, but digits holds images"),
    ("table.csv", Selection(offset="size", label="batch"), "--data.offset size is for counts, but .* are reals"),
    ("table.csv", LAYER, "an .h5ad file for --data.layer, found a .csv file"),
    ("a.npz", LAYER, "an .h5ad file for --data.layer, found a .npz file"),
    ("a.npz", GAPS, "file for --data.missing, found a .npz file"),
    ("a.npz", LABEL, "column 'b', but a sparse matrix has no names of columns"),
    ("a.npy", LABEL, "column 'b', but an array has no names of columns"),
    ("bare.csv", LABEL, "column 'b', but the first line has no names of columns"),
    ("empty.npz", SIZE, "row 12 has no counts, so that its size factor would be 0"),
    ("gaps.csv", GAPS, r"column 3 \(c\) is missing in all training rows"),
    ("no number.csv", GAPS, r"line 3, column 2 \(b\): expected a finite number, found 'NA'"),
    ("short.csv", GAPS, "line 3 has 1 cells, expected 2 as in line 1"),
    ("underlined.csv", GAPS, r"line 3, column 2 \(b\): expected a finite number, found '1_0'"),
    ("zero.csv", BY_SIZE, UNUSABLE.format(0)),
    ("negative.csv", BY_SIZE, UNUSABLE.format(-1.5)),
    ("infinite.csv", BY_SIZE, UNUSABLE.format("inf")),
    ("new.csv", BY_AGE, f"row {ROW} has 'new' as its 'age', and is for validation or test"),
    ("one number.csv", BY_AGE, "several values in the covariate 'age' in training rows"),
    ("one word.csv", BY_AGE, "several values in the covariate 'age' .* one and the same"),
    ("a.parquet", Selection(), r"numbers in column 1 \(batch\), found category"),
    ("labels.csv", Selection(label="batch"), "expected columns of data, found none"),
    ("twice.csv", LABEL, "expected one column 'b', found 2 of them in the first line"),
]


@pytest.mark.parametrize("case", REFUSED, ids=[f"{name}, {said}" for name, _, said in REFUSED])
def test_what_cannot_be_used_is_named(files: Path, h5ad: Path, csv: Path, case: tuple[str, Selection, str]) -> None:
    name, selection, message = case
    path = {"cells.h5ad": h5ad, "table.csv": csv, "digits": "digits"}.get(name, files / name)
    kind = "counts" if name in COLUMNS else "auto"
    said = refused(DataError, message, lambda: load(str(path), None, kind, selection))
    assert (name in said, "\n" in said) == (True, False)


def test_packages_that_are_not_there_are_named(h5ad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame().to_parquet(tmp_path / "a.parquet")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    needed = r"a.parquet: to read .parquet needs pyarrow: pip install pyarrow"
    refused(DataError, needed, lambda: load(str(tmp_path / "a.parquet")))
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(DataError, r"to read .h5ad needs an extra: pip install 'silentgrad\[counts\]'", lambda: load(str(h5ad)))


def test_settings_name_columns() -> None:
    config = DataConfig(layer="raw", label="type", covariates=["age"], offset="size", missing=True)
    assert config.selection == Selection("raw", "type", ("age",), "size", True)
