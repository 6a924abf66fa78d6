"""Records are read back whole or refused by name; a report is one page that stands on its own."""

import csv
import io
import json
import math
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from safetensors.torch import save, save_file
from sklearn.datasets import load_digits
from torch import Tensor

import browser
from refusals import refused
from runs import TWICE, made_up, train
from silentgrad.lab import tables
from silentgrad.lab.cli.main import main
from silentgrad.lab.cli.shared import console
from silentgrad.lab.cli.training import _figures
from silentgrad.lab.kinds import BITS_PER_DIMENSION
from silentgrad.lab.printing import with_error, with_interval
from silentgrad.lab.reports import figures, write_report
from silentgrad.lab.reports.curves import DPI, run_curves
from silentgrad.lab.reports.page import CommandLine, Details, Listing, Page, Picture, Section, Tile, Tiles
from silentgrad.lab.settings import resolve
from silentgrad.lab.settings.documents import read_settings, train_command
from silentgrad.lab.store.files import RecordError, write_json_atomically, write_rows_atomically
from silentgrad.lab.store.folders import REMEDIES
from silentgrad.lab.store.records import Baseline, Run, RunPictures, Summary, read_summary, record_of, write_record
from silentgrad.lab.tables import Column, Content, Interval, Spread, Table, WithError
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig
from workers import WHOLE

CONFIG = {"data": "digits", "latent_dim": 8, "note": "<script>alert('no')</script> & more", "optimizer": {"lr": 1e-3}}
SUMMARY = WHOLE | {"figure": 2.3456, "metrics": {"mse": 0.0211}, "limit": 2.21, "epochs": 30}
WITHOUT_LATENTS = {"figure": 3.5, "model": "every pixel an independent Gaussian"}
BASELINE = {"baseline": WITHOUT_LATENTS, "test_examples": 360}
LINEAR: dict[str, Any] = {"nonlinear": False, "estimator": "exact"}
PAGE_FILES = {"reconstructions.png", "samples.png", "curves.png", "report.html"}


def pictures() -> dict[str, Tensor]:
    digits = torch.tensor(load_digits().images[:50], dtype=torch.float32).unsqueeze(1) / 16
    blurred = torch.nn.functional.avg_pool2d(digits, 3, stride=1, padding=1)
    originals, means, samples = digits[:10].contiguous(), blurred[:10].contiguous(), blurred[10:].contiguous()
    return {"originals": originals, "means": means, "stds": 0.1 + (originals - means).abs(), "samples": samples}


def make_run(folder: Path, epochs: int = 30) -> Path:
    epoch = np.arange(epochs)
    bpd = 2.3 + 40 * np.exp(-epoch)
    metrics = {"epoch": epoch, "seconds": 2.5 * (epoch + 1), "valid_bpd": bpd, "valid_kld": 7.5}
    metrics |= {"valid_mse": 0.02 / (epoch + 1)}
    made_up(folder, CONFIG, metrics | {"weight": 1 / (epoch + 1), "lr_mean": math.nan}, SUMMARY)
    write_json_atomically(folder / "environment.json", {"torch": torch.__version__, "device": "cpu"})
    save_file(pictures(), folder / "pictures.safetensors")
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "digits-<b>seed")


