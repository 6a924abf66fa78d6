"""Training from the command line: what a run leaves, that it can be killed and resumed, and what it refuses."""

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import processes
from silentgrad.beside import Beside
from silentgrad.errors import SilentgradError
from silentgrad.guided import GuidedVAE, Losses
from silentgrad.lab.cli.main import main
from silentgrad.lab.data import Levels, load
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.training import (
    DataConfig,
    ModelConfig,
    TrainConfig,
    build_model,
    load_run,
    load_weights,
    read_config,
    train_model,
)
from silentgrad.lab.training.recipes import recipe_header as header
from silentgrad.lab.training.recipes import recipe_names as names
from silentgrad.lab.training.recipes import recipe_path

SMALL = ["--model.latent_dim", "4", "--model.hidden", "[16]", "--train.accelerator", "cpu", "--quiet", "true"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def test_a_run_leaves_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    main(["train", *SMALL, "--train.epochs", "2", "--model.guided", "2", "--folder", str(folder)])
    expected = {"config.yaml", "metrics.csv", "checkpoints", "model.safetensors", "report.html", "environment.json",
                "summary.json", "curves.png", "samples.png", "reconstructions.png"}  # fmt: skip
    assert expected <= {path.name for path in folder.iterdir()}
    assert {"best.ckpt", "last.ckpt"} == {path.name for path in (folder / "checkpoints").iterdir()}
    said = capsys.readouterr().out
    assert "test BPD" in said
    assert "report.html" in said
    assert "the guide's weight never reaches 0: 0.50 of it is left at the end" in said
    assert [row["epoch"] for row in rows(folder)] == ["1", "2"]
    assert [float(row["weight"]) for row in rows(folder)] == [0.75, 0.5]
    main(["evaluate", str(folder)])
    assert "test BPD" in capsys.readouterr().out
    before = (folder / "report.html").stat().st_mtime_ns
    main(["reconstruct", str(folder)])
    assert (folder / "report.html").stat().st_mtime_ns > before
    main(["sample", str(folder), "--count", "9", "--output", str(tmp_path / "drawn.png")])
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
    for path in (folder / "checkpoints").iterdir():
        torch.load(path, weights_only=True)


@pytest.mark.parametrize("latent", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("linear", ["none", "fixed", "linear", "exp"])
@pytest.mark.parametrize("nonlinear", [True, False])
def test_every_mode_trains(latent: str, linear: str, nonlinear: bool, tmp_path: Path) -> None:
    if linear == "none" and not nonlinear:
        return
    sampling = ["reparameterized"] if latent == "gaussian" else ["gumbel-softmax", "reinforce", "disarm"]
    alone = ["exact"] if not nonlinear else ["none"] if linear != "none" else []
    for estimator in sampling + alone:
        model = ModelConfig(
            latent=latent, latent_dim=4, hidden=[16], tractable=linear, nonlinear=nonlinear, estimator=estimator
        )
        model.cutoff = 2 if estimator == "none" else None
        train = TrainConfig(epochs=2, accelerator="cpu")
        summary = train_model(DataConfig(batch_size=256), model, train, tmp_path / estimator, quiet=True)
        assert 0 < summary.figure < 100


def test_killed_and_resumed_is_the_same_to_the_bit(tmp_path: Path) -> None:
    words = ["train", *SMALL, "--train.epochs", "12", "--model.estimator", "reparameterized", "--data.batch_size", "16"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    main([*words, "--folder", str(whole)])
    process = processes.start(processes.silentgrad, *words, "--folder", str(killed), output=tmp_path / "said.txt")
    while not ((killed / "metrics.csv").exists() and len(rows(killed)) >= 2):
        assert process.is_alive(), "finished before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.join()
    assert 2 <= len(rows(killed)) < 12
    main(["train", "--folder", str(killed), "--resume", "true", "--quiet", "true"])
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()
    assert rows(whole) == rows(killed)


def test_two_processes_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", *SMALL, "--train.epochs", "2", "--model.tractable", "exp", "--model.nonlinear", "false",
             "--model.estimator", "exact"]  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "runs" / "digits-001"  # the second is the folder that it finds for itself
    main([*words, "--folder", str(one)])
    monkeypatch.chdir(tmp_path)
    said = tmp_path / "said.txt"
    assert processes.run(processes.silentgrad, *words, "--train.devices", "2", output=said) == 0, said.read_text()
    weights = load_file(two / "model.safetensors")
    for name, value in load_file(one / "model.safetensors").items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    for a, b in zip(rows(one), rows(two), strict=True):
        assert float(a["valid_bpd"]) == pytest.approx(float(b["valid_bpd"]), rel=1e-5)
    assert [path.name for path in two.parent.iterdir()] == ["digits-001"]


def test_several_processes_go_on_when_the_guide_has_given_way(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said.txt"
    words = ["train", *SMALL, "--train.epochs", "2", "--model.guided", "0.5", "--train.devices", "2"]
    assert processes.run(processes.silentgrad, *words, "--folder", str(folder), output=said) == 0, said.read_text()
    assert [float(row["weight"]) for row in rows(folder)] == [0.0, 0.0]


def test_a_run_of_another_version_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("data: {}\nmodel: {annealing_rate: 0.1}\ntrain: {}\n")
    message = fails(capsys, "evaluate", str(folder))
    assert "there is no setting model.annealing_rate. The run was made by another version" in message
    assert message.count("config.yaml") == 1


@pytest.mark.parametrize("name", names())
def test_every_recipe_describes_a_model(name: str) -> None:
    assert {"what", "command", "expects", "time"} <= set(header(name))
    assert header(name)["command"] == f"silentgrad train --recipe {name}"
    content = yaml.safe_load(recipe_path(name).read_text())
    TrainConfig(**content["train"])
    shape = (1, 28, 28) if content["data"]["name"] == "mnist" else (3, 32, 32)
    assert build_model(ModelConfig(**content["model"]), torch.Size(shape), 256).decoder is not None


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*words])
    assert stop.value.code not in (0, None)
    return capsys.readouterr().err


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "precious").write_text("mine")
    assert "exists" in fails(capsys, "train", *SMALL, "--folder", str(folder))
    assert (folder / "precious").read_text() == "mine"
    assert "no run" in fails(capsys, "train", "--resume", "true", "--folder", str(tmp_path / "none"))
    assert "Did you mean" in fails(capsys, "train", "--recipe", "mnist-gaussian-reparametrized-cpu")
    assert "mnist" in fails(capsys, "train", *SMALL, "--data.name", "mnits", "--folder", str(tmp_path / "a"))
    assert "model.unknown" in fails(capsys, "train", "--model.unknown", "3")
    wrong = fails(capsys, "train", *SMALL, "--model.estimator", "exact", "--folder", str(tmp_path / "b"))
    assert "no closed form" in wrong
    assert not (tmp_path / "a").exists()  # a refused run leaves nothing behind
    assert not (tmp_path / "b").exists()
    assert "no run" in fails(capsys, "evaluate", str(tmp_path / "nothing"))


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The first checkpoint does not fit."""
    words = ["train", *SMALL, "--train.epochs", "2"]
    full, output = tmp_path / "full", tmp_path / "said.txt"
    assert processes.run(processes.silentgrad_on_a_full_disk, *words, "--folder", str(full), output=output) == 1
    said = output.read_text()
    assert "cannot write to" in said
    assert "--resume true" in said
    assert "Traceback" not in said
    main(["train", "--folder", str(full), "--resume", "true", "--quiet", "true"])
    main([*words, "--folder", str(tmp_path / "whole")])
    assert rows(full) == rows(tmp_path / "whole")


def test_tensorboard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", *SMALL, "--train.epochs", "1", "--train.tensorboard", "true", "--folder"]
    main([*words, str(tmp_path / "with")])
    assert list((tmp_path / "with" / "tensorboard").glob("events*"))
    monkeypatch.setattr("silentgrad.lab.training.run.TensorBoardLogger", _missing)
    with pytest.raises(SystemExit):
        main([*words, str(tmp_path / "without")])
    assert not (tmp_path / "without").exists()


def _missing(*_: object, **__: object) -> None:
    raise ModuleNotFoundError("tensorboard")


def test_figures_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    """The rate is so high that the last epoch is not the best one."""
    train = TrainConfig(epochs=4, lr=0.05, accelerator="cpu")
    model = ModelConfig(latent_dim=4, hidden=[16], tractable="none")
    summary = train_model(DataConfig(), model, train, tmp_path / "run", quiet=True)
    bpd = [float(row["valid_bpd"]) for row in rows(tmp_path / "run")]
    assert summary.best_epoch == 1 + bpd.index(min(bpd))
    best = torch.load(tmp_path / "run" / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    for name, value in load_file(tmp_path / "run" / "model.safetensors").items():
        assert torch.equal(best[f"model.{name}"], value)


@pytest.mark.parametrize(("log_term", "word"), [("taylor", "approximation"), ("auto", "exact")])
def test_a_run_tells_what_its_closed_form_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log_term: str, word: str
) -> None:
    folder = tmp_path / "run"
    options = "--model.tractable linear --model.nonlinear false --model.estimator exact --model.latent_dim 2"
    size = "--model.hidden [4] --data.batch_size 512 --train.epochs 1 --train.accelerator cpu --quiet true"
    main(["train", *options.split(), "--model.log_term", log_term, *size.split(), "--folder", str(folder)])
    assert f"closed form {word} " in capsys.readouterr().out
    assert json.loads((folder / "summary.json").read_text())["closed_form"] == word
    assert f"<dt>closed form</dt><dd>{word}</dd>" in (folder / "report.html").read_text()


def test_the_best_epoch_has_the_last_variance(tmp_path: Path) -> None:
    """With its first, large variance this model has a better BPD, but it is another model."""
    model = ModelConfig(latent_dim=2, hidden=[4], tractable="fixed", nonlinear=False, estimator="exact")
    model.variance_start, model.variance_factor, model.variance = 0.3, 0.01, 0.003
    train = TrainConfig(epochs=3, lr=1e-5, accelerator="cpu")
    summary = train_model(DataConfig(), model, train, tmp_path / "run", quiet=True)
    bpd = [float(row["valid_bpd"]) for row in rows(tmp_path / "run")]
    assert bpd.index(min(bpd)) == 0
    assert summary.best_epoch > 1


def test_evaluate_tells_which_bound_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a linear decoder that starts as pPCA's, whose exact likelihood no bound exceeds."""
    model = ModelConfig(latent_dim=2, hidden=[4], tractable="fixed", nonlinear=False, estimator="exact", start="ppca")
    train = TrainConfig(epochs=1, lr=1e-6, accelerator="cpu")
    limit = train_model(DataConfig(batch_size=512), model, train, tmp_path / "run", quiet=True).limit
    found = []
    for samples in ("1", "30"):
        main(["evaluate", str(tmp_path / "run"), "--samples", samples])
        said = capsys.readouterr().out
        assert ("(importance-weighted bound, 30 samples)" in said) == (samples == "30")
        found.append(float(said.split()[2]))
    elbo, weighted = found
    dequantization = 0.02  # another draw of its noise
    assert limit - dequantization < weighted < elbo - 0.1


