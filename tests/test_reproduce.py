"""The paper's tables at the smallest scale: every page is made, what is done is kept, the arithmetic is right.

And tuned comparisons: validation chooses, and finished rows are never trained again.
"""

import json
import math
import statistics
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from browser import Look
from runs import TINY, Cli
from runs import rows as rows_of
from silentgrad.lab.build import model_for, plan_for
from silentgrad.lab.cli.main import main
from silentgrad.lab.cli.reproduce import EXPERIMENTS
from silentgrad.lab.data import load
from silentgrad.lab.experiments import circuits, guide, linear, paper
from silentgrad.lab.experiments.cells import Cell, Request, fixed_cells, learned_cells
from silentgrad.lab.experiments.experiment import chosen, compared_runs, trials
from silentgrad.lab.experiments.ledger import Ledger, RunRow, key_of
from silentgrad.lab.experiments.paper_tables import reduced
from silentgrad.lab.experiments.recipes import GridCell, recipe_names
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import run_all
from silentgrad.lab.experiments.tuned import Comparison
from silentgrad.lab.settings import DataConfig, Settings, TrainConfig
from silentgrad.lab.settings.documents import with_options
from silentgrad.lab.store.files import write_json_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.tables import Spread, Table
from workers import write_summary

SMOKE = ["--scale", "smoke", "--seeds", "1", "--accelerator", "cpu", "--jobs", "2"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce")
    main(["reproduce", "all", *SMOKE, "--folder", str(folder)])
    return folder


def record_of(folder: Path, name: str) -> dict[str, Any]:
    """Return what a table's file has: the findings, and the fields of the one table."""
    record = json.loads((folder / f"{name}.json").read_text())
    table, *curves = record["parts"]
    return record | table | {"notes": record["notes"], "labels": [label for own in curves for label in own["runs"]]}


ROWS = {"fixed": 10, "variance": 5, "bpd": 17, "kld": 13, "mse": 13}  # methods, and models without latents


@pytest.mark.parametrize("table", ROWS)
def test_a_table_has_four_forms_and_at_the_smallest_scale_judges_nothing(everything: Path, table: str) -> None:
    record = record_of(everything, table)
    rows = ROWS[table]
    assert len(record["rows"]) == rows
    markdown = (everything / f"{table}.md").read_text()
    assert sum(line.startswith("| ") for line in markdown.splitlines()) == rows + 1
    assert "silentgrad reproduce all --scale smoke" in markdown
    assert "its figures mean nothing" in markdown
    assert (everything / f"{table}.tex").read_text().count(r"\\") == rows + 1
    assert len(rows_of(everything / f"{table}.csv")) == rows
    assert "<table>" in (everything / f"{table}.html").read_text()
    assert (record["verdicts"], record["best"]) == ([], [])
    assert ("limit: probabilistic PCA" in str(record["rows"])) == (table == "fixed")
    assert all(len(row) == len(record["columns"]) for row in record["rows"])
    said = " ".join([*(column["name"] for column in record["columns"]), *record["notes"], *record["labels"]])
    assert "digits" in said
    for word in ("(paper)", "MNIST", "against", "verdict", "Other than"):
        assert word not in said


@pytest.mark.parametrize("page", ["fixed", "variance", "bpd", "figures"])  # kld and mse are laid out as bpd is
def test_a_browser_shows_every_page(everything: Path, page: str, look: Look) -> None:
    assert look(everything / f"{page}.html").problems == []


def test_the_figures_call_their_data_by_their_name(everything: Path) -> None:
    groups = json.loads((everything / "figures.json").read_text())["parts"]
    assert [group["title"] for group in groups] == ["Fixed variance, digits", "Learned variance, digits"]
    for group in groups:
        assert (everything / f"{group['name']}.png").exists()
        assert len(group["runs"]) == 5
        assert all(label.startswith("digits ") for label in group["runs"])


def test_what_stands_in_for_other_data_says_for_which() -> None:
    cells = learned_cells(Request("smoke", 1, ["mnist", "cifar10"]))
    assert {cell.data for cell in cells} == {"digits", "digits for CIFAR-10"}
    assert {cell.data for cell in learned_cells(Request("cpu", 1, ["mnist", "cifar10"]))} == {"MNIST", "CIFAR-10"}


def test_the_exact_estimator_has_no_variance(everything: Path) -> None:
    record = record_of(everything, "variance")
    for row in record["rows"]:
        estimates = row[3:8:3]
        assert (set(estimates) == {0.0}) == (row[1] == "Silent Gradients")


def test_what_is_done_is_not_done_again(everything: Path, cli: Cli) -> None:
    models = sorted(everything.glob("*/model.safetensors"))
    before = [path.stat().st_mtime_ns for path in models]
    assert len(models) == 5 + 13
    said = cli("reproduce", "kld", *SMOKE, "--folder", everything)
    title = record_of(everything, "kld")["title"]
    for text in ("13 of them finished before", title, "Continuous", "Discrete", f"kld: {everything / 'kld.html'}"):
        assert text in said
    assert [path.stat().st_mtime_ns for path in models] == before


BASELINE = {"figure": 8.0, "model": "every pixel an independent Gaussian"}


def made_up(folder: Path, cells: list[Cell], **figures: Callable[[Cell], float]) -> Results:
    """Runs with these figures; one without a BPD diverged."""
    ledger = Ledger()
    for cell in cells:
        run, found = RunFolder(folder / cell.name), {name: of(cell) for name, of in figures.items()}
        run.path.mkdir()
        write_json_atomically(run.failure, {"message": "the loss became nan"})
        if math.isfinite(found.get("figure", 0.0)):
            run.failure.unlink()
            write_summary(run.path, **{"sampled": None, "baseline": BASELINE} | found)
        ledger.enter(cell.name, cell.settings, run.path)
    return Results(folder, cells, ledger)


def columns(table: Table, name: str) -> dict[tuple[str, ...], Any]:
    """Return a column by the data or latents, and the method, of its rows."""
    place = table.heads.index(name)
    return {(row[0], row[table.heads.index("method")]): row[place] for row in table.rows}


def test_changes_stand_beside_the_means_unless_a_run_failed(tmp_path: Path) -> None:
    cells = [cell for cell in learned_cells(Request("cpu", 3)) if "reparam" in cell.method or "gumbel" in cell.method]
    bpd = {"reparameterized": [4.0, 4.2, 4.4], "reparameterized-sg": [3.0, 3.1, 3.5],
           "reparameterized-ours": [4.1, 4.1, 4.4], "gumbel-softmax": [9.0, 1.0, 1.0],
           "gumbel-softmax-sg": [2.0] * 3, "gumbel-softmax-ours": [2.0] * 3}  # fmt: skip
    results = made_up(tmp_path, cells, figure=lambda cell: bpd[cell.method][cell.seed])
    found = EXPERIMENTS["bpd"].build(results, Request("cpu", 3))
    (table,) = found.tables
    alone, guided, ours = (("MNIST", f"Reparameterization{guide}") for guide in ("", " + SG", " + our guide"))
    bpd, change, verdict = (columns(table, name) for name in ("test BPD", "against no guide", "verdict"))
    assert bpd[alone].mean == pytest.approx(4.2)
    assert bpd[guided].std == pytest.approx(statistics.stdev([3.0, 3.1, 3.5]))
    assert change[guided].mean == pytest.approx(-1.0)
    assert (change[alone], verdict[guided], verdict[ours]) == (None, "helps", "undecided")
    assert columns(table, "BPD (paper)")[guided] == Spread(1.83, 0.03, 3)
    failed = verdict["MNIST", "Gumbel-Softmax"], change["MNIST", "Gumbel-Softmax + SG"]
    assert failed == ("failed (1 of 3)", None)
    assert [sentence for sentence in found.verdicts if "Gumbel" in sentence] == []
    (notes,) = [note for note in found.notes if note.startswith("Other than") and "reparameterized-sg" in note]
    for difference in ("epochs 20 instead of 200", "annealing rate per epoch 0.1 instead of 0.01", "hidden [256]"):
        assert difference in notes
    assert "log_term" not in notes
    assert any("start ppca" in note and "-ours" in note for note in found.notes)


def test_more_divergence_from_the_prior_is_better(tmp_path: Path) -> None:
    cells = [cell for cell in learned_cells(Request("cpu", 2)) if "reparam" in cell.method]
    results = made_up(tmp_path, cells, kld=lambda cell: 150.0 + 20 * cell.method.endswith("-sg") + cell.seed)
    found = EXPERIMENTS["kld"].build(results, Request("cpu", 2))
    assert columns(found.tables[0], "verdict")["MNIST", "Reparameterization + SG"] == "helps"


def test_with_sg_is_the_papers_method() -> None:
    for scale, latent in product(("cpu", "conv", "paper"), paper.BLOCKS):
        cells = [cell for cell in learned_cells(Request(scale, 1)) if cell.latent == latent]
        guided = [cell.settings for cell in cells if cell.method.endswith(paper.GUIDED)]
        guides = {(own.model.tractable, own.model.log_term, own.model.start) for own in guided}
        assert guides == {("linear", "taylor", "random")}
        for own in (cell.settings.train for cell in cells):
            assert (own.clip, own.decay, own.lr in paper.RATES) == (0.0, "none", True)


def test_a_run_that_diverged_is_said_to_have(tmp_path: Path) -> None:
    cells = fixed_cells(Request("cpu", 2))
    bpd = {"silent": math.nan, "gumbel-softmax": 7.0, "reinforce": 7.1, "reparameterized": 6.7}
    results = made_up(tmp_path, cells, figure=lambda cell: bpd[cell.method] if cell.seed else 6.9)
    found = EXPERIMENTS["fixed"].build(results, Request("cpu", 2))
    (table,) = found.tables
    own = [columns(table, name)["Discrete", "Silent Gradients"] for name in ("test BPD", "verdict", "BPD (paper)")]
    assert own == ["diverged (1 of 2)", "failed (1 of 2)", paper.FIXED["bernoulli", "silent"].bpd]
    assert found.verdicts == []  # nothing is compared with a run that failed


def test_every_cell_is_a_recipe() -> None:
    cells = {"conv": learned_cells(Request("conv", 3))}
    for scale in ("cpu", "paper"):
        cells[scale] = [*fixed_cells(Request(scale, 1)), *learned_cells(Request(scale, 1, list(paper.DATASETS)))]
    names = set(recipe_names())
    for scale, of_one in cells.items():
        assert {GridCell(*cell[:3], scale, cell.variant).name for cell in of_one} <= names
        assert len({cell.name for cell in of_one}) == len(of_one)


def test_the_convolutional_scale_is_the_papers_network_made_smaller() -> None:
    cells = learned_cells(Request("conv", 3))
    assert [cell.settings.model.network for cell in cells] == ["conv"] * 39
    first, *_ = reduced(cells, Request("conv", 3))
    assert "channels 8 instead of 32" in first
    assert "batch" not in first


def test_every_run_of_the_circuits_table_can_be_made() -> None:
    digits, datasets = load("digits"), list(circuits.BLOCKS)
    cells = circuits.circuit_cells(Request("smoke", 1, datasets))
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        model_for(plan_for(cell.settings).model, digits)
    for dataset, kind, latent in {(cell.dataset, cell.variant, cell.latent) for cell in cells}:
        block = [cell for cell in cells if (cell.dataset, cell.variant, cell.latent) == (dataset, kind, latent)]
        assert len({(str(cell.settings.model.hidden), cell.settings.train.lr_network) for cell in block}) == 1
        assert circuits.WITHOUT in {cell.method for cell in block}


def test_circuits_are_compared_with_those_without_latents(tmp_path: Path) -> None:
    cells = [cell for cell in circuits.circuit_cells(Request("cpu", 3, ["digits"])) if cell.variant == "context"]
    gain = {"exact": [0.5, 0.51, 0.52], "without-z": [0.0] * 3}
    elbos = {"figure": lambda cell: 2.25, "sampled": lambda cell: 2.0 - gain[cell.method][cell.seed]}
    found = EXPERIMENTS["circuits"].build(made_up(tmp_path, cells, **elbos), Request("cpu", 3, ["digits"]))
    (table,) = found.tables
    assert columns(table, "sampled ELBO") == {
        ("digits", "bound"): Spread(pytest.approx(1.49), pytest.approx(0.01), 3),
        ("digits", "without z"): Spread(2.0, 0.0, 3),
        ("digits", "no latents: one Gaussian a pixel"): 8.0,
    }
    (verdict,) = found.verdicts
    assert verdict.startswith("digits, whole levels, a context, continuous: bound against without z -0.51")
    assert verdict.endswith("in sampled ELBO: helps.")


KIND = linear.linear_cells(Request("smoke", 1))[1]  # Gumbel-Softmax
GRID = linear.grid_of(KIND)


def entered(path: Path | None = None, test: float = 1.0) -> Ledger:
    """All trials of a row, the fourth of which is the best in validation, with a test figure that grows or falls."""
    ledger = Ledger(path)
    for place, trial in enumerate(trials(KIND, GRID)):
        valid = None if place == 0 else 5.0 + abs(place - 3)
        own = {"run": trial.name, "seed": 0, "command": key_of(trial.settings)}
        ledger.add(RunRow(**own, valid=valid, test=test * place, curve=(7.0, 6.0)))
    return ledger


@pytest.mark.parametrize("test", [1.0, -1.0])
def test_validation_chooses_once_all_trials_are_there_and_the_test_does_not(test: float) -> None:
    ledger = entered(test=test)
    best = chosen(KIND, GRID, ledger)
    assert best == trials(KIND, GRID)[3]
    runs = compared_runs([KIND], linear.grid_of, ledger, seeds=2)
    assert [run.seed for run in runs] == [1, 2]  # none of the seed that was tuned with
    assert all(run.settings == with_options(best.settings, {"train.seed": run.seed}) for run in runs)
    ledger.rows.popitem()
    assert chosen(KIND, GRID, ledger) is None


def test_rows_outlive_their_folders_and_are_not_trained_again(tmp_path: Path) -> None:
    path = tmp_path / "results" / "linear.csv"
    written = entered(path)
    again = Ledger(path)
    assert again.rows == written.rows
    run_all(trials(KIND, GRID), tmp_path / "gone", 1, None, "cpu", ledger=again)  # would take a minute
    assert not (tmp_path / "gone").exists()


def test_a_finished_run_is_entered_with_its_command(tmp_path: Path) -> None:
    settings = Settings(DataConfig(batch_size=512), TINY, TrainConfig(epochs=2, seed=3))
    cell = KIND._replace(settings=settings)
    ledger = Ledger(tmp_path / "own.csv")
    run_all([cell], tmp_path / "runs", 1, None, "cpu", ledger=ledger)
    (row,) = Ledger(tmp_path / "own.csv").rows.values()
    assert (row.steps, row.examples, len(row.curve), row.seed) == (6, 1297, 2, 3)
    assert (row.valid, row.command) == (min(row.curve), key_of(settings))
    assert row.seconds > 0


def test_a_level_counts_with_the_final_variance_only() -> None:
    """A larger variance makes another model, whose figures may be lower."""
    bits = KIND.at({"train.epochs": 6, "model.variance": 0.1, "model.variance_start": 0.3}, 0)
    still = KIND.at({"train.epochs": 6, "model.variance": 0.1}, 1)
    ledger = Ledger()
    for cell in (bits, still):
        ledger.add(RunRow(run=cell.name, seed=cell.seed, curve=(4, 5, 9, 7, 6, 5), command=key_of(cell.settings)))
    results = Results(Path(), [bits, still], ledger)
    assert [results.epochs_to(level) for level in (6.0, 3.0)] == [[5, 1], [math.inf, math.inf]]


@pytest.mark.parametrize(("experiment", "dataset"), [(linear.EXPERIMENT, "mnist"), (guide.EXPERIMENT, "digits")])
def test_rows_of_a_table_are_those_of_the_ledger(experiment: Comparison, dataset: str, tmp_path: Path) -> None:
    request = Request("cpu", 2, [dataset], tune=True)
    block, *_ = experiment.blocks(request)
    ledger = Ledger()
    for kind in block:
        for trial in trials(kind, experiment.grid(kind)):
            ledger.add(RunRow(run=trial.name, seed=0, valid=1.0, command=key_of(trial.settings)))
    for place, run in enumerate(compared_runs(block, experiment.grid, ledger, 2)):
        row = RunRow(run=run.name, seed=run.seed, steps=20, valid=3.0, test=3.0 + place, independent=4.5, histogram=1.5,
                     seconds=1.0, curve=(5.0, 3.0), command=key_of(run.settings))  # fmt: skip
        ledger.add(row)
        (tmp_path / run.name).mkdir()
        (tmp_path / run.name / "summary.json").touch()  # the run's folder is still there
    results = Results(tmp_path, experiment.finished(request, ledger), ledger)
    (table,) = experiment.build(results, request).tables
    assert len(table.rows) == len(block) + 2  # the model without latents of the same likelihood, and the histogram
    verdicts = table.column(table.heads.index("verdict"))
    assert verdicts[3:] == [f"failed ({2 if place > 1 else 1} of 2)" for place in range(1, len(block))]
