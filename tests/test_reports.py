"""Records are read back whole or refused by name; a report is one page that stands on its own."""

import csv
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
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor

from browser import DESK, TELEPHONE, WIDTHS, look, needs_browser
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.main import main
from silentgrad.lab.reports import figures, html, write_report
from silentgrad.lab.reports.rounding import with_error
from silentgrad.lab.runs.pictures import RunPictures
from silentgrad.lab.runs.records import RecordError, Run, read_summary, write_json_atomically, write_summary
from silentgrad.lab.runs.summary import Baseline, Summary
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, train_model
from silentgrad.lab.training.commands import train_command
from silentgrad.lab.training.documents import read_settings
from summaries import WHOLE

CONFIG = {"data": "digits", "latent_dim": 8, "note": "<script>alert('no')</script> & more", "optimizer": {"lr": 1e-3}}
SUMMARY = WHOLE | {"bpd": 2.3456, "mse": 0.0211, "limit_bpd": 2.21, "epochs": 30}
BASELINE = {"baseline_bpd": 3.5, "baseline": "every pixel an independent Gaussian", "test_images": 360}
PAGE_FILES = {"reconstructions.png", "samples.png", "curves.png", "report.html"}


def pictures() -> dict[str, Tensor]:
    digits = torch.tensor(load_digits().images[:50], dtype=torch.float32).unsqueeze(1) / 16
    blurred = torch.nn.functional.avg_pool2d(digits, 3, stride=1, padding=1)
    originals, means = digits[:10].contiguous(), blurred[:10].contiguous()
    return {
        "originals": originals,
        "means": means,
        "stds": 0.1 + (originals - means).abs(),
        "samples": blurred[10:].contiguous(),
    }


def write_metrics(folder: Path, epochs: int) -> None:
    with (folder / "metrics.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["epoch", "seconds", "valid_bpd", "valid_kld", "valid_mse", "test_bpd", "weight", "lr_mean"])
        for epoch in range(epochs):
            bpd = 2.3 + 40 * math.exp(-epoch)
            test_bpd = bpd + 0.05 if epoch == epochs - 1 else ""
            rows.writerow([epoch, 2.5 * (epoch + 1), bpd, 7.5, 0.02 / (epoch + 1), test_bpd, 1 / (epoch + 1), ""])


def make_run(folder: Path, epochs: int = 30) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    write_metrics(folder, epochs)
    write_json_atomically(folder / "summary.json", SUMMARY)
    write_json_atomically(folder / "environment.json", {"torch": torch.__version__, "device": "cpu"})
    save_file(pictures(), folder / "pictures.safetensors")
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "digits-<b>seed")


def test_read_gives_back_what_was_written(run_folder: Path) -> None:
    run = Run.read(run_folder)
    assert (run.folder, run.config, run.summary) == (run_folder, CONFIG, Summary.from_json(SUMMARY))
    assert run.environment["device"] == "cpu"
    assert run.metrics["epoch"] == [float(epoch) for epoch in range(30)]
    assert run.metrics["test_bpd"][:-1] == [None] * 29
    assert run.metrics["test_bpd"][-1] == pytest.approx(2.35)
    for name, images in pictures().items():
        torch.testing.assert_close(getattr(run.pictures, name), images, rtol=0, atol=0)


def test_a_run_under_way_has_no_final_records_yet(run_folder: Path) -> None:
    for name in ("summary.json", "environment.json", "pictures.safetensors"):
        (run_folder / name).unlink()
    run = Run.read(run_folder)
    assert (run.summary, run.environment, run.pictures) == (None, {}, None)
    assert "has not finished" in write_report(run_folder).read_text()


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nowhere is no folder"):
        Run.read(tmp_path / "nowhere")
    assert issubclass(RecordError, SilentgradError)


