"""The paper's tables at the smallest scale: every page is made, what is done is kept, the arithmetic is right."""

import csv
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from browser import WIDTHS, look, needs_browser
from silentgrad.errors import SilentgradError
from silentgrad.lab.build import model_for, plan_for
from silentgrad.lab.cli.main import main
from silentgrad.lab.cli.reproduce import EXPERIMENTS
from silentgrad.lab.data import load
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale, fixed_cells, grid_cell, learned_cells
from silentgrad.lab.experiments.circuits import circuit_cells
from silentgrad.lab.experiments.experiment import Request, reduced
from silentgrad.lab.experiments.ledger import Ledger
from silentgrad.lab.experiments.recipes import recipe_names
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import run_all
from silentgrad.lab.runs.findings import Findings
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.tables import Spread, Table
from workers import write_metrics, write_summary

SMOKE = ["--scale", "smoke", "--seeds", "1", "--accelerator", "cpu", "--jobs", "2"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce")
    main(["reproduce", "all", *SMOKE, "--folder", str(folder)])
    return folder


def record_of(folder: Path, name: str) -> dict[str, Any]:
    """Return what a table's file has: the findings, and the fields of the one table."""
    record = json.loads((folder / f"{name}.json").read_text())
    (table,) = record["parts"]
    return record | table | {"notes": record["notes"]}


@pytest.mark.parametrize("table", ["fixed", "variance", "bpd", "kld", "mse", "bias"])
def test_every_table_is_written_in_four_forms_and_judges_nothing_at_the_smallest_scale(
    everything: Path, table: str
) -> None:
    record = record_of(everything, table)
    rows = len(record["rows"])
    assert rows == {"fixed": 9, "bpd": 7, "bias": 4}.get(table, 5)
    markdown = (everything / f"{table}.md").read_text()
    assert sum(line.startswith("| ") for line in markdown.splitlines()) == rows + 1
    assert "silentgrad reproduce all --scale smoke" in markdown
    assert "its figures mean nothing" in markdown
    assert (everything / f"{table}.tex").read_text().count(r"\\") == rows + 1
    with (everything / f"{table}.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == rows + 1
    assert "<table>" in (everything / f"{table}.html").read_text()
    assert (record["verdicts"], record["best"]) == ([], [])
    assert all(len(row) == len(record["columns"]) for row in record["rows"])
    said = " ".join([*(column["name"] for column in record["columns"]), *record["notes"], *record["runs"]])
    assert "digits" in said
    for word in ("BPD (paper)", "MNIST", "changes", "Other than"):
        assert word not in said
    if table in ("bpd", "kld", "mse"):
        assert {row[0] for row in record["rows"]} == {"digits"}


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["fixed", "variance", "bpd", "figures"])  # kld and mse are laid out as bpd is
def test_a_browser_shows_every_page(everything: Path, tmp_path: Path, page: str, width: int) -> None:
    assert look(everything / f"{page}.html", width, tmp_path).problems == []


def test_the_limit_and_the_failure_of_a_run_stand_in_the_table(everything: Path) -> None:
    record = record_of(everything, "fixed")
    limits = [row for row in record["rows"] if str(row[1]).startswith("limit")]
    run = json.loads((everything / "mnist-fixed-gaussian-silent-seed0" / "summary.json").read_text())
    assert [row[2] for row in limits] == [pytest.approx(run["limit"], rel=1e-6)]
    assert run["figure"] > run["baseline"]["figure"]
    assert record["rows"][0][2] == f"{run['figure']:.3f}, failed (1 of 1)"


def test_the_figures_call_their_data_by_their_name(everything: Path) -> None:
    groups = json.loads((everything / "figures.json").read_text())["parts"]
    assert [group["title"] for group in groups] == ["Fixed variance, digits", "Learned variance, digits"]
    for group in groups:
        assert (everything / f"{group['name']}.png").exists()
        assert len(group["runs"]) == 5
        assert all(label.startswith("digits ") for label in group["runs"])


def test_what_stands_in_for_other_data_says_for_which() -> None:
    cells = learned_cells("smoke", ["mnist", "cifar10"], 1)
    assert {cell.data for cell in cells} == {"digits", "digits for CIFAR-10"}
    assert {cell.data for cell in learned_cells("cpu", ["mnist", "cifar10"], 1)} == {"MNIST", "CIFAR-10"}


def test_the_exact_estimator_has_no_variance(everything: Path) -> None:
    record = record_of(everything, "variance")
    for row in record["rows"]:
        estimates = row[3:8:3]
        assert (set(estimates) == {0.0}) == (row[1] == "Silent Gradients")


def test_what_is_done_is_not_done_again(everything: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = sorted(everything.glob("*/model.safetensors"))
    before = [path.stat().st_mtime_ns for path in models]
    assert len(models) == 5 + 13 + 1
    main(["reproduce", "kld", *SMOKE, "--folder", str(everything)])
    said = capsys.readouterr().out
    assert "13 of them finished before" in said
    assert record_of(everything, "kld")["title"] in said
    for text in ("Continuous", "Discrete", f"kld: {everything / 'kld.html'}"):
        assert text in said
    assert [path.stat().st_mtime_ns for path in models] == before


def test_runs_with_other_settings_are_refused(everything: Path) -> None:
    (cell, *_) = learned_cells("smoke", ["mnist"], 1)
    other = cell._replace(settings=cell.settings._replace(train=cell.settings.train.__class__(epochs=3)))
    with pytest.raises(SilentgradError, match="other settings"):
        run_all([other], everything, 1, None, "cpu")


BASELINE = {"figure": 8.0, "model": "every pixel an independent Gaussian"}


def made_up(folder: Path, cells: list[Cell], bpd: dict[str, list[float]]) -> Results:
    for cell in cells:
        (folder / cell.name).mkdir()
        write_summary(folder / cell.name, figure=bpd[cell.method][cell.seed], sampled=None, baseline=BASELINE)
    return entered(folder, cells)


def entered(folder: Path, cells: list[Cell]) -> Results:
    ledger = Ledger()
    for cell in cells:
        ledger.enter(cell.name, cell.settings, folder / cell.name)
    return Results(folder, cells, ledger)


def test_changes_stand_beside_the_means_unless_a_run_failed(tmp_path: Path) -> None:
    cells = [cell for cell in learned_cells("cpu", ["mnist"], 3) if "reparam" in cell.method or "gumbel" in cell.method]
    results = made_up(tmp_path, cells, {"reparameterized": [4.0, 4.2, 4.4], "reparameterized-sg": [3.0, 3.1, 3.5],
                                        "reparameterized-ours": [4.1, 4.1, 4.4], "gumbel-softmax": [9.0, 1.0, 1.0],
                                        "gumbel-softmax-sg": [2.0] * 3, "gumbel-softmax-ours": [2.0] * 3})  # fmt: skip
    found = EXPERIMENTS["bpd"].build(results, Request("cpu", 3))
    rows = {row[2]: row for row in found.tables[0].rows}
    row = rows["Reparameterization"]
    assert row[3].mean == pytest.approx(4.2)
    assert row[4].std == pytest.approx(statistics.stdev([3.0, 3.1, 3.5]))
    assert row[8].mean == pytest.approx(-1.0)
    assert row[9].verdict == "undecided"
    assert "failed (1 of 3)" in rows["Gumbel-Softmax"][3]
    assert rows["Gumbel-Softmax"][8:10] == [None, None]
    assert [sentence for sentence in found.verdicts if "Gumbel" in sentence] == []
    (notes,) = [note for note in found.notes if note.startswith("Other than") and "reparameterized-sg" in note]
    for change in ("epochs 20 instead of 200", "annealing rate per epoch 0.1 instead of 0.01", "hidden [256]"):
        assert change in notes
    assert "log_term" not in notes
    assert any("start ppca" in note and "-ours" in note for note in found.notes)


def test_with_sg_is_the_papers_method() -> None:
    for scale, latent in product(("cpu", "conv", "paper"), paper.BLOCKS):
        cells = [cell for cell in learned_cells(scale, ["mnist"], 1) if cell.latent == latent]
        guided = [cell.settings for cell in cells if cell.method.endswith(paper.GUIDED)]
        assert {(own.model.tractable, own.model.log_term, own.model.start) for own in guided} == {
            ("linear", "taylor", "random")
        }
        for own in (cell.settings.train for cell in cells):
            assert (own.clip, own.decay, own.lr in paper.RATES) == (0.0, "none", True)


def test_a_run_that_diverged_is_said_to_have(tmp_path: Path) -> None:
    cells = fixed_cells("cpu", 2)
    bpd = {"silent": 6.9, "gumbel-softmax": 7.0, "reinforce": 7.1, "reparameterized": 6.7}
    made_up(tmp_path, cells, {method: [figure, figure] for method, figure in bpd.items()})
    (discrete,) = [cell for cell in cells if (cell.latent, cell.method, cell.seed) == ("bernoulli", "silent", 1)]
    for cell in (discrete, cells[0]):
        run = RunFolder(tmp_path / cell.name)
        run.summary.unlink()
        run.failure.write_text('{"message": "the loss became nan"}')
    table = EXPERIMENTS["fixed"].build(entered(tmp_path, cells), Request("cpu", 2))
    row = next(row for row in table.tables[0].rows if row[:2] == ["Discrete", "Silent Gradients"])
    assert row[2] == "diverged (1 of 2)"
    assert row[3] == paper.FIXED["bernoulli", "silent"][0]
    assert table.verdicts[0].startswith("Continuous: the lowest mean has Reparameterization")
    assert "unlike in the paper" in table.verdicts[0]


def test_every_cell_is_a_recipe() -> None:
    cells = {"conv": learned_cells("conv", ["mnist"], 3)}
    for scale in ("cpu", "paper"):
        cells[scale] = [*fixed_cells(scale, 1), *learned_cells(scale, list(paper.DATASETS), 1)]
    names = set(recipe_names())
    for scale, of_one in cells.items():
        assert {grid_cell(*cell[:3], scale, cell.variant).name for cell in of_one} <= names
        assert len({cell.name for cell in of_one}) == len(of_one)


def test_the_convolutional_scale_is_the_papers_network_made_smaller() -> None:
    cells = learned_cells("conv", ["mnist"], 3)
    assert len(cells) == 39
    assert {cell.settings.model.network for cell in cells} == {"conv"}
    first, *_ = reduced(cells, Request("conv", 3))
    assert "channels 8 instead of by default" in first
    assert "batch" not in first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--datasets", "[mnits]"], "mnist, imagenet32, cifar10"),
        (["--seeds", "0"], "at least 1"),
        (["--jobs", "0"], "at least 1"),
        (["--scale", "huge"], "scale"),
    ],
)
def test_bad_options_are_named(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "bpd", *words, "--folder", str(tmp_path / "none")])
    assert stop.value.code not in (0, None)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_every_run_of_the_circuits_table_can_be_made() -> None:
    digits = load("digits")
    cells = circuit_cells("smoke", 1)
    assert len({cell.name for cell in cells}) == len(cells) == 18
    for cell in cells:
        plan_for(cell.settings)
        model_for(cell.settings.model, digits)
    encoders = {(cell.latent, str(cell.settings.model.hidden), cell.settings.train.lr_network) for cell in cells}
    assert len(encoders) == 2  # the same for all runs of a family of latents