WRONG = [
    ("figure", 10**400, "number 1000000000... is too large"),
    ("active", 10**400, "too large"),
    ("active", -1, "active is -1"),
    ("active", True, "active is True"),
    ("exactness", "somewhat", "exactness is 'somewhat'"),
    ("unit", 1, "unit is 1"),
    ("epochs", 1.5, "epochs is 1.5"),
    ("metrics", {"worst": "much"}, "metrics.worst is 'much'"),
    ("seconds", math.nan, "seconds is (nan|NaN)"),
    ("figure", math.inf, "figure is inf"),
    ("limit", math.inf, "limit is inf"),
    ("baseline", {"model": "every pixel an independent Gaussian"}, "it has no baseline.figure"),
]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        *[("summary.json", json.dumps(SUMMARY | {name: value}).encode(), told) for name, value, told in WRONG],
        ("summary.json", json.dumps({"figure": 2.0}).encode(), "it has no unit"),
        ("config.yaml", b"a: [1", "expected ',' or ']'"),
        ("config.yaml", b"", "expected named values, found NoneType"),
        ("config.yaml", b"a: \xff", "codec can't decode"),
        ("config.yaml", b"[" * 5000, "nested too deeply"),
        ("config.yaml", b"data: &x {name: digits, y: *x}", r"has an alias, \*x"),
        ("metrics.csv", b"", "names no column 'epoch'"),
        ("metrics.csv", b"epoch,valid_bpd\n0,2.0\n1\n", "line 3 has 1 cells, expected 2"),
        ("metrics.csv", b"epoch,valid_bpd\n0,two\n", "could not convert string to float: 'two'"),
        ("summary.json", b'{"bpd": 2.', "Expecting|delimiter"),
        ("summary.json", b"[1]", "expected named values, found list"),
        ("summary.json", b"[" * 100_000, "nested too deeply"),
        ("environment.json", b"{", "Expecting property name"),
        ("pictures.safetensors", b"\x08\x00", "header"),
        ("pictures.safetensors", save({"samples": torch.zeros(4, 8, 8)}), r"samples has shape \(4, 8, 8\)"),
        ("pictures.safetensors", save({"originals": torch.zeros(4, 1, 8, 8)}), "it has no means"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(run_folder: Path, name: str, content: bytes, reason: str) -> None:
    (run_folder / name).write_bytes(content)
    told = rf"(?s)cannot read .*{re.escape(name)}: .*({reason}).*; {REMEDIES[name]}"
    refused(RecordError, told, lambda: Run.read(run_folder))


@pytest.mark.parametrize("name", ["=HYPERLINK(0)", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "=1\r=1"])
def test_names_are_no_formulas_to_a_spreadsheet(name: str, tmp_path: Path) -> None:
    write_rows_atomically(tmp_path / "rows.csv", [{"column": name, name: -1.5}])
    table = tables.comma_separated(Table("t", [Column(name)], [[name], ["-1.5"]]))
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["column", f"'{name}"], [f"'{name}", "-1.5"]]
    assert list(csv.reader(table.splitlines(keepends=True))) == [[f"'{name}"], [f"'{name}"], ["-1.5"]]


def test_the_report_stands_on_its_own_shows_the_figures_and_escapes_what_it_read(run_folder: Path) -> None:
    before = {path.name for path in run_folder.iterdir()}
    page = write_report(run_folder)
    assert page == run_folder / "report.html"
    assert {path.name for path in run_folder.iterdir()} == before | PAGE_FILES
    text = page.read_text()
    sources = re.findall(r"""(?:src|href)=["']?([^"'>]*)""", text)
    assert len(sources) == len(re.findall(r'alt="[^"]{20,}"', text)) == 3
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|url\(|@import", text)
    told = ("2.346", "below 2.210 on this test (pPCA limit)", "0.02110", "7.500", "active latents", "1 min 15 s")
    units = ("bits per dimension", "nats per example", "summed over outputs, per example", "seconds: of training")
    older = "on 100 images; weights of epoch 20, the best in validation: 2.346 bits per dimension on the test images;"
    for expected in (*told, *units, older, "All 30 epochs", "&lt;script&gt;"):
        assert expected in text
    unknown = "without latents", "ignores its input", "silentgrad train"  # since the settings are no longer read
    for absent in ("<script", "<b>", "lr_mean", *unknown):  # the third is a column without a single value
        assert absent not in text


@pytest.mark.usefixtures("undrawn")
def test_a_run_under_way_of_few_epochs_or_without_pictures(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "short", epochs=1)).read_text()
    assert ("All 1 epochs" in page, page.count("<img")) == (False, 3)
    assert "No epoch has been recorded" in write_report(make_run(tmp_path / "new", epochs=0)).read_text()
    bare = make_run(tmp_path / "bare")
    for name in ("summary.json", "environment.json", "pictures.safetensors"):
        (bare / name).unlink()
    run = Run.read(bare)
    assert (run.summary, run.environment, run.pictures) == (None, {}, None)
    page = write_report(bare).read_text()
    assert ("has not finished" in page, page.count("<img")) == (True, 1)  # the curves
    assert not (bare / "samples.png").exists()