def test_a_section_of_your_own_is_a_function_of_the_run(run_folder: Path) -> None:
    def slowest(run: Run) -> str:
        """The epoch that took longest."""
        seconds = [second or 0 for second in run.metrics["seconds"]]
        lengths = [after - before for before, after in zip([0, *seconds], seconds, strict=False)]
        return html.section("Slowest", html.paragraph(f"Epoch {lengths.index(max(lengths))} <took> longest."))

    page = write_report(run_folder, [slowest]).read_text()
    assert re.search(r"Slowest</h2>\s*<p>Epoch \d+ &lt;took&gt; longest", page)
    assert "Slowest" not in write_report(run_folder).read_text()


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv"])
def test_a_folder_that_is_no_run_is_refused(run_folder: Path, name: str) -> None:
    (run_folder / name).unlink()
    with pytest.raises(RecordError, match=f"is no run: it has no {name}"):
        Run.read(run_folder)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.yaml", b"a: [1", "expected ',' or ']'"),
        ("config.yaml", b"", "expected named values, found NoneType"),
        ("config.yaml", b"a: \xff", "codec can't decode"),
        ("metrics.csv", b"", "names no column 'epoch'"),
        ("metrics.csv", b"epoch,valid_bpd\n0,2.0\n1\n", "line 3 has 1 cells, expected 2"),
        ("metrics.csv", b"epoch,valid_bpd\n0,two\n", "could not convert string to float: 'two'"),
        ("summary.json", b'{"bpd": 2.', "Expecting|delimiter"),
        ("summary.json", b"[1]", "expected named values, found list"),
        ("environment.json", b"{", "Expecting property name"),
        ("pictures.safetensors", b"\x08\x00", "header"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(run_folder: Path, name: str, content: bytes, reason: str) -> None:
    (run_folder / name).write_bytes(content)
    with pytest.raises(RecordError, match=rf"(?s)cannot read .*{re.escape(name)}: .*({reason})"):
        Run.read(run_folder)


def test_pictures_of_another_shape_are_refused(run_folder: Path) -> None:
    save_file({"samples": torch.zeros(4, 8, 8)}, run_folder / "pictures.safetensors")
    with pytest.raises(RecordError, match=r"samples has shape \(4, 8, 8\)"):
        Run.read(run_folder)


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json_atomically(path, {"bpd": 1.0})
    with pytest.raises(TypeError):
        write_json_atomically(path, {"bpd": object()})
    assert json.loads(path.read_text()) == {"bpd": 1.0}
    assert list(tmp_path.iterdir()) == [path]


def test_the_report_stands_on_its_own(run_folder: Path) -> None:
    before = {path.name for path in run_folder.iterdir()}
    page = write_report(run_folder)
    assert page == run_folder / "report.html"
    assert {path.name for path in run_folder.iterdir()} == before | PAGE_FILES
    text = page.read_text()
    sources = re.findall(r"""(?:src|href)=["']?([^"'>]*)""", text)
    assert len(sources) == 3
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|url\(|@import", text)
    assert len(re.findall(r'alt="[^"]{20,}"', text)) == 3


def test_the_report_shows_the_figures_and_escapes_what_it_read(run_folder: Path) -> None:
    page = write_report(run_folder).read_text()
    for text in (
        "2.346",
        "below 2.210 (pPCA limit)",
        "0.02110",
        "7.500",
        "active latents",
        "1 min 15 s",
        "All 30 epochs",
    ):
        assert text in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<b>" not in page
    assert "lr_mean" not in page  # a column without a single value


def test_a_run_of_one_epoch(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "short", epochs=1)).read_text()
    assert "All 1 epochs" not in page
    assert page.count("<img") == 3


def test_a_run_before_its_first_epoch(tmp_path: Path) -> None:
    assert "No epoch has been recorded" in write_report(make_run(tmp_path / "new", epochs=0)).read_text()


def test_a_run_without_pictures_shows_its_curves(run_folder: Path) -> None:
    (run_folder / "pictures.safetensors").unlink()
    assert write_report(run_folder).read_text().count("<img") == 1
    assert not (run_folder / "samples.png").exists()


def test_each_image_pixel_is_a_whole_square_of_figure_pixels() -> None:
    images = pictures()
    figure = figures.reconstructions(RunPictures.from_tensors(images))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    factor, top, left = figures.TILE // 8, figures.MARGIN, round(figure.axes[0].get_window_extent().x0)
    drawn = torch.tensor(np.asarray(canvas.buffer_rgba()))[..., 0].float()
    first = drawn[top : top + figures.TILE, left : left + figures.TILE]
    expected = images["originals"][0, 0].repeat_interleave(factor, 0).repeat_interleave(factor, 1) * 255
    assert (first - expected).abs().max() <= 1


@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (13, 3, 300, 200), (1, 1, 4, 4)])
def test_samples_of_any_size_make_a_figure_of_sensible_size(shape: tuple[int, ...]) -> None:
    width, height = figures.samples(torch.rand(shape)).get_size_inches() * figures.DPI
    assert max(width, height) <= 13 * (figures.TILE + figures.GAP)


