"""Several runs beside each other: what differs, which is best, and a page that stays legible with many."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from browser import Look
from refusals import refused
from runs import Cli, made_up
from silentgrad.lab.reports.compare import comparison, curve_section, differences, run_names, write_comparison
from silentgrad.lab.store.files import RecordError
from silentgrad.lab.store.records import Run
from workers import WHOLE

CONFIG = {"data": {"name": "digits"}, "model": {"latent_dim": 8, "hidden": [64]}, "train": {"lr": 1e-3, "seed": 0}}
RUNS = {"one": 2.0, "two": 2.25}
PER_ENTRY = WHOLE | {"figure": 1.25, "unit": "NLL nats per entry"}


def make_run(folder: Path, best: float = 2.5, lr: float = 1e-3, summary: Any = None, metric: str = "bpd") -> Path:
    epoch = np.arange(1, 21)
    metrics = {"epoch": epoch, "seconds": 3 * epoch, f"valid_{metric}": best + 4 / epoch, "valid_mse": 1 / epoch}
    return made_up(folder, CONFIG | {"train": {"lr": lr, "seed": 0}}, metrics | {"valid_kld": 7.0}, summary)


def curves(runs: dict[str, Run]) -> Figure:
    """Return the figure as the page has it, with the runs' common unit and limit."""
    return curve_section(runs, "Curves").blocks[0].figure


def read(*folders: Path) -> dict[str, Run]:
    return dict(zip(run_names(folders), map(Run.read, folders), strict=True))


def test_names_and_settings_that_differ_tell_runs_apart() -> None:
    assert run_names([Path("x/one"), Path("x/two/")]) == ["one", "two"]
    assert run_names([Path("x/one"), Path("y/one"), Path("y/two")]) == ["x/one", "y/one", "y/two"]
    a = {"data": {"name": "mnist"}, "model": {"hidden": [64], "cutoff": None}}
    b = {"data": {"name": "mnist"}, "model": {"hidden": [32], "cutoff": None, "new": 1}}
    assert differences({"a": a, "b": b}) == {"a": {"hidden": "[64]", "new": ""}, "b": {"hidden": "[32]", "new": "1"}}
    assert differences({"a": a, "c": a}) == {"a": {}, "c": {}}
    one, two = {"a": {"size": 1}, "b": {"size": 2, "lr": 1}}, {"a": {"size": 2}, "b": {"size": 1, "lr": 2}}
    assert list(differences({"one": one, "two": two})["one"]) == ["a.size", "b.size", "lr"]  # of one name, by groups


def test_the_table_has_figures_and_differences(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", summary=WHOLE | {"limit": 2.25})
    two = make_run(tmp_path / "two", lr=5e-4)
    table = comparison(read(one, two))
    first, second = (dict(zip(table.heads, row, strict=True)) for row in table.rows)
    assert table.best == [0]
    assert first == {"run": "one", "test BPD": 2.5, "limit BPD": 2.25, "MSE": 0.02, "KLD": 7.5, "active": 6,
                     "epochs": 20, "time": "1 min 15 s", "lr": "0.001"}  # fmt: skip
    assert (second["test BPD"], second["epochs"], second["time"], second["lr"]) == (None, 20, "1 min 00 s", "0.0005")


@pytest.mark.usefixtures("undrawn")
def test_what_has_to_be_beaten_and_what_failed_is_said(tmp_path: Path) -> None:
    beside = {"baseline": {"figure": 2.25, "model": "every pixel a coin"}, "baselines": {"a": 3.0, "b": 1.5}}
    one, two = (make_run(tmp_path / name, summary=WHOLE | beside | {"figure": own}) for name, own in RUNS.items())
    (table,) = write_comparison([one, two], tmp_path / "page.html").values()
    assert table.notes == [
        "Without latents: b 1.500, a 3.",
        "Failed, no better than a model without latents of the same likelihood: two.",
    ]


@pytest.mark.usefixtures("undrawn")
def test_runs_of_a_table_are_compared_in_their_own_unit(tmp_path: Path) -> None:
    finished = make_run(tmp_path / "finished", summary=PER_ENTRY | {"limit": 1.0}, metric="nll")
    under_way = make_run(tmp_path / "under-way", metric="nll")  # it does not say yet what it is counted per
    runs = read(under_way, finished)
    heads = ["run", "test NLL, nats per entry", "limit NLL", "squared error", "KLD", "active", "epochs", "time"]
    assert comparison(runs).heads == heads
    assert comparison(runs).rows[1][1] == 1.25
    assert curves(runs).axes[0].get_title(loc="left") == "NLL, nats per entry"
    assert len(curves(runs).axes[0].get_lines()) == 3  # with the limit
    write_comparison([finished, under_way], tmp_path / "page.html")
    assert "Validation NLL in nats per entry over epochs" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("metric", "summary"), [("bpd", WHOLE), ("nll", WHOLE | {"unit": "NLL nats per example"})])