def test_each_image_pixel_is_a_whole_square_of_figure_pixels() -> None:
    images = pictures()
    figure = figures.reconstructions({"": RunPictures(**images)})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    factor, top, left = figures.TILE // 8, figures.MARGIN, round(figure.images[0].ox)
    drawn = torch.tensor(np.asarray(canvas.buffer_rgba()))[..., 0].float()
    first = drawn[top : top + figures.TILE, left : left + figures.TILE]
    expected = images["originals"][0, 0].repeat_interleave(factor, 0).repeat_interleave(factor, 1) * 255
    assert (first - expected).abs().max() <= 1


@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (13, 3, 300, 200), (1, 1, 4, 4)])
def test_samples_of_any_size_make_a_figure_of_sensible_size(shape: tuple[int, ...]) -> None:
    width, height = figures.samples(torch.rand(shape)).get_size_inches() * DPI
    assert max(width, height) <= 13 * (figures.TILE + figures.GAP)


def test_early_epochs_do_not_squash_the_end_and_cells_without_numbers_are_left_out(run_folder: Path) -> None:
    bpd = run_curves(Run.read(run_folder).metrics, BITS_PER_DIMENSION, limit=2.21).axes[0]
    low, high = bpd.get_ylim()
    assert low < 2.21 < 2.35 < high < 5
    metrics = {"epoch": [0.0, 1.0, 2.0, 3.0], "valid_bpd": [3.0, None, math.nan, 2.0]}
    (line,) = run_curves(metrics, BITS_PER_DIMENSION).axes[0].get_lines()
    assert list(line.get_xdata()) == [0.0, 3.0]


def test_a_browser_shows_the_page_whole(run_folder: Path, look: browser.Look) -> None:
    seen = look(write_report(run_folder))
    assert (seen.problems, seen.images) == ([], 3)


WIDE = "pixels wide in a window of 390"
SEEN_WRONG = {
    "<script>undefined_name + 1</script>": "undefined_name is not defined",
    "<script>console.error('no luck')</script>": "no luck",
    "<script>Promise.reject(new Error('too late'))</script>": "too late",
    '<img src="data:image/png;base64,AAAA" alt="a broken one">': "broken image: a broken one",
    '<details><div style="width: 700px">wide</div></details>': WIDE,
}


def test_the_browser_finds_what_is_wrong(tmp_path: Path, look: browser.Look) -> None:
    table = Table("too many columns", [Column("x" * 10)] * 30, [["y" * 10] * 30])
    seen = look(Page("wrong", [*map(Markup, SEEN_WRONG), table]).write(tmp_path / "wrong.html"))
    problems = "\n".join(seen.problems)
    at_desk = seen.width == browser.DESK
    assert {problem for problem in SEEN_WRONG.values() if problem not in problems} == ({WIDE} if at_desk else set())
    assert ("clipped table: too many columns" in problems) == at_desk


def test_everything_a_page_is_given_is_escaped() -> None:
    evil = "<b>&\"'"
    table = Table(evil, [Column(evil, unit=evil)], [[evil]], notes=[evil])
    blocks = [evil, Tiles([Tile(evil, evil, evil)]), Picture(Figure(), evil), table, CommandLine(f"{evil} --{evil}")]
    blocks += [Details(evil, [Listing({"key": evil})])]
    page = Page(evil, blocks, [Section(evil, blocks)]).html()
    assert "<b>" not in page
    assert not re.search(r"\"'[^\n]*&lt;b&gt;&amp;\"", page)  # an attribute that was left early
    once = ["title", "h1", "h2"]
    assert [len(re.findall(f"<{tag}[^>]*>&lt;b&gt;&amp;", page)) for tag in once] == [1, 1, 1]
    for tag in ("p", "dt", "dd", "small", "figcaption", "th", "td", "summary", "span", 'pre class="command"'):
        assert len(re.findall(f"<{tag}[^>]*>(--)?&lt;b&gt;&amp;", page)) >= 2, tag
    assert page.count('alt="&lt;b&gt;&amp;&#34;&#39;"') == page.count('aria-label="&lt;b&gt;&amp;&#34;&#39;"') == 2
    assert "key: &lt;b&gt;&amp;" in page


