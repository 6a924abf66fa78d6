"""The benchmark of estimators: runs of `silentgrad train`, and the command."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import distributions as td

from browser import Look
from refusals import refused
from runs import Cli, CutError, cut_at, rows
from silentgrad import RLOO
from silentgrad.estimators.integrand import Integrand
from silentgrad.lab.build import model_for, plan_for
from silentgrad.lab.cli.benchmark import run_benchmark
from silentgrad.lab.data import load
from silentgrad.lab.experiments.benchmark.comparison import benchmark_of
from silentgrad.lab.experiments.benchmark.gradients import measured, variances_at
from silentgrad.lab.experiments.benchmark.protocol import BenchmarkPlan, Setting, settings_of
from silentgrad.lab.experiments.experiment import FilledRow, RowOfRuns
from silentgrad.lab.experiments.ledger import row_of
from silentgrad.lab.experiments.runner import train_run
from silentgrad.lab.settings import EstimatorName
from silentgrad.lab.settings.documents import with_options
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.tables import Spread
from silentgrad.lab.training.loop import Loop

SETTINGS = settings_of(["mnist"], ["bernoulli", "gaussian"], ["linear", "nonlinear", "circuit"])
LINEAR = Setting("mnist", "gaussian", "linear")
PLAN = BenchmarkPlan("smoke", SETTINGS, None, Path("folder"), None, "cpu")
ON_CPU = {"scale": "smoke", "datasets": ["mnist"], "accelerator": "cpu"}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_models_that_differ_in_the_estimator_only_start_alike(setting: Setting) -> None:
    models = []
    for name in ("rloo", "relax", "nvil"):
        data, model, train = plan_for(PLAN.run(setting, name, seed=1).settings)
        torch.manual_seed(1)
        models.append(model_for(model, load(data.name, None, data.kind), train.epochs))
    first, *others = (model.state_dict() for model in models)
    assert all(torch.equal(weight, other[name]) for name, weight in first.items() for other in others)


@pytest.mark.parametrize("setting", SETTINGS[:4], ids=lambda setting: setting.name)
def test_models_start_at_the_moments_of_the_data(setting: Setting, tmp_path: Path) -> None:
    settings = PLAN.run(setting, "rloo", 0).settings
    train_run(settings, tmp_path / "run")
    weights = load_file(RunFolder(tmp_path / "run").kept(1))
    data = load("digits", None, settings.data.kind)
    x = torch.cat([data.as_seen(data.rows("train")) for _ in range(10)])
    decoder = {name.partition(".")[2]: weight for name, weight in weights.items() if not name.startswith("encoder")}
    torch.testing.assert_close(weights["encoder.body.mean"], x.mean(0), atol=0.08, rtol=0)  # both have noise
    mean, scale = decoder["center"].reshape(x.shape[1:]), decoder.get("log_scale")
    if scale is None:
        mean = torch.sigmoid(mean)
    else:  # which ten steps of 0.001 may have moved
        torch.testing.assert_close(scale.exp().reshape(x.shape[1:]), x.std(0), atol=0.01, rtol=0.05)
    torch.testing.assert_close(mean, x.mean(0), atol=0.08, rtol=0)


@pytest.mark.parametrize("estimator", ["relax", "reinforce", "double-cv"])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path, estimator: EstimatorName) -> None:
    settings = PLAN.run(SETTINGS[1], estimator, 0).settings
    train_run(settings, tmp_path / "whole")
    refused(CutError, "", lambda: train_run(settings, tmp_path / "cut", [cut_at(2)]))
    torch.manual_seed(5)  # what other work draws is no matter
    train_run(settings, tmp_path / "cut")
    whole, cut = (row_of("run", settings, tmp_path / name) for name in ("whole", "cut"))
    assert replace(cut, seconds=whole.seconds) == whole
    assert (whole.steps, len(whole.curve)) == (20, 2)
    assert whole.curve[-1] < whole.curve[0]
    weights = [RunFolder(tmp_path / name).weights.read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


def test_steps_are_those_of_adam_and_runs_differ_in_the_estimator_alone(tmp_path: Path) -> None:
    loops: list[Loop] = []
    settings = PLAN.run(LINEAR, "exact", 0).settings
    train_run(settings, tmp_path / "run", [loops.append])
    groups = loops[0].optimizer.param_groups
    assert type(loops[0].optimizer) is torch.optim.Adam
    assert {(group["lr"], group["weight_decay"], *group["betas"]) for group in groups} == {(1e-3, 0, 0.9, 0.999)}
    assert [len(rows) for _, rows in loops[0].batches] == 10 * [100]
    assert with_options(settings, {"model.estimator": "disarm"}) == PLAN.run(LINEAR, "disarm", 0).settings


class Mistaken(RLOO):
    """An estimator with a mistake that has nothing to do with what it is given."""

    def forward(self, q: td.Distribution, integrand: Integrand) -> torch.Tensor:
        raise ValueError("a stranger's mistake")


def test_a_mistake_is_no_divergence(tmp_path: Path) -> None:
    chosen = {**ON_CPU, "likelihoods": ["gaussian"], "networks": ["linear"]}
    refused(ValueError, "a stranger's mistake", lambda: run_benchmark([f"{__name__}:Mistaken"], tmp_path, **chosen))
    (finished,) = tmp_path.glob("*/summary.json")
    assert "-rloo-" in finished.parent.name


def test_an_expensive_estimator_is_made_where_it_is_asked_for() -> None:
    assert ["indecater" in PLAN._replace(scale=scale).names(LINEAR) for scale in ("cpu", "paper")] == [False, True]
    assert PLAN._replace(scale="cpu", estimators=["indecater", "rloo"]).names(LINEAR) == ["indecater", "rloo"]


def test_noise_is_measured_once_on_the_same_weights(tmp_path: Path) -> None:
    names = ["exact", "rloo", "nvil", "rebar", "reinmax"]
    plan = PLAN._replace(folder=tmp_path, settings=[LINEAR], estimators=names)
    reference = plan.reference(LINEAR)
    train_run(reference.settings, tmp_path / reference.name)
    found = variances_at(plan, LINEAR, 2)
    assert found == variances_at(plan, LINEAR, 2) == measured(plan, LINEAR, 2, plan.names(LINEAR))
    assert sorted(found) == sorted(names)
    assert (found["exact"].est, found["exact"].cosine) == (0, pytest.approx(1))
    assert all(noise.est > 0 for name, noise in found.items() if name != "exact")
    assert [found[name].evaluations for name in names] == [0, 2, 1, 3, 1]
    more = plan._replace(estimators=[*names, "disarm"])
    added = variances_at(more, LINEAR, 2)
    assert added.pop("disarm").est > 0
    assert added == found


def test_the_best_row_is_named_in_each_setting() -> None:
    plan = PLAN._replace(settings=[LINEAR])
    filled = []
    for name, figure in (("exact", 2.0), ("rloo", Spread(1.5, 0.1, 3)), ("relax", "diverged (1 of 3)"), ("nvil", None)):
        filled.append(FilledRow(RowOfRuns([plan.title(LINEAR), name, ""], {}), {"test bound": figure}))
    filled.append(FilledRow(RowOfRuns([plan.title(LINEAR), "no latents", ""], {}, "histogram"), {"test bound": 1.0}))
    assert benchmark_of(plan).judge(filled) == ["digits, Gaussian, linear: the best test bound has rloo."]


FEW = ["--estimators", "[exact,rloo,reinmax]", "--datasets", "[mnist]", "--accelerator", "cpu", "--jobs", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    run_benchmark(["rloo", "reinmax", "exact"], folder, **ON_CPU)
    return folder


def test_a_benchmark_has_a_table_for_each_setting(finished: Path) -> None:
    record = json.loads((finished / "benchmark.json").read_text())
    tables, curves = record["parts"][0:-1:2], record["parts"][1:-1:2]
    assert [table["name"] for table in tables] == [setting.name for setting in SETTINGS]
    for table, lines in zip(tables, curves, strict=True):
        heads = [column["name"] for column in table["columns"]]
        assert heads == ["method", "test bound", "training ELBO", "steps to the level", "CPU seconds"]
        runs = [row for row in table["rows"] if not row[0].startswith("no latents")]
        names = [row[0] for row in runs]
        assert sorted(names) == sorted(lines["runs"])
        exact = table["name"].endswith(("gaussian-linear", "gaussian-circuit"))
        assert (names[0] == "exact") == ("exact" in names) == exact
        bounds = [row[1]["mean"] for row in runs[exact:]]
        assert bounds == sorted(bounds)
        assert len(runs) < len(table["rows"])  # there is a model without latents to beat
        assert table["best"] == []
        assert all((finished / run / "metrics.csv").exists() for run in lines["runs"].values())
    assert record["verdicts"] == []
    assert any("mean nothing" in note for note in record["notes"])
    text = (finished / "benchmark.md").read_text()
    told = "silentgrad benchmark --scale smoke", "digits, Gaussian, linear", "MNIST"
    assert [words in text for words in told] == [True, True, False]
    gradients = rows(finished / "gradients.csv")
    assert len(gradients) == sum(len(lines["runs"]) for lines in curves)
    assert "squared error of 10 draws, step 20" in gradients[0]


def test_a_browser_shows_the_page(finished: Path, look: Look) -> None:
    assert look(finished / "benchmark.html").problems == []


def test_a_script_tunes_a_strangers_class_of_categories_without_a_guard(tmp_path: Path) -> None:
    """In one process; validation decides between runs of seed 0."""
    chosen = {**ON_CPU, "likelihoods": ["gaussian"], "networks": ["linear"], "latents": ["8x4"]}
    found = run_benchmark(["rloo", "reinmax"], str(tmp_path / "here"), tune=True, **chosen)
    told = {row[0]: row[1] for row in found.tables[0].rows}
    for name, count in (("rloo", 3), ("reinmax", 6)):
        trials = list((tmp_path / "here").glob(f"*-{name}-lr*-seed0/metrics.csv"))
        assert len(trials) == count - (name == "rloo")  # of which one is the run whose weights are measured on
        valid = {path.parent.name: min(float(row["valid_bpd"]) for row in rows(path)) for path in trials}
        if name == "reinmax":
            lr, temperature = min(valid, key=valid.__getitem__).split("-lr")[1].split("-seed")[0].split("-temperature")
            assert told[name] == f"lr {lr}, temperature {temperature}"
    assert found.tables[0].title == "digits, Gaussian, linear, 8 x 4 categories"
    assert "--latents 8x4" in found.command


def test_what_is_finished_is_kept_and_other_settings_are_refused(finished: Path, cli: Cli) -> None:
    config, *others = sorted(finished.glob("*/config.yaml"))
    line = ["benchmark", "--scale", "smoke", "--folder", finished, *FEW]
    assert f"{1 + len(others)} of them finished before" in cli(*line)
    kept = config.read_text()
    config.write_text(kept.replace("batch_size: 100", "batch_size: 50"))
    assert "was made with other settings" in cli.fails(*line)
    config.write_text(kept)


def test_workers_train_a_class_of_the_current_folder(here: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """Nothing but the current folder tells where the module is, neither here nor in the workers."""
    shutil.copy(Path(__file__).parents[1] / "examples" / "my_estimator.py", here / "stranger.py")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    words = ["--estimators", "rloo,stranger:MyEstimator", "--likelihoods", "bernoulli", "--networks", "linear"]
    cli("benchmark", "--scale", "smoke", *FEW[2:], *words)
    assert "stranger:MyEstimator" in (here / "benchmark" / "smoke" / "mnist-bernoulli-linear.csv").read_text()
    assert "" in sys.path