def test_early_epochs_do_not_squash_the_end_of_training(run_folder: Path) -> None:
    metrics = Run.read(run_folder).metrics
    bpd = figures.curves(metrics, limit=2.21).axes[0]
    low, high = bpd.get_ylim()
    assert low < 2.21 < 2.35 < high < 5


def test_cells_that_are_no_numbers_are_left_out() -> None:
    metrics = {"epoch": [0.0, 1.0, 2.0, 3.0], "valid_bpd": [3.0, None, math.nan, 2.0], "test_bpd": [math.inf] * 4}
    (line,) = figures.curves(metrics).axes[0].get_lines()
    assert list(line.get_xdata()) == [0.0, 3.0]


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_the_page_whole(run_folder: Path, tmp_path: Path, width: int) -> None:
    seen = look(write_report(run_folder), width, tmp_path)
    assert seen.problems == []
    assert seen.images == 3


@needs_browser
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("<script>undefined_name + 1</script>", "undefined_name is not defined"),
        ("<script>console.error('no luck')</script>", "no luck"),
        ("<script>Promise.reject(new Error('too late'))</script>", "too late"),
        ('<img src="data:image/png;base64,AAAA" alt="a broken one">', "broken image: a broken one"),
        ('<details><div style="width: 700px">wide</div></details>', "pixels wide in a window of 390"),
        (html.table(["x" * 10] * 30, [["y" * 10] * 30], "too many columns"), "clipped table: too many columns"),
    ],
)
def test_the_browser_finds_what_is_wrong(content: str, problem: str, tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text(html.document("wrong", content))
    width = DESK if problem.startswith("clipped") else TELEPHONE
    assert any(problem in line for line in look(page, width, tmp_path).problems)


def test_everything_a_page_is_given_is_escaped() -> None:
    evil = "<b>&\"'"
    parts = [
        html.document(evil, ""),
        html.header(evil, ""),
        html.section(evil, ""),
        html.paragraph(evil),
        html.tiles([html.Tile(evil, evil, evil)]),
        html.picture(b"", evil, evil),
        html.table([evil], [[evil]], evil),
        html.details(evil, ""),
        html.command(evil),
        html.listing({"key": evil}),
    ]
    for part in parts:
        assert "<b>" not in part
        assert "&lt;b&gt;&amp;" in part


def test_a_table_sets_numbers_right_text_left_and_marks_a_row() -> None:
    page = html.table(["run", "bpd"], [["a", 2.5], [None, None]], "runs", marked=[1])
    assert '<th scope="col" class="text">run</th><th scope="col">bpd</th>' in page
    assert '<tr><td class="text">a</td><td>2.500</td></tr>' in page
    assert '<tr class="marked"><td class="text"></td><td></td></tr>' in page


@pytest.mark.parametrize(
    ("options", "weighed"),
    [
        ({"tractable": "mixture"}, True),
        ({"tractable": "mixture", "nonlinear": False, "estimator": "exact"}, False),
        ({"tractable": "none"}, False),
    ],
)
def test_the_weight_is_drawn_where_two_decoders_share_the_loss(
    options: dict[str, Any], weighed: bool, tmp_path: Path
) -> None:
    model, train = ModelConfig(latent_dim=2, hidden=[4], **options), TrainConfig(epochs=1, accelerator="cpu")
    train_model(DataConfig(batch_size=512), model, train, tmp_path / "run", quiet=True)
    figure = figures.curves(Run.read(tmp_path / "run").metrics)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["validation", "tractable decoder's weight (right)"][: 1 + weighed]
    assert len(figure.axes) == 4 + weighed


@pytest.mark.parametrize("more", [{}, {"limit_bpd": 2.25, "closed_form": "exact", "worst": 0.5}, BASELINE])
def test_a_summary_is_written_as_it_was_read(more: dict[str, Any], tmp_path: Path) -> None:
    content = WHOLE | {"sampled": 2.25, "gap": 0.25} | more
    baseline = None
    if "baseline" in more:
        baseline = Baseline(3.5, "every pixel an independent Gaussian")
    write_json_atomically(tmp_path / "summary.json", content)
    summary = read_summary(tmp_path / "summary.json")
    assert (summary.unit.metric, summary.figure, summary.sampled) == ("bpd", 2.5, 2.25)
    assert (summary.baseline, summary.test_examples) == (baseline, more.get("test_images"))
    assert (summary.limit, summary.closed_form) == (more.get("limit_bpd"), more.get("closed_form"))
    assert summary.metrics == {name: value for name, value in content.items() if name in ("mse", "worst")}
    write_summary(tmp_path / "again.json", summary)
    assert json.loads((tmp_path / "again.json").read_text()) == content


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("kld", None, "it has no kld"),
        ("bpd", None, "it has no bpd"),
        ("unit", "NLL nats per entry", "it has no nll"),
        ("epochs", 1.5, "epochs is 1.5"),
        ("active", True, "active is True"),
        ("worst", "much", "worst is 'much'"),
        ("baseline", "every pixel an independent Gaussian", "it has no baseline_bpd"),
    ],
)
def test_a_summary_that_lacks_something_is_refused(name: str, value: object, reason: str, tmp_path: Path) -> None:
    content = WHOLE | {name: value}
    if value is None:
        del content[name]
    write_json_atomically(tmp_path / "summary.json", content)
    with pytest.raises(RecordError, match=f"{reason}; remove it and go on with --resume true"):
        read_summary(tmp_path / "summary.json")


