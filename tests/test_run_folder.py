"""Files of a run: their names stand in one module, rows come back, and folders may have any name."""

import re
import shutil
from pathlib import Path

import pytest
from markupsafe import escape
from matplotlib.legend import Legend

import silentgrad
from refusals import refused
from runs import SMALL, Cli
from silentgrad.lab.kinds import BITS_PER_DIMENSION
from silentgrad.lab.reports.curves import comparison_curves, drawable
from silentgrad.lab.reports.page import png
from silentgrad.lab.store.files import read_metrics, write_rows_atomically
from silentgrad.lab.store.folders import File, RunFolder, SweepFolder
from silentgrad.lab.store.records import Run

LABORATORY = Path(silentgrad.__file__).parent / "lab"
OWNER = LABORATORY / "store" / "folders.py"


def file_names() -> set[str]:
    """Return the names of files that do not depend on anything."""
    members = [*vars(RunFolder).values(), *vars(SweepFolder).values()]
    files = {member.name for member in members if isinstance(member, File)}
    return {name for name in files if Path(name).suffix}


@pytest.mark.parametrize("path", sorted(LABORATORY.rglob("*.py")), ids=lambda path: str(path.relative_to(LABORATORY)))
def test_no_other_module_spells_a_files_name(path: Path) -> None:
    names = file_names()
    assert {"config.yaml", "metrics.csv", "summary.json", "trials.csv"} <= names
    code = re.sub(r'""".*?"""|\B#.*?$', "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert path == OWNER or not any(name in code for name in names)


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


def test_every_run_is_in_the_legend(digits_run: Path) -> None:
    figure = comparison_curves(dict.fromkeys(NAMES, Run.read(digits_run)), BITS_PER_DIMENSION)
    (legend,) = (part for part in figure.get_children() if isinstance(part, Legend))
    assert [text.get_text() for text in legend.get_texts()] == [drawable(name) for name in NAMES]
    assert png(figure).startswith(b"\x89PNG")  # drawn without a warning about mathematics or letters


def test_letters_that_the_font_lacks_are_written_as_codes() -> None:
    assert drawable("é$_") == "é$_"
    assert drawable("日\n") == r"\u65e5\n"


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
