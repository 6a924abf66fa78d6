"""Kinds of rows: tables and bits beside images in levels, from their files to a trained model."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cells import splits_of
from refusals import refused
from runs import SMALL, TINY, Cli, rows, train
from silentgrad.lab.data import Batches, Binarized, DataError, Part, Reals, Splits, load
from silentgrad.lab.training import DataConfig, TrainConfig
from silentgrad.lab.training.checkpoints import checksum_of

COLUMNS = ("a", "b", "c", "d", "e")


def numbers() -> np.ndarray:
    """Rows of five columns of different size that two hidden causes explain, up to noise."""
    rng = np.random.default_rng(0)
    causes, loads = rng.normal(size=(200, 2)), rng.normal(size=(2, 5))
    return (causes @ loads + 0.1 * rng.normal(size=(200, 5))) * [1, 10, 100, 1e-3, 1] + [0, 5, -700, 1, 2]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    np.savetxt(path, numbers(), "%.17g", ",", header=",".join(COLUMNS), comments="")
    return path


def test_tables_of_either_format_are_the_same_and_keep_their_header(table: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "table.npy", numbers())
    (tmp_path / "bare.csv").write_text(table.read_text().partition("\n")[2])
    with_header, array, bare = (load(str(path)) for path in (table, tmp_path / "table.npy", tmp_path / "bare.csv"))
    assert (type(with_header), with_header.columns) == (Reals, COLUMNS)
    splits = splits_of(with_header)
    assert [len(split) for split in splits] == [160, 20, 20]
    for other in (array, bare):
        assert other.columns == ()
        torch.testing.assert_close(splits_of(other), splits, rtol=0, atol=0)
    assert sorted(torch.cat(splits).tolist()) == sorted(numbers().tolist())


CELLS = {
    "a,b\n1,2\n3,x\n": r"line 3, column 2 \(b\): expected a finite number, found 'x'",
    "1,2\n3,\n": "line 2, column 2: expected a finite number, found ''",
    "a,b\n\n1,2\n3,nan\n": r"line 4, column 2 \(b\): expected a finite number, found 'nan'",
    "1,-inf\n": "line 1, column 2: expected a finite number, found '-inf'",
    "1,1_000\n": "line 1, column 2: expected a finite number, found '1_000'",
    "a,1\n1,2\n": "line 1, column 1: expected a finite number, found 'a'",
    "1,True\n2,False\n": "line 1, column 2: expected a finite number, found 'True'",
    "a,b\n1,2,3\n4,5,6\n": "line 2 has 3 cells, expected 2 as in line 1",
    "a,b\n1,2\n3\n": "line 3 has 1 cells, expected 2 as in line 1",
    "": "expected a table of numbers, found an empty file",
    "a,b\n": "expected rows of numbers, found a header only",
    '"1,2\n': "expected a table of numbers",
    "1\n2\n": "expected ten rows at least, one each for validation and test, found 2",
    "a,b\n" + "1,2\n3,2\n" * 5: r"column 2 \(b\) has one and the same value in all 8 training rows",
}


@pytest.mark.parametrize("content", CELLS, ids=range(len(CELLS)))
def test_a_wrong_cell_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    said = refused(DataError, CELLS[content], lambda: load(str(path)))
    assert (str(path) in said, "\n" in said) == (True, False)


def test_a_wrong_array_and_kinds_that_the_rows_are_not_are_named(table: Path, tmp_path: Path) -> None:
    path, infinite = tmp_path / "table.npy", numbers()
    infinite[6, 2] = math.inf
    for message, array in {
        "row 7, column 3: expected a finite number, found inf": infinite,
        "expected a table of numbers": np.array([["a", "b"]]),
        "found float64 of shape": np.zeros((0, 3)),
    }.items():
        np.save(path, array)
        refused(DataError, message, lambda: load(str(path)))
    path.write_bytes(path.read_bytes()[:-1])
    refused(DataError, str(path), lambda: load(str(path)))
    for name, kind, message in [
        (str(table), "binarized", r"--data.kind binarized is for images, but .* is a table"),
        ("digits", "reals", r"--data.kind reals is for tables, but digits holds images"),
        (str(table), "counts", r"expected a count, found -?\d"),
    ]:
        refused(DataError, message, lambda name=name, kind=kind: load(name, kind=kind))


def test_reals_are_standardized_and_the_unit_takes_it_back(table: Path) -> None:
    """The figure of a density does not depend on what the columns are measured in, up to that unit itself."""
    reals = load(str(table))
    x = reals.as_seen(reals.rows("train"))
    torch.testing.assert_close(x.mean(0), torch.zeros(5, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(5, dtype=torch.float64))
    normal = torch.distributions.Normal(reals.train.mean(0), reals.train.std(0, correction=0))
    nats = -normal.log_prob(reals.test).sum(1).mean() / 5
    standard = torch.distributions.Normal(0.0, 1.0).log_prob(reals.as_seen(reals.rows("test"))).sum(1).mean()
    assert reals.figure(float(standard)) == pytest.approx(float(nats))


def test_bits_are_drawn_with_the_grey_values_as_means() -> None:
    gray = torch.tensor([0, 4, 16], dtype=torch.uint8).expand(20_000, 3)
    drawn = Binarized(gray, gray, gray, "gray", levels=17)
    x = drawn.as_seen(drawn.rows("train"), torch.Generator().manual_seed(0))
    assert x.unique().tolist() == [0, 1]
    torch.testing.assert_close(x.mean(0), torch.tensor([0.0, 0.25, 1.0]), atol=0.02, rtol=0)
    assert not torch.equal(x, drawn.as_seen(drawn.rows("train"), torch.Generator().manual_seed(1)))
    cut = Binarized(*[gray // 16] * 3, "black and white", levels=2)  # as they are
    assert torch.equal(cut.as_seen(cut.rows("test")), cut.test.float())
    assert drawn.figure(-80.0) == 80


def test_a_process_sees_its_part_of_the_noise() -> None:
    digits = load("digits")
    for observations in (digits, Binarized(digits.train, digits.valid, digits.test, "digits", levels=17)):
        rows = observations.rows("test").between(0, 10)
        whole = observations.as_seen(rows, torch.Generator().manual_seed(3))
        part = observations.as_seen(rows.between(4, 7), torch.Generator().manual_seed(3), Part(4, 10))
        assert torch.equal(part, whole[4:7])


def test_labels_covariates_and_masks_go_with_their_rows() -> None:
    stored = torch.arange(12.0).reshape(6, 2)
    splits = Splits(stored, stored[:2], stored[:3])
    labels = Splits(*(split[:, 0].int() for split in splits))
    mask = Splits(*(split > 3 for split in splits))
    reals = Reals(*splits, "table", labels=labels, covariates=Splits(*(10 * split for split in splits)), mask=mask)
    seen = []
    for _, batch in Batches(reals.rows("train"), 4, shuffle=True, seed=0):
        assert torch.equal(batch.labels, batch.stored[:, 0].int())
        assert torch.equal(batch.side_info.covariates, 10 * batch.stored)
        assert torch.equal(batch.side_info.mask, batch.stored > 3)
        seen += batch.labels.tolist()
    assert sorted(seen) == [0, 2, 4, 6, 8, 10]
    uneven = labels._replace(valid=labels.test)
    refused(DataError, "the valid split has 2 rows, but 3 labels", lambda: Reals(*splits, "table", labels=uneven))


def test_other_labels_are_other_data(table: Path) -> None:
    found = load(str(table))
    labels = Splits(*(torch.zeros(len(split)) for split in splits_of(found)))
    other = Reals(found.train, found.valid, found.test, found.name, labels=labels)
    assert checksum_of(found) == checksum_of(load(str(table)))
    assert checksum_of(other) != checksum_of(found)


@pytest.mark.parametrize(("split", "value"), [("train", 1e300), ("valid", 1e300), ("test", -1e20)])
def test_a_number_beyond_single_precision_is_named_as_such(value: float, split: str, tmp_path: Path) -> None:
    """The learning rate is not to blame."""
    numbers = np.random.default_rng(0).normal(size=(40, 3))
    np.save(tmp_path / "table.npy", numbers)
    row = int(getattr(load(str(tmp_path / "table.npy")).numbers, split)[1])
    numbers[row, 2] = value
    np.save(tmp_path / "table.npy", numbers)
    told = rf"row {row + 1}, column 3 is {re.escape(f'{value:.4g}')}, too far from"
    refused(DataError, told, lambda: train(tmp_path / "run", DataConfig(name=str(tmp_path / "table.npy"))))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("linear", ["fixed", "linear", "exp"])
def test_a_table_trains_with_a_linear_decoder(linear: str, table: Path, tmp_path: Path) -> None:
    model = replace(TINY, hidden=[8], tractable=linear, nonlinear=False, estimator="exact", start="ppca")
    how = TrainConfig(epochs=20, lr=1e-2, accelerator="cpu")
    summary = train(tmp_path / "run", DataConfig(name=str(table), batch_size=32), how, model=model)
    normal = torch.distributions.Normal(load(str(table)).mean, load(str(table)).deviation)
    independent = -normal.log_prob(load(str(table)).test).mean()
    assert summary.unit.in_print == "NLL nats per entry"
    assert summary.figure < float(independent)  # two causes explain the table, up to a little noise
    assert (summary.limit is not None) == (linear == "fixed")
    assert summary.limit is None or summary.limit < summary.figure


def test_a_table_trains_from_the_command_line(table: Path, tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "run"
    said = cli("train", "--data.name", table, *SMALL, "--train.epochs", "2", "--folder", folder)
    figure = json.loads((folder / "summary.json").read_text())["figure"]
    assert f"test NLL {figure:.4f} nats per entry" in said
    assert rows(folder / "metrics.csv")[-1]["valid_nll"]
    assert not (folder / "pictures.safetensors").exists()
    page = (folder / "report.html").read_text()
    assert [told in page for told in ("test NLL", "nats per entry", "Bits per dimension")] == [True, True, False]
    assert f"test NLL {figure:.4f} nats per entry" in cli("evaluate", folder)
    other = tmp_path / "other.csv"
    other.write_text(table.read_text())
    assert "standardized by other rows" in cli.fails("evaluate", folder, "--data", other)
    for command in ("reconstruct", "sample"):
        assert "holds no images" in cli.fails(command, folder)