def test_pictures_that_lack_some_are_refused(run_folder: Path) -> None:
    some = pictures()
    del some["means"]
    save_file(some, run_folder / "pictures.safetensors")
    with pytest.raises(RecordError, match=r"pictures.safetensors: it has no means; remove it, or make it again"):
        Run.read(run_folder)


def test_a_bound_stands_beside_the_sampled_elbo(run_folder: Path) -> None:
    write_json_atomically(run_folder / "summary.json", SUMMARY | {"sampled": 2.3123, "gap": 0.0333})
    page = write_report(run_folder).read_text()
    assert "by the sampled ELBO" in page
    assert "2.312" in page
    assert "gap of the bound +0.0333" in page


def opened(folder: Path, **changes: Any) -> str:
    """The first paragraph of a run's page, its summary and settings changed."""
    settings = Settings(DataConfig(), ModelConfig(latent_dim=16), TrainConfig(epochs=30))
    (folder / "config.yaml").write_text(settings._replace(**changes).resolved(["gaussian"]).as_yaml())
    found = re.search(r"</h1><p>([^<]*)</p>", write_report(folder).read_text())
    assert found
    return found[1]


def test_the_page_begins_with_what_was_trained_and_whether_it_is_good(run_folder: Path) -> None:
    write_json_atomically(run_folder / "summary.json", SUMMARY | BASELINE | {"train_images": 1078})
    assert opened(run_folder) == (
        "A VAE with 16 Gaussian latents, a fully connected network and a silent guide, trained for 30 epochs on digits "
        "(1,078 images): 2.346 bits per dimension on 360 test images; lower is better. A model that ignores its input "
        "(every pixel an independent Gaussian, fitted to the same training data, no latent) has 3.500, so the latents "
        "gain 1.154. No linear decoder of this variance can get below 2.210 (pPCA limit)."
    )
    worse = SUMMARY | BASELINE | {"baseline_bpd": 2.0}
    write_json_atomically(run_folder / "summary.json", worse)
    assert "has 2, so" not in opened(run_folder)
    assert "has 2: this run is not better than that." in opened(run_folder)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (
            ModelConfig(latent="bernoulli", tractable="none", estimator="rloo"),
            "Bernoulli latents, a fully connected network and no guide",
        ),
        (ModelConfig(nonlinear=False, estimator="exact"), "a fully connected encoder and a linear decoder"),
        (
            ModelConfig(nonlinear=False, estimator="exact", tractable="circuit"),
            "encoder and a circuit of linear decoders",
        ),
        (
            ModelConfig(guide_estimator="reparameterized", network="conv"),
            "a convolutional network and a guide by reparameterized",
        ),
    ],
)
def test_the_page_says_which_model(run_folder: Path, model: ModelConfig, told: str) -> None:
    assert told in opened(run_folder, model=model)


