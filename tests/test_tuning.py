"""Tuned comparisons: validation chooses, finished rows are never trained again, and the docs are made from them."""

import sys
from pathlib import Path

import pytest

from runs import TINY
from silentgrad.lab.experiments import guide, linear
from silentgrad.lab.experiments.cells import Request
from silentgrad.lab.experiments.experiment import chosen, compared_runs, trials
from silentgrad.lab.experiments.ledger import Ledger, RunRow, key_of
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import run_all
from silentgrad.lab.experiments.tuned import Comparison
from silentgrad.lab.settings import DataConfig, Settings, TrainConfig
from silentgrad.lab.settings.documents import with_options

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

import tables  # noqa: E402

KIND = linear.linear_cells(Request("smoke", 1))[1]  # Gumbel-Softmax
GRID = linear.grid_of(KIND)


def entered(path: Path | None = None, test: float = 1.0) -> Ledger:
    """All trials of a row, the fourth of which is the best in validation, with a test figure that grows or falls."""
    ledger = Ledger(path)
    for place, trial in enumerate(trials(KIND, GRID)):
        valid = None if place == 0 else 5.0 + abs(place - 3)
        row = RunRow(
            run=trial.name, seed=0, valid=valid, test=test * place, curve=(7.0, 6.0), command=key_of(trial.settings)
        )
        ledger.add(row)
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
    assert row.valid == min(row.curve)
    assert row.seconds > 0
    assert row.command == key_of(settings)


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


def test_pages_and_claims_are_what_the_committed_runs_say() -> None:
    for page in tables.PAGES:
        assert (ROOT / "docs" / "tables" / f"{page}.md").read_text(encoding="utf-8") == tables.page_of(page), page
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert text == tables.results_page(text)