def circuits_found(folder: Path, scale: Scale, seeds: int) -> tuple[Findings, Table]:
    cells = circuit_cells(scale, seeds)
    for place, cell in enumerate(cells):
        run = folder / cell.name
        run.mkdir()
        simple = {"baseline": {"figure": 99.0, "model": "a Gaussian"}, "baselines": {"histogram": 1.5}}
        figures = {"figure": 2.0 + place, "sampled": 1.75 + place, "seconds": 20.0 + place, **simple}
        write_summary(run, **figures, epochs=2, best_epoch=2)
        write_metrics(run, [(10.5 * epoch, 5.0 - epoch) for epoch in (1, 2)])
    found = EXPERIMENTS["circuits"].build(entered(folder, cells), Request(scale, seeds))
    (table,) = found.tables
    return found, table


def test_circuits_are_compared_at_equal_seconds(tmp_path: Path) -> None:
    found, table = circuits_found(tmp_path, "cpu", 2)
    first, *_ = table.rows
    assert first[:3] == ["Continuous", "linear", "silent"]
    assert first[3] == Spread(2.5, pytest.approx(statistics.stdev([2.0, 3.0])), 2)
    assert first[4] == Spread(2.25, pytest.approx(statistics.stdev([2.0, 3.0])), 2)
    # the silent circuits took 26.5 seconds on average: what was slower had one epoch by then, what was quicker both
    assert [row[5].mean for row in table.rows[:10]] == [3.0, 3.0, 3.0, 3.5] + [4.0] * 6
    assert [row[1:4] for row in table.rows[-2:]] == [
        ["no latents: one Gaussian a pixel", "", 99.0], ["no latents: histogram", "", 1.5],
    ]  # fmt: skip
    assert table.best == [0, 10]
    assert found.verdicts == [
        "Continuous: the best ELBO has linear, silent.",
        "Discrete: the best ELBO has circuit, silent.",
    ]
    assert table.title.endswith("MNIST")
    assert any("best are marked" in note for note in found.notes)


def test_circuits_at_the_smallest_scale_are_digits_and_none_is_the_best(tmp_path: Path) -> None:
    found, table = circuits_found(tmp_path, "smoke", 1)
    assert table.title.endswith("digits")
    assert (table.best, found.verdicts) == ([], [])
    said = " ".join(found.notes)
    assert "MNIST" not in said
    assert "best are marked" not in said