def test_an_older_run_says_nothing_of_what_it_does_not_know(run_folder: Path) -> None:
    page = write_report(run_folder).read_text()  # its settings are not those of this version
    assert "A VAE, trained for 30 epochs on 100 images: 2.346 bits per dimension on the test images; lower" in page
    assert "without latents" not in page
    assert "ignores its input" not in page
    assert "silentgrad train" not in page


@pytest.mark.parametrize(
    "settings",
    [
        Settings(DataConfig(), ModelConfig(), TrainConfig()),
        Settings(
            DataConfig(
                "it's a table.csv", root=Path("/data here"), label="--odd", covariates=["a b", "c,d"], missing=True
            ),
            ModelConfig(latent="categorical", hidden=[8, 4], nonlinear=False, variance_start=1e-5, hard=True, cutoff=3),
            TrainConfig(epochs=7, lr=3e-4, keep=[1, 7], precision="64-true", decay="cosine", warmup=0.1),
        ),
        Settings(DataConfig("null"), ModelConfig(), TrainConfig()),
    ],
)
def test_the_command_in_the_report_gives_the_same_settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Settings] = []
    monkeypatch.setattr("silentgrad.lab.cli.training.train_and_report", lambda given, *_: found.append(given))
    program, *words = shlex.split(train_command(settings))
    main(words)
    assert (program, found) == ("silentgrad", [settings])


def test_the_command_can_be_copied_from_the_page(run_folder: Path) -> None:
    opened(run_folder)
    page = write_report(run_folder).read_text()
    found = re.search(r'<pre class="command"[^>]*>(.*?)</pre>', page)
    assert found
    text = unescape(re.sub(r"<[^>]*>", "", found[1]))
    assert text == train_command(read_settings(run_folder / "config.yaml"))
    assert "--model.latent_dim 16" in text
    assert "--train.epochs 30" in text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (139.4, 10.3, "139 ± 10"),
        (0.02143, 0.00332, "0.0214 ± 0.0033"),
        (0.5, 0.0996, "0.50 ± 0.10"),  # rounding makes the error longer by a digit
        (1234.5, 123.4, "1,230 ± 120"),
        (-2.0, 0.25, "-2.00 ± 0.25"),
        (0.0, 0.0031, "0.0000 ± 0.0031"),
        (5.0, 0.0, "5 ± 0"),
        (1.5, math.nan, "1.500 ± nan"),
        (2.5e8, 1.25e7, "(2.50 ± 0.12)e+08"),
    ],
)
def test_a_number_ends_where_its_error_does(value: float, error: float, text: str) -> None:
    assert with_error(value, error) == text


def test_every_number_of_a_page_has_its_unit(run_folder: Path) -> None:
    page = write_report(run_folder).read_text()
    for unit in ("bits per dimension", "nats per example", "squared error per example", "seconds: of training"):
        assert unit in page