EVERY_CELL: list[list[Content]] = [
    ["a|b_<i>\n", 2.0, Spread(1.25, 0.5, 3), WithError(0.5, 0.0996), Interval(-0.1712, 0.05)],
    ["", None, Spread(2.5, None, 1), 0.25, Interval(0.02, None)],
]
HEADS = [Column("a & b"), Column("x", 1, "nats"), Column("y", 2), Column("z"), Column("change", 3, judges=True)]
EVERY = Table("every", HEADS, EVERY_CELL, best=[0], notes=["So it is."])


def test_one_table_in_every_medium(capsys: pytest.CaptureFixture[str]) -> None:
    figures = ["2.0", "1.25 ± 0.50", "0.50 ± 0.10", "-0.171 [-0.221, -0.121]"]
    plain = ["", "2.50", "0.2500", "+0.020"]
    assert tables.markdown(EVERY).splitlines() == [
        "| a &amp; b | x | y | z | change |",
        "|---|---:|---:|---:|---:|",
        rf"| a\|b_&lt;i&gt; | {' | '.join(figures)} |",
        f"|  | {' | '.join(plain)} |",
        "",
        "x: nats. So it is.",
    ]
    written = tables.latex(EVERY)
    for line in (r"\begin{tabular}{lrrrr}", r"a \& b & x & y & z & change \\", rf" & {' & '.join(plain)} \\"):
        assert line in written.splitlines()
    assert r"a|b\_<i>" in written
    assert list(csv.reader(io.StringIO(tables.comma_separated(EVERY), newline=""))) == [
        ["a & b", "x", "y mean", "y std", "y seeds", "z value", "z error", "change mean", "change margin"],
        ["a|b_<i>\n", "2.0", "1.25", "0.5", "3", "0.5", "0.0996", "-0.1712", "0.05"],
        ["", "", "2.5", "", "1", "0.25", "", "0.02", ""],
    ]
    console.print(tables.terminal(EVERY))
    said = capsys.readouterr().out
    assert all(text in said for text in ("every", *figures, *plain))
    page = Page("", [EVERY]).html()
    assert '<th scope="col" class="text">a &amp; b</th><th scope="col">x' in page  # numbers are set right, text left
    assert '<tr class="marked"><td class="text">a|b' in page
    assert '<tr><td class="text"></td><td></td><td>2.50</td>' in page
    assert EVERY.only(lambda column, _: not column.judges).heads == ["a & b", "x", "y", "z"]
    assert [place for place, numeric in enumerate(EVERY.numeric) if numeric] == [1, 2, 3, 4]


def test_a_terminal_shows_every_letter_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """In a narrow one cells take several lines, numbers stay on one, and heads of numbers are no wider than these."""
    cells = ["runs/" + "x" * 60, "[red]y[/red]", 2.0, 1234.5]
    table = Table("", [Column("run"), Column("what"), Column("test of BPD"), Column("seconds")], [cells])
    Console(width=60).print(tables.terminal(table))
    said = capsys.readouterr().out
    found = said.count("x"), "[red]y[/red]" in said, "1234" in said, "test of BPD" in said
    assert found == (60, True, True, False)


@pytest.mark.parametrize("weighed", [True, False])
def test_the_weight_is_drawn_where_two_decoders_share_the_loss(weighed: bool, run_folder: Path) -> None:
    metrics = Run.read(run_folder).metrics
    figure = run_curves(metrics if weighed else metrics | {"weight": []}, BITS_PER_DIMENSION)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["validation", "tractable decoder's weight (right)"][: 1 + weighed]
    assert len(figure.axes) == 4 + weighed


@pytest.mark.parametrize("name", ["images.npy", "table.csv"])
def test_training_hands_over_the_run_that_its_folder_tells(name: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, (40, 16), dtype=np.uint8)
    if name == "images.npy":
        np.save(tmp_path / name, numbers.reshape(-1, 4, 4))
    else:
        np.savetxt(tmp_path / name, numbers, delimiter=",", header=",".join("abcdefghijklmnop"), comments="")
    handed: list[Run] = []
    data = DataConfig(name=str(tmp_path / name), batch_size=16)
    options = {"train": TWICE, "finished": handed.append}
    first, again = (train(tmp_path / "run", data, resume=resume, **options) for resume in (False, True))
    (run,), read = handed, Run.read(tmp_path / "run")  # not when it was finished before
    assert first == again == read.summary
    for part in ("folder", "config", "metrics", "summary", "environment", "factors"):
        assert getattr(run, part) == getattr(read, part), part
    assert (run.pictures is None, run.factors is None) == (name == "table.csv", name != "table.csv")
    if run.pictures is not None:
        torch.testing.assert_close(vars(run.pictures), vars(read.pictures), rtol=0, atol=0)