def test_runs_in_different_units_are_refused(tmp_path: Path, metric: str, summary: dict[str, Any]) -> None:
    one = make_run(tmp_path / "one", summary=PER_ENTRY, metric="nll")
    two = make_run(tmp_path / "two", summary=summary, metric=metric)
    folders, page = [one, make_run(tmp_path / "new", metric="nll"), two], tmp_path / "page.html"
    refused(RecordError, "one is told in NLL nats per entry, two in ", lambda: write_comparison(folders, page))
    assert not (tmp_path / "page.html").exists()


def test_the_limit_is_drawn_if_it_is_the_same_for_all(tmp_path: Path) -> None:
    limits = {"one": 2.25, "two": 2.25, "three": 2.0}
    one, two, three = (make_run(tmp_path / name, summary=WHOLE | {"limit": own}) for name, own in limits.items())
    assert [len(curves(read(one, other)).axes[0].get_lines()) for other in (two, three)] == [3, 2]


@pytest.mark.parametrize("content", ["{}", "data: 5", "data: {}", "data: {name: 5}", "data: [name]"])
def test_a_run_whose_settings_name_no_data_is_refused(content: str, tmp_path: Path, cli: Cli) -> None:
    first, second = make_run(tmp_path / "first"), make_run(tmp_path / "second")
    (second / "config.yaml").write_text(content)
    said = cli.fails("compare", first, second, "--output", tmp_path / "page.html")
    assert said == f"silentgrad: {second} cannot be compared: its config.yaml names no data\n"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("rows", ["", *(f"1,{time},3.0\n2,{time},2.0\n" for time in ("nan", "inf", "-1"))])
def test_runs_before_their_first_epoch_and_a_strangers_times(rows: str, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / "first"), make_run(tmp_path / "second")]
    for folder in folders:
        (folder / "metrics.csv").write_text(f"epoch,seconds,valid_bpd\n{rows}")
    assert write_comparison(folders, tmp_path / "page.html")


@pytest.mark.usefixtures("undrawn")
def test_the_command_tells_runs_of_different_data_apart(tmp_path: Path, cli: Cli) -> None:
    one, two = make_run(tmp_path / "<b>[red]one", summary=WHOLE), make_run(tmp_path / "two", 2.2, 5e-4)
    cells = make_run(tmp_path / "cells", summary=PER_ENTRY, metric="nll")
    (cells / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"data": {"name": "cells.csv"}}))
    output = tmp_path / "pages" / "all.html"
    digits, table = cli("compare", f"--output={output}", one, cells, two).split("cells.csv:\n")
    assert digits.startswith("digits:\n")
    for text in ("test BPD", "<b>[red]one", "two", "0.0005", "2.500"):
        assert (text in digits, text in table) == (True, False)
    assert "test NLL, nats per entry" in table
    assert f"page: {output}" in table
    page = output.read_text()
    assert page.index("<h2>digits</h2>") < page.index("<h2>cells.csv</h2>")
    assert page.count("<h2>Curves, ") == 2
    assert "<b>" not in page
    assert "&lt;b&gt;[red]one" in page


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    names = [place / f"run-of-a-rather-long-name-{number:02}" for number in range(12)]
    return [make_run(name, 2 + number / 10, 1e-4 * number, WHOLE) for number, name in enumerate(names)]


def test_twelve_runs_have_twelve_lines(twelve: list[Path]) -> None:
    figure = curves(read(*twelve))
    for axes in figure.axes:
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}) == 12
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [folder.name for folder in twelve]


def test_a_browser_shows_the_page_whole(twelve: list[Path], tmp_path: Path, look: Look) -> None:
    write_comparison(twelve, tmp_path / "page.html")
    seen = look(tmp_path / "page.html")
    assert (seen.problems, seen.images) == ([], 1)
