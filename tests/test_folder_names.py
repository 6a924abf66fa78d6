"""Folders with names that a console, a figure, a page or a database could take for something else."""

import html
import shutil
from pathlib import Path

import pytest
from matplotlib.legend import Legend

from silentgrad.lab.cli.main import main
from silentgrad.lab.reports.compare import curves
from silentgrad.lab.reports.figures import drawable
from silentgrad.lab.reports.html import png
from silentgrad.lab.runs.records import Run
from silentgrad.lab.training import DataConfig, ModelConfig, TrainConfig, train_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")
NAMES = ["[red]x", "[x]", "$a$", r"$\frac$", "_x", "wh?t #1 100% %41", "q\"u'o", "two\nlines", "\U0001f600", ":smile:",
         "日本語", "<b>&amp;", "a\tb"]  # fmt: skip
TOGETHER = ["[red]x $a$", r"_$\frac$ wh?t #1 100% %41", "q\"u'o <b>&amp;\ntwo\tlines", ":smile: \U0001f600 日本語"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    model, train = ModelConfig(latent_dim=2, hidden=[4]), TrainConfig(epochs=1, accelerator="cpu")
    train_model(DataConfig(batch_size=512), model, train, folder, quiet=True)
    return folder


@pytest.fixture
def named(name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The run in a folder of that name, beside another, in the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / name)
    shutil.copytree(run, tmp_path / "plain")
    return name


@pytest.mark.parametrize("name", TOGETHER, ids=repr)
def test_a_name_is_shown_as_it_is(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reconstruct", named])
    assert f"report: {named}/report.html\n" in capsys.readouterr().out
    assert f"<h1>{html.escape(named)}</h1>" in (Path(named) / "report.html").read_text()
    main(["sample", named])
    assert f"samples: {named}/samples.png\n" in capsys.readouterr().out
    main(["compare", named, "plain", "--output", f"{named}/compare.html"])
    said = capsys.readouterr().out
    assert f"{named}: the same settings\n" in said
    assert f"page: {named}/compare.html\n" in said
    assert html.escape(named) in (Path(named) / "compare.html").read_text()


def test_every_run_is_in_the_legend(run: Path) -> None:
    figure = curves(dict.fromkeys(NAMES, Run.read(run)))
    (legend,) = (part for part in figure.get_children() if isinstance(part, Legend))
    assert [text.get_text() for text in legend.get_texts()] == [drawable(name) for name in NAMES]
    assert png(figure).startswith(b"\x89PNG")  # drawn without a warning about mathematics or letters


def test_letters_that_the_font_lacks_are_written_as_codes() -> None:
    assert drawable("é$_") == "é$_"
    assert drawable("日\n") == r"\u65e5\n"


def test_train_and_sweep_into_such_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--model.latent_dim", "2", "--model.hidden", "[4]", "--data.batch_size", "512", "--train.epochs", "1",
             "--train.accelerator", "cpu", "--quiet", "true"]  # fmt: skip
    name = "[/red]$wh?t$ #1 %41\n:smile:"
    main(["train", *small, "--folder", f"runs/{name}"])
    assert f"report: runs/{name}/report.html\n" in capsys.readouterr().out
    main(["sweep", *small, "--grid.lr", "[0.001]", "--folder", f"sweeps/{name}"])
    assert f"page: sweeps/{name}/sweep.html\n" in capsys.readouterr().out
    assert (tmp_path / "sweeps" / name / "study.db").is_file()
    main(["train", "--config", f"sweeps/{name}/best.yaml", "--quiet", "true", "--folder", "again"])
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "sweeps", "again"}