@pytest.mark.parametrize("more", [{}, {"limit": 2.25, "closed_form": "exact", "metrics": {"worst": 0.5}}, BASELINE])
def test_a_summary_is_written_as_it_was_read(more: dict[str, Any], tmp_path: Path) -> None:
    sampled = {"sampled": 2.25, "sampled_error": 0.01}
    content = WHOLE | {"exactness": "lower bound", "baselines": {"histogram": 2.4}} | sampled | more
    write_json_atomically(tmp_path / "summary.json", content)
    summary = read_summary(tmp_path / "summary.json")
    assert (summary.unit.metric, summary.figure, summary.limit) == ("bpd", 2.5, more.get("limit"))
    assert summary.baseline == (Baseline(3.5, "every pixel an independent Gaussian") if "baseline" in more else None)
    write_record(tmp_path / "again.json", summary)
    assert json.loads((tmp_path / "again.json").read_text()) == content


def told_by_train(samples: int = 1, **changes: Any) -> str:
    return "   ".join(_figures(record_of(Summary, WHOLE | changes), samples))


def test_train_says_what_its_figure_is_and_nothing_twice() -> None:
    guided = told_by_train(exactness="sampled", closed_form="exact")
    assert "active latents 6   sampled   trained with a closed form, exact   75 s" in guided
    assert "active latents 6   exact   75 s" in told_by_train(closed_form="exact")
    bound = told_by_train(exactness="lower bound", closed_form="lower bound", sampled=2.4, sampled_error=0.0123)
    assert "(sampled ELBO 2.4000, gap 0.100 ± 0.012)   MSE 0.020" in bound
    assert bound.count("lower bound") == 1
    weighted = told_by_train(50, exactness="sampled", sampled=2.75)
    assert "(importance-weighted bound, 50 samples, sampled ELBO 2.7500, gain 0.2500)" in weighted
    cells = told_by_train(unit="NLL nats per entry", figure=1.25)
    assert ("squared error 0.020" in cells, "MSE" in cells) == (True, False)


GUIDED = SUMMARY | {"exactness": "sampled", "closed_form": "exact"}
BOUND = {"exactness": "lower bound", "closed_form": "lower bound", "sampled": 2.3123, "sampled_error": 0.0012}
PAGE_SAYS: list[tuple[dict[str, Any], list[str]]] = [
    (
        SUMMARY | BOUND,
        ["by the sampled ELBO", "2.312", "gap of the bound 0.0333 ± 0.0012", "(?s)^(?!.*>lower bound<.*>lower bound<)"],
    ),
    (GUIDED, [r"(?s)ELBO\b.{0,60}>sampled<", "(?s)closed form in training.{0,60}>exact<"]),
    (GUIDED | {"sampled": 2.5}, ["gain of the importance-weighted bound 0.1544", "(?s)^(?!.*gap of)"]),
]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("summary", "patterns"), PAGE_SAYS)
def test_a_page_tells_what_its_figure_is_once(summary: dict[str, Any], patterns: list[str], run_folder: Path) -> None:
    """A bound, a guide's closed form beside a figure by samples, and an importance-weighted bound."""
    write_json_atomically(run_folder / "summary.json", summary)
    page = write_report(run_folder).read_text()
    for pattern in patterns:
        assert re.search(pattern, page), pattern


def opened(folder: Path, **changes: Any) -> str:
    """Return the first paragraph of a run's page, its summary and settings changed."""
    settings = Settings(DataConfig(), ModelConfig(latent_dim=16), TrainConfig(epochs=30))
    (folder / "config.yaml").write_text(resolve(settings._replace(**changes), ["gaussian"]).as_yaml())
    found = re.search(r"</h1><p>([^<]*)</p>", write_report(folder).read_text())
    assert found
    return found[1]


