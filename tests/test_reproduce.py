"""The paper's tables at the smallest scale: every page is made, what is done is kept, the arithmetic is right."""

import csv
import json
import statistics
from pathlib import Path

import pytest

from browser import WIDTHS, look, needs_browser
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.main import main
from silentgrad.lab.data import load
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import fixed_cells, learned_cells, recipe_of
from silentgrad.lab.experiments.circuits import circuit_cells, circuit_table
from silentgrad.lab.experiments.notes import reduced
from silentgrad.lab.experiments.results import Results, spread
from silentgrad.lab.experiments.runner import run_all
from silentgrad.lab.experiments.tables import fixed_table, learned_table
from silentgrad.lab.reports.tables import write_tables
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import RecordError
from silentgrad.lab.runs.tables import Column, Spread, Table, read_pictures, read_table, write_record
from silentgrad.lab.training.build import model_for
from silentgrad.lab.training.recipes import recipe_names
from summaries import WHOLE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")
SMOKE = ["--scale", "smoke", "--seeds", "1", "--accelerator", "cpu", "--jobs", "2"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce")
    main(["reproduce", "all", *SMOKE, "--folder", str(folder)])
    return folder


@pytest.mark.parametrize("table", ["fixed", "variance", "bpd", "kld", "mse"])
def test_every_table_is_written_in_four_forms(everything: Path, table: str) -> None:
    record = json.loads((everything / f"{table}.json").read_text())
    rows = len(record["rows"])
    assert rows == {"fixed": 11, "variance": 5}.get(table, 5)
    markdown = (everything / f"{table}.md").read_text()
    assert sum(line.startswith("| ") for line in markdown.splitlines()) == rows + 1
    assert "silentgrad reproduce all --scale smoke" in markdown
    assert "its figures mean nothing" in markdown
    assert (everything / f"{table}.tex").read_text().count(r"\\") == rows + 1
    with (everything / f"{table}.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == rows + 1
    assert "<table>" in (everything / f"{table}.html").read_text()


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["fixed", "variance", "bpd", "kld", "mse", "figures"])
def test_a_browser_shows_every_page(everything: Path, tmp_path: Path, page: str, width: int) -> None:
    assert look(everything / f"{page}.html", width, tmp_path).problems == []


def test_the_limit_stands_in_the_table(everything: Path) -> None:
    record = json.loads((everything / "fixed.json").read_text())
    limits = [row for row in record["rows"] if str(row[1]).startswith("limit")]
    run = json.loads((everything / "mnist-fixed-gaussian-silent-seed0" / "summary.json").read_text())
    assert [row[3] for row in limits] == [run["limit_bpd"]]
    assert record["rows"][0][3] == {"mean": run["bpd"], "std": None, "seeds": 1}


@pytest.mark.parametrize("table", ["fixed", "variance", "bpd", "kld", "mse"])
def test_the_smallest_scale_calls_its_data_by_their_name_and_judges_nothing(everything: Path, table: str) -> None:
    record = read_table(everything / f"{table}.json")
    assert record.verdicts == []
    assert record.best == []
    assert all(len(row) == len(record.columns) for row in record.rows)
    said = " ".join([*(column.name for column in record.columns), *record.notes, *record.curves])
    assert "digits" in said
    for word in ("paper", "MNIST", "helps", "Reduced"):
        assert word not in said
    if table in ("bpd", "kld", "mse"):
        assert {row[0] for row in record.rows} == {"digits"}


def test_the_figures_call_their_data_by_their_name(everything: Path) -> None:
    groups = read_pictures(everything / "figures.json").groups
    assert [group.title for group in groups] == ["Fixed variance, digits", "Learned variance, digits"]
    for group in groups:
        assert len(group.runs) == 5
        assert all(label.startswith("digits ") for label in group.runs)


def test_what_stands_in_for_other_data_says_for_which() -> None:
    cells = learned_cells("smoke", ["mnist", "cifar10"], 1)
    assert {cell.data for cell in cells} == {"digits", "digits for CIFAR-10"}
    assert {cell.data for cell in learned_cells("cpu", ["mnist", "cifar10"], 1)} == {"MNIST", "CIFAR-10"}


def test_the_exact_estimator_has_no_variance(everything: Path) -> None:
    record = json.loads((everything / "variance.json").read_text())
    for row in record["rows"]:
        estimates = row[3:8:3]
        assert (set(estimates) == {0.0}) == (row[1] == "Silent Gradients")


def test_what_is_done_is_not_done_again(everything: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = sorted(everything.glob("*/model.safetensors"))
    before = [path.stat().st_mtime_ns for path in models]
    assert len(models) == 10 + 8
    main(["reproduce", "kld", *SMOKE, "--folder", str(everything)])
    said = capsys.readouterr().out
    assert "8 of them finished before" in said
    record = read_table(everything / "kld.json")
    assert record.title in said
    for text in ("Continuous", "Discrete", f"kld: {everything / 'kld.html'}"):
        assert text in said
    assert [path.stat().st_mtime_ns for path in models] == before


def test_runs_with_other_settings_are_refused(everything: Path) -> None:
    (cell, *_) = learned_cells("smoke", ["mnist"], 1)
    other = cell._replace(settings=cell.settings._replace(train=cell.settings.train.__class__(epochs=3)))
    with pytest.raises(SilentgradError, match="other settings"):
        run_all([other], everything, 1, None, "cpu")


def made_up(folder: Path, cells: Results, bpd: dict[str, list[float]]) -> None:
    for cell in cells.cells:
        (folder / cell.name).mkdir()
        value = bpd[cell.method][cell.seed]
        (folder / cell.name / "summary.json").write_text(json.dumps(WHOLE | {"bpd": value}))


def test_means_deviations_and_verdicts(tmp_path: Path) -> None:
    results = Results(
        tmp_path, [c for c in learned_cells("cpu", ["mnist"], 3) if "reparam" in c.method or "gumbel" in c.method]
    )
    made_up(tmp_path, results, {"reparameterized": [4.0, 4.2, 4.4], "reparameterized-sg": [3.0, 3.1, 3.5],
                                "gumbel-softmax": [1.0, 1.0, 1.0], "gumbel-softmax-sg": [2.0, 2.0, 2.0]})  # fmt: skip
    table = learned_table("bpd", results, ["mnist"], "cpu")
    row = next(row for row in table.rows if row[2] == "Reparameterization")
    assert row[3].mean == pytest.approx(4.2)
    assert row[4].std == pytest.approx(statistics.stdev([3.0, 3.1, 3.5]))
    assert row[7] == "yes"
    assert "MNIST, Continuous, Reparameterization: SG lowers BPD by 1.000, as in the paper." in table.verdicts
    assert "MNIST, Discrete, Gumbel-Softmax: SG raises BPD by 1.000, unlike in the paper." in table.verdicts
    assert any("epochs 20 instead of 200" in note for note in table.notes)


def test_a_run_that_diverged_is_said_to_have(tmp_path: Path) -> None:
    results = Results(tmp_path, [cell for cell in fixed_cells("cpu", 2) if cell.latent == "bernoulli"])
    made_up(tmp_path, results, {"silent": [6.9, 6.9], "gumbel-softmax": [7.0, 7.0], "reinforce": [7.1, 7.1]})
    diverged = tmp_path / results.where(method="silent", scheduled=False)[1].name
    (diverged / "summary.json").unlink()
    RunFolder(diverged).failure.write_text('{"message": "the loss became nan"}')
    gaussian = Results(tmp_path, [cell for cell in fixed_cells("cpu", 2) if cell.latent == "gaussian"])
    made_up(tmp_path, gaussian, {"silent": [6.8, 6.8], "reparameterized": [6.7, 6.7]})
    first = tmp_path / gaussian.cells[0].name
    (first / "summary.json").unlink()
    RunFolder(first).failure.write_text('{"message": "the loss became nan"}')
    table = fixed_table(Results(tmp_path, [*gaussian.cells, *results.cells]), "cpu")
    row = next(row for row in table.rows if row[:3] == ["Discrete", "Silent Gradients", "no"])
    assert row[3] == "diverged (1 of 2)"
    assert row[4] == paper.FIXED["bernoulli", "silent"][0]
    assert table.verdicts[0].startswith("Continuous: the best is Reparameterization")
    assert "unlike in the paper" in table.verdicts[0]


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    assert spread([3.0]) == Spread(3.0, None, 1)
    assert spread([]) is None
    rows = [["<i>", Spread(1.25, 0.5, 3)]]
    record = write_record(tmp_path, Table("t", "A & B", [Column(""), Column("x", 1)], rows, best=[0], command="c"))
    page = write_tables(record).read_text()
    assert "&lt;i&gt;" in page
    assert "1.25 ± 0.50" in page
    assert r"\textbf{1.25 $\pm$ 0.50}" in (tmp_path / "t.tex").read_text()
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == "<i>,1.25,0.5,3"


def test_a_record_that_is_no_table_is_named(tmp_path: Path) -> None:
    table = Table("t", "A", [Column("x")], [[1.0], [Spread(1.0, None, 1)]], curves={"a": "run"})
    path = write_record(tmp_path, table)
    assert read_table(path) == table
    for content in ("{}", '{"columns": 1}', '{"columns": [], "rows": [], "nonsense": 1}'):
        path.write_text(content)
        with pytest.raises(RecordError, match=r"t\.json: it holds no table"):
            read_table(path)


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_every_cell_is_a_recipe(scale: str) -> None:
    cells = [*fixed_cells(scale, 1), *learned_cells(scale, list(paper.DATASETS), 1)]
    assert {recipe_of(cell, scale) for cell in cells} <= set(recipe_names())
    assert len({cell.name for cell in cells}) == len(cells)


def test_the_convolutional_scale_is_the_papers_network_made_smaller() -> None:
    cells = learned_cells("conv", ["mnist"], 3)
    assert {recipe_of(cell, "conv") for cell in cells} <= set(recipe_names())
    assert len({cell.name for cell in cells}) == len(cells) == 24
    assert {cell.settings.model.network for cell in cells} == {"conv"}
    (note, _) = reduced(cells, "conv")
    assert "network conv, 8 channels instead of conv, 32 channels" in note
    assert "batch" not in note


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
    assert len({cell.name for cell in cells}) == len(cells) == 16
    for cell in cells:
        cell.settings.validate()
        model_for(cell.settings.model, digits)
    encoders = {(cell.latent, str(cell.settings.model.hidden), cell.settings.train.lr_network) for cell in cells}
    assert len(encoders) == 2  # the same for all runs of a family of latents


def circuits_made_up(results: Results) -> None:
    for place, cell in enumerate(results.cells):
        folder = results.folder / cell.name
        folder.mkdir()
        summary = WHOLE | {"bpd": 2.0 + place, "seconds": 20.0 + place, "sampled": 1.75 + place, "gap": 0.25}
        (folder / "summary.json").write_text(json.dumps(summary))
        slow = 10 if cell.method == "circuit-bits" else 1
        rows = [f"{epoch},{10.5 * slow * epoch},{5.0 - epoch}" for epoch in (1, 2)]
        (folder / "metrics.csv").write_text("\n".join(["epoch,seconds,valid_bpd", *rows]) + "\n")


def test_circuits_are_compared_at_equal_seconds(tmp_path: Path) -> None:
    results = Results(tmp_path, circuit_cells("cpu", 2))
    circuits_made_up(results)
    table = circuit_table(results, "cpu")
    first, *_ = table.rows
    assert first[:3] == ["Continuous", "linear", "silent"]
    assert first[3] == Spread(2.5, pytest.approx(statistics.stdev([2.0, 3.0])), 2)
    assert first[4] == Spread(2.25, pytest.approx(statistics.stdev([2.0, 3.0])), 2)
    # the silent circuits took 26.5 and 38.5 seconds, after the second epoch; a slow run had none by then
    assert [row[5].mean for row in table.rows[:9] + table.rows[10:]] == [3.0] * 15
    assert table.rows[9][5] is None
    assert table.best == [0, 9]
    assert table.verdicts == [
        "Continuous: the best ELBO has linear, silent.",
        "Discrete: the best ELBO has circuit, silent.",
    ]
    assert table.title.endswith("MNIST")
    assert any("best are marked" in note for note in table.notes)


def test_circuits_at_the_smallest_scale_are_digits_and_none_is_the_best(tmp_path: Path) -> None:
    results = Results(tmp_path, circuit_cells("smoke", 1))
    circuits_made_up(results)
    table = circuit_table(results, "smoke")
    assert table.title.endswith("digits")
    assert (table.best, table.verdicts) == ([], [])
    said = " ".join(table.notes)
    assert "MNIST" not in said
    assert "best are marked" not in said
