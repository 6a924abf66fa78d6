"""Runs and their folders: what the command line shows and leaves, how it goes on, and names of folders and files."""

import os
import re
import shutil
from pathlib import Path

import pytest
from markupsafe import escape
from matplotlib.legend import Legend
from PIL import Image

import silentgrad
from refusals import refused
from runs import SMALL, Cli, content, interrupted, rows
from silentgrad.lab.cli import demo
from silentgrad.lab.data import Selection, load
from silentgrad.lab.kinds import BITS_PER_DIMENSION
from silentgrad.lab.reports.curves import comparison_curves, drawable
from silentgrad.lab.reports.page import Picture
from silentgrad.lab.store.files import read_json, read_metrics, write_rows_atomically
from silentgrad.lab.store.folders import File, RunFolder, SweepFolder
from silentgrad.lab.store.records import Run
from silentgrad.lab.training import read_config

BATCHES = ["--data.batch_size", "512"]  # of which an epoch of 1,297 rows takes 3


def test_an_interrupted_run_says_how_to_go_on_and_does(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "a run"
    said = interrupted(folder, "metrics.csv", "train", *SMALL, *BATCHES, "--train.epochs", "40")
    assert f"interrupted; go on by: silentgrad train --folder '{folder}' --resume true\n" in said
    before = len((folder / "metrics.csv").read_text().splitlines())
    assert before < 41
    cli("train", "--folder", folder, "--resume", "true", "--quiet", "true")
    assert [int(row["epoch"]) for row in rows(folder / "metrics.csv")] == list(range(1, 41))
    done = content(folder)
    said = cli("train", "--folder", folder, "--resume", "true")
    assert "is finished: nothing was trained" in said
    assert "the same model without z was not trained" in said
    assert content(folder) == done
    assert "(importance-weighted bound, 20 samples" in cli("evaluate", folder, "--samples", "20")


def test_the_bar_counts_steps_and_epochs_from_one(tmp_path: Path, cli: Cli) -> None:
    said = cli("train", *SMALL[:-1], *BATCHES, "--train.epochs", "2", "--folder", tmp_path / "run")
    assert "epoch 2 of 2" in said
    assert "6/6 steps 0:00:00 left, validation BPD " in said


def test_folders_of_images_are_classes_and_their_sizes_are_made_alike(here: Path, cli: Cli) -> None:
    for number in range(24):
        path = Path("images", ("cats", "dogs")[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8 + number % 3, 9), 100 * (number % 2)).save(path)
    said = cli("train", *SMALL, "--train.epochs=1", "--data.name=images", "--data.resize=4", "--folder=run")
    assert "20 training examples are few" in said
    cli("sample", "run", "--count", "3", "--mean", "true")
    observations = load("images", selection=Selection(resize=4))
    assert (observations.event_shape, observations.label_names) == ((1, 4, 4), ("cats", "dogs"))
    for images, labels in zip(observations.train, observations.labels.train, strict=True):
        assert (images == 100 * labels).all()
    assert "colored by class" in Path("run", "report.html").read_text()
    assert "is for a folder of images" in cli.fails("train", "--data.resize", "4")
    cli("latents", "run", "--output", "z.csv")
    assert [row["row"] for row in rows(Path("z.csv"))][:2] == ["cats/0.png", "cats/10.png"]


def test_reproduce_goes_on_by_the_same_command(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    words = ["reproduce", "fixed", "--scale", "smoke", "--seeds", "1", "--jobs", "1"]
    said = interrupted(folder, "*/metrics.csv", *words, kill=os.killpg)  # as a terminal does, to the workers too
    assert f"interrupted; go on by: silentgrad {' '.join(words)} --folder {folder}\n" in said


def test_a_demonstration_leaves_a_run_to_go_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    said = interrupted(folder, "network/metrics.csv", "demo")
    assert f"go on by: silentgrad train --folder {folder}/network --resume true\n" in said
    assert [path.name for path in folder.iterdir()] == ["network"]


RUNS = ("network", "without", "circuit")


def test_a_demonstration_tells_the_figures_of_its_runs(here: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr(demo, "EPOCHS", 1)
    earlier = here / "runs" / "demo-001" / "precious"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("mine")
    said = cli("demo", "--seed", "3")
    place = Path("runs/demo-002")
    assert [path.name for path in earlier.parent.iterdir()] == ["precious"]
    assert {path.name for path in place.iterdir()} == {*RUNS, "compare.html"}
    told = [line.split() for line in said.splitlines()]
    for name in RUNS:
        left = read_json(place / name / "summary.json")
        elbo = left.get("sampled", left["figure"])
        figures = [f"{left['figure']:.4f}", f"{elbo:.4f}", f"{left['seconds']:.1f}"]
        assert [words[-3:] for words in told if words[:1] == [str(place / name)]] == [figures]
        assert read_config(place / name).train.seed == 3
        assert (place / name / "report.html").exists()
    assert "sampled" in read_json(place / "circuit" / "summary.json")
    for simple in ("gaussian", "histogram", "compressor", "linear"):
        assert f"no latents: {simple}" in said
        assert f"{read_json(place / 'network' / 'summary.json')['baselines'][simple]:.4f}" in said
    assert said.endswith(f"page: {place}/compare.html\n")
    page = (place / "compare.html").read_text()
    assert all(f">{name}</td>" in page for name in RUNS)


# --- names of folders and files

LABORATORY = Path(silentgrad.__file__).parent / "lab"
OWNER = LABORATORY / "store" / "folders.py"


def test_no_other_module_spells_a_files_name() -> None:
    files = [file.name for file in [*vars(RunFolder).values(), *vars(SweepFolder).values()] if isinstance(file, File)]
    names = {name for name in files if Path(name).suffix}  # that do not depend on anything
    assert {"config.yaml", "metrics.csv", "summary.json", "trials.csv"} <= names
    for path in set(LABORATORY.rglob("*.py")) - {OWNER}:
        code = re.sub(r'""".*?"""|\B#.*?$', "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not any(name in code for name in names), path


def test_rows_come_back_as_they_were_written_and_one_with_a_column_of_its_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    odd = [{"epoch": 1}, {"epoch": 2, "nonsense": 3}]
    refused(ValueError, "nonsense", lambda: write_rows_atomically(path, odd))
    assert list(tmp_path.iterdir()) == []
    write_rows_atomically(path, [{"epoch": 1, "bpd": 0.1 + 0.2}, {"epoch": 2}])
    assert read_metrics(path) == {"epoch": [1.0, 2.0], "bpd": [0.1 + 0.2, None]}


NAMES = ["[red]x", "[x]", "$a$", r"$\frac$", "_x", "wh?t #1 100% %41", "q\"u'o", "two\nlines", "\U0001f600", ":smile:",
         "日本語", "<b>&amp;", "a\tb"]  # fmt: skip
TOGETHER = ["[red]x $a$", r"_$\frac$ wh?t #1 100% %41", "q\"u'o <b>&amp;\ntwo\tlines", ":smile: \U0001f600 日本語"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", TOGETHER, ids=repr)
def test_a_name_is_shown_as_it_is(name: str, digits_run: Path, here: Path, cli: Cli) -> None:
    for folder in (name, "plain"):
        shutil.copytree(digits_run, here / folder)
    for words, told, page in [
        (["reconstruct", name], f"report: {name}/report.html\n", "report.html"),
        (["sample", name], f"samples: {name}/samples.png\n", "report.html"),
        (["compare", name, "plain", "--output", f"{name}/a.html"], f"page: {name}/a.html\n", "a.html"),
    ]:
        assert told in cli(*words)
        assert escape(name) in Path(name, page).read_text()


def test_every_run_is_in_the_legend_and_letters_that_the_font_lacks_are_written_as_codes(digits_run: Path) -> None:
    figure = comparison_curves(dict.fromkeys(NAMES, Run.read(digits_run)), BITS_PER_DIMENSION)
    (legend,) = (part for part in figure.get_children() if isinstance(part, Legend))
    assert [text.get_text() for text in legend.get_texts()] == [drawable(name) for name in NAMES]
    assert Picture(figure, "").png.startswith(b"\x89PNG")  # drawn without a warning about mathematics or letters
    assert [drawable(name) for name in ("é$_", "日\n")] == ["é$_", r"\u65e5\n"]


@pytest.mark.usefixtures("undrawn")
def test_train_and_sweep_into_such_folders(here: Path, cli: Cli) -> None:
    small = [*SMALL, "--data.batch_size", "512", "--train.epochs", "1"]
    name = "[/red]$wh?t$ #1 %41\n:smile:"
    assert f"report: runs/{name}/report.html\n" in cli("train", *small, "--folder", f"runs/{name}")
    said = cli("sweep", *small, "--over", "train.lr=0.001", "--jobs", "1", "--folder", f"sweeps/{name}")
    assert f"page: sweeps/{name}/sweep.html\n" in said
    assert (here / "sweeps" / name / "study.db").is_file()
    cli("train", "--config", f"sweeps/{name}/best.yaml", "--quiet", "true", "--folder", "again")
    assert {path.name for path in here.iterdir()} == {"runs", "sweeps", "again"}