def test_divergence_says_what_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(capsys, "train", *SMALL, "--train.lr", "1e12", "--folder", str(tmp_path / "run"))
    assert "--train.lr" in said


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    train_model(
        DataConfig(), ModelConfig(latent_dim=2, hidden=[4]), TrainConfig(epochs=1), tmp_path / "run", quiet=True
    )
    other = torch.zeros(3, 1, 9, 9, dtype=torch.uint8)
    with pytest.raises(SilentgradError, match="does not fit"):
        load_run(tmp_path / "run", Levels(other, other, other, "other", levels=17))
    assert read_config(tmp_path / "run")[1].latent_dim == 2


def test_a_guide_gives_way_within_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weight falls step by step over its part of the training: with half of two epochs, all through the first."""
    asked: list[float] = []
    forward = GuidedVAE.forward

    def noting(model: GuidedVAE, x: Tensor, epoch: float, beside: Beside) -> Losses:
        asked.append(model.weight(epoch))
        return forward(model, x, epoch, beside)

    monkeypatch.setattr(GuidedVAE, "forward", noting)
    model = ModelConfig(latent_dim=2, hidden=[8], guided=0.5)
    train = TrainConfig(epochs=2, accelerator="cpu")
    train_model(DataConfig(batch_size=256), model, train, tmp_path / "run", quiet=True)
    steps = len(asked) // 2
    assert asked[:steps] == pytest.approx([1 - (step + 1) / steps for step in range(steps)])
    assert asked[steps - 1 :] == [0.0] * (steps + 1)


@pytest.mark.parametrize(
    ("changes", "rates", "moves"),
    [
        ({"latent": "bernoulli"}, (None, None), False),
        ({"latent": "gaussian"}, (None, None), True),
        ({"latent": "bernoulli"}, (5e-4, None), True),
        ({"latent": "bernoulli", "start": "random"}, (None, None), True),
        ({"latent": "bernoulli", "guide_estimator": "gumbel-softmax"}, (None, None), True),
        ({"latent": "bernoulli", "estimator": "none"}, (None, None), True),
        ({"latent": "bernoulli", "nonlinear": False, "estimator": "exact"}, (None, None), True),
    ],
)
def test_a_guide_of_bits_stays_as_it_starts(
    changes: dict[str, Any], rates: tuple[float | None, float | None], moves: bool, tmp_path: Path
) -> None:
    """Unless a rate of its own is given, it starts at random, it is sampled, or it is all that there is."""
    model = ModelConfig(latent_dim=2, hidden=[8], guided=2.0, tractable="constant", **changes)
    train = TrainConfig(epochs=2, lr_mean=rates[0], lr_precision=rates[1], keep=[1, 2], accelerator="cpu")
    train_model(DataConfig(batch_size=256), model, train, tmp_path, quiet=True)
    kept = [load_weights(tmp_path, RunFolder(tmp_path).kept(epoch), load("digits")) for epoch in (1, 2)]
    for name, parameter in kept[0].tractable.named_parameters():
        moved = not torch.equal(parameter, dict(kept[1].tractable.named_parameters())[name])
        assert moved == moves, name
    assert read_config(tmp_path).train.lr_mean == (rates[0] if moves else 0.0)