SAYS_WHICH_MODEL: list[tuple[dict[str, Any], str]] = [
    ({"latent": "bernoulli", "tractable": "none", "estimator": "rloo"}, "Bernoulli latents, a fully connected network"),
    (LINEAR, "a fully connected encoder and a linear decoder"),
    (LINEAR | {"tractable": "circuit"}, "encoder and a circuit of linear decoders"),
    ({"guide_estimator": "reparameterized", "network": "conv"}, "convolutional network and a guide by reparameterized"),
]


@pytest.mark.usefixtures("undrawn")
def test_the_page_begins_with_what_was_trained_and_whether_it_is_good_and_has_the_command(run_folder: Path) -> None:
    write_json_atomically(run_folder / "summary.json", SUMMARY | BASELINE | {"training_examples": 1078})
    assert opened(run_folder) == (
        "A VAE with 16 Gaussian latents, a fully connected network and a silent guide, trained for 30 epochs on digits "
        "(1,078 images); weights of epoch 20, the best in validation: 2.346 bits per dimension on 360 test images; "
        "lower is better. A model that ignores its input "
        "(every pixel an independent Gaussian, fitted to the same training data, no latent) has 3.500. "
        "No linear decoder of this variance can get below 2.210 on this test (pPCA limit)."
    )
    worse = SUMMARY | BASELINE | {"baseline": WITHOUT_LATENTS | {"figure": 2.0}}
    write_json_atomically(run_folder / "summary.json", worse)
    assert "has 2: this run is not better than that, so it failed." in opened(run_folder)
    for histogram, told in ((2.0, "has 2: 0.3456 better than this run."), (3.0, "has 3: this run is 0.6544 better.")):
        beaten = SUMMARY | BASELINE | {"baselines": {"gaussian": 3.5, "histogram": histogram}}
        write_json_atomically(run_folder / "summary.json", beaten)
        assert f"The best simple model without latents (histogram) {told}" in opened(run_folder)
    for options, model in SAYS_WHICH_MODEL:
        assert model in opened(run_folder, model=ModelConfig(**options))
    (found,) = re.findall(r'<pre class="command"[^>]*>(.*?)</pre>', (run_folder / "report.html").read_text())
    assert unescape(re.sub(r"<[^>]*>", "", found)) == train_command(read_settings(run_folder / "config.yaml"))


@pytest.mark.parametrize(
    "settings",
    [
        Settings(DataConfig(), ModelConfig(), TrainConfig()),
        Settings(
            DataConfig("it's a.csv", Path("/data here"), 8, label="--odd", covariates=["a b", "c,d"], missing=True),
            ModelConfig(latent="categorical", hidden=[8, 4], nonlinear=False, variance_start=1e-5, hard=True, cutoff=3),
            TrainConfig(epochs=7, lr=1e-5, keep=[1, 7], precision="64-true", decay="cosine", warmup=0.1),
        ),
        Settings(DataConfig("null"), ModelConfig(), TrainConfig()),
    ],
)
def test_settings_in_words_are_the_same(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text(settings.as_yaml())
    found = [read_settings(tmp_path / "config.yaml")]
    monkeypatch.setattr("silentgrad.lab.cli.training.train_and_report", lambda given, *_: found.append(given))
    program, *words = shlex.split(train_command(settings))
    main(words)
    assert (program, found) == ("silentgrad", [settings, settings])


def test_a_number_ends_where_its_error_does_and_an_interval_is_rounded_like_its_margin() -> None:
    rounded = {(0.5, 0.0996): "0.50 ± 0.10"}  # which makes the error longer by a digit
    rounded |= {(-2.0, 0.25): "-2.00 ± 0.25", (0.0, 0.0031): "0.0000 ± 0.0031", (1.5, math.nan): "1.500 ± nan"}
    rounded |= {(5.0, 0.0): "5 ± 0", (2.5e8, 1.25e7): "(2.50 ± 0.12)e+08"}
    assert {pair: with_error(*pair) for pair in rounded} == rounded
    assert with_interval(1234.5, 123.4) == "+1,234 [+1,111, +1,358]"
    assert with_interval(0.5, math.nan) == "+0.5000"
