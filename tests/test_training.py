"""Training from the command line: what a run leaves, that it can be killed and resumed, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import processes
from runs import SMALL, TINY, TWICE, Cli, rows, train, train_in_two
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Levels, load
from silentgrad.lab.experiments.recipes import FOLDER, read_recipe
from silentgrad.lab.experiments.recipes import recipe_header as header
from silentgrad.lab.experiments.recipes import recipe_names as names
from silentgrad.lab.kinds import Kind
from silentgrad.lab.settings import resolve
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import Summary
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, load_run, read_config

ALONE: dict[str, Any] = {"nonlinear": False, "estimator": "exact"}


def test_a_run_leaves_everything(data: list[str], tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "run"
    said = cli("train", *SMALL, *data, "--train.epochs", "2", "--model.guided", "2", "--folder", folder)
    expected = {"config.yaml", "metrics.csv", "last.ckpt", "model.safetensors", "report.html", "environment.json",
                "summary.json", "curves.png", "samples.png", "reconstructions.png"}  # fmt: skip
    assert expected <= {path.name for path in folder.iterdir()}
    for told in ("test BPD", "report.html", "the guide's weight never reaches 0: 0.50 of it is left at the end"):
        assert told in said
    metrics = rows(folder / "metrics.csv")
    assert [(row["epoch"], float(row["weight"])) for row in metrics] == [("1", 0.75), ("2", 0.5)]
    assert "test BPD" in cli("evaluate", folder)
    before = (folder / "report.html").stat().st_mtime_ns
    cli("reconstruct", folder)
    assert (folder / "report.html").stat().st_mtime_ns > before
    cli("sample", folder, "--count", "9", "--output", tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
    assert "--train.lr" in cli.fails("train", *SMALL, *data, "--train.lr", "1e12", "--folder", tmp_path / "diverged")


@pytest.fixture(scope="module")
def few() -> Levels:
    digits = load("digits")
    return replace(digits, train=digits.train[:128], valid=digits.valid[:32], test=digits.test[:32])


@pytest.fixture(scope="module")
def data(few: Levels, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("images") / "digits.npy"
    np.save(path, few.train[:, 0].numpy())
    return ["--data.name", str(path), "--data.batch_size", "16"]


def trained(few: Levels, folder: Path, how: TrainConfig = TWICE, **model: Any) -> Summary:
    return train(folder, DataConfig(batch_size=64), how, model=replace(TINY, **model), observations=few)


@pytest.mark.parametrize("latent", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("linear", ["none", "fixed", "linear", "exp"])
@pytest.mark.parametrize("nonlinear", [True, False])
def test_every_mode_trains(latent: str, linear: str, nonlinear: bool, few: Levels, tmp_path: Path) -> None:
    if linear == "none" and not nonlinear:
        return
    sampling = ["reparameterized"] if latent == "gaussian" else ["gumbel-softmax", "reinforce", "disarm"]
    alone = ["exact"] if not nonlinear else ["none"] if linear != "none" else []
    for estimator in sampling + alone:
        options = {"latent": latent, "tractable": linear, "nonlinear": nonlinear, "estimator": estimator}
        summary = trained(few, tmp_path / estimator, **options, cutoff=2 if estimator == "none" else None)
        assert 0 < summary.figure < 100


SMALL_CIRCUIT: dict[str, Any] = {"tractable": "circuit", "components": 2}
CIRCUIT = ALONE | SMALL_CIRCUIT
LEVELS: dict[str, Any] = {"likelihood": "logistic"}
NETWORK: dict[str, Any] = {"tractable": "none", "components": 2}
BOUND = "lower bound"
# With the exactness of the figure, and what is above it; a linear decoder is above 6 after two epochs.
TRAINED: dict[str, tuple[dict[str, Any], str, float]] = {
    "mixture": (CIRCUIT | {"tractable": "mixture"}, BOUND, 4.5),
    "circuit": (CIRCUIT | {"gates": "all"}, BOUND, 4.5),
    "bits": (CIRCUIT | {"latent": "bernoulli", "leaves": "constant"}, BOUND, 4.5),
    "categories": (CIRCUIT | {"latent": "categorical", "leaves": "constant"}, BOUND, 4.5),
    "levels with a context": (ALONE | LEVELS | {"context": 1}, BOUND, 6),
    "probabilities of levels": (CIRCUIT | {"leaves": "categorical"}, BOUND, 6),
    "levels of a network": (LEVELS | {"tractable": "none"}, "sampled", 6),
    "silent samples": (CIRCUIT | {"estimator": "silent-reparameterized"}, BOUND, 6),
    "silent bits": (CIRCUIT | {"estimator": "silent-rloo", "latent": "bernoulli", "leaves": "constant"}, BOUND, 6),
    "mixture of a network": (NETWORK | {"likelihood": "mixture"}, "sampled", 6),
    "circuit of a network": (SMALL_CIRCUIT | {"likelihood": "circuit", "guided": 0.5}, "sampled", 6),
    # One way to train each family, all ways and priors between them.
    "gaussian": ({"tractable": "exp", "estimator": "reparameterized", "prior": "mixture"}, "sampled", 7),
    "full-gaussian": (ALONE | {"latent": "full-gaussian", "tractable": "linear", "prior": "learned"}, "exact", 7),
    "laplace": ({"latent": "laplace", "tractable": "fixed", "nonlinear": False, "estimator": "rloo", "start": "ppca",
                 "prior": "mixture"}, BOUND, 7),
    "bernoulli": ({"latent": "bernoulli", "tractable": "exp", "estimator": "disarm", "prior": "learned"}, "sampled", 7),
    "categorical": ({"latent": "categorical", "tractable": "exp", "estimator": "gumbel-softmax", "categories": 4,
                     "start": "ppca"}, "sampled", 7),
    "poisson": ({"latent": "poisson", "tractable": "exp", "estimator": "none", "prior": "learned"}, "sampled", 7),
    # A fair coin for each pixel has 64 log 2 = 44.4 nats.
    "binarized": ({"tractable": "linear", "estimator": "reparameterized"}, "sampled", 64),
    "binarized, alone": (ALONE | {"tractable": "linear"}, "exact", 64),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_is_trained(name: str, tmp_path: Path) -> None:
    options, exactness, above = TRAINED[name]
    how = replace(TWICE, lr=5e-3)
    model = replace(TINY, hidden=[8], **options)
    kind: Kind = "binarized" if name.startswith("binarized") else "auto"
    summary = train(tmp_path / "run", DataConfig(kind=kind, batch_size=256), how, model=model)
    assert 0 < summary.figure < above
    assert summary.exactness == exactness
    assert exactness != BOUND or summary.figure - summary.sampled > 3 * summary.sampled_error
    assert summary.closed_form == exactness or options.get("estimator") != "exact"
    assert 0.001 < summary.kld < 30
    assert summary.active <= model.latent_dim
    pictures = load_file(tmp_path / "run" / "pictures.safetensors")
    assert pictures["samples"].shape == (64, 1, 8, 8)
    assert "stds" not in pictures or pictures["stds"].min() > 0
    for numbers in load_run(tmp_path / "run", load("digits", kind=kind)).prior.parameters():  # trained, saved and read
        assert (numbers != 0).all()


@pytest.mark.usefixtures("undrawn")
def test_two_processes_equal_one(data: list[str], here: Path, cli: Cli) -> None:
    words = ["train", *SMALL, *data, "--train.epochs", "2", "--model.tractable", "exp", "--model.nonlinear", "false",
             "--model.estimator", "exact"]  # fmt: skip
    one, two = here / "one", here / "runs" / "digits-001"  # the second is the folder that it finds for itself
    cli(*words, "--folder", one)
    said = here / "said.txt"
    assert processes.run(processes.silentgrad, *words, "--train.devices", "2", output=said) == 0, said.read_text()
    weights = load_file(two / "model.safetensors")
    for name, value in load_file(one / "model.safetensors").items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    for a, b in zip(*(rows(folder / "metrics.csv") for folder in (one, two)), strict=True):
        assert a["weight"] == ""  # of one decoder there is nothing to weigh
        assert float(a["valid_bpd"]) == pytest.approx(float(b["valid_bpd"]), rel=1e-5)
    assert [path.name for path in two.parent.iterdir()] == ["digits-001"]


def test_several_processes_go_on_when_the_guide_has_given_way(data: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [*SMALL, *data, "--train.epochs", "2", "--model.guided", "0.5", "--folder", str(folder)]
    train_in_two(*words, said=tmp_path / "said.txt")
    assert [float(row["weight"]) for row in rows(folder / "metrics.csv")] == [0.0, 0.0]


def test_recipes_that_were_measured_come_first() -> None:
    for name in names():
        assert {"what", "command", "expects", "time"} <= set(header(name))
        assert header(name)["command"] == f"silentgrad train --recipe {name}"
    measured = [header(name)["time"] != "not measured" for name in names()]
    assert measured == sorted(measured, reverse=True)
    assert (len(measured), sum(measured)) == (110, 3)


BY_HAND = {
    "mnist-gaussian-reparameterized-sg-cpu": Settings(
        DataConfig("mnist", batch_size=64),
        ModelConfig("gaussian", 64, hidden=[256], tractable="linear", log_term="taylor", start="random",
                    nonlinear=True, estimator="reparameterized", guided=0.5),
        TrainConfig(epochs=20, lr=5e-4),
    ),
    "mnist-bernoulli-none-ours-conv": Settings(
        DataConfig("mnist", batch_size=64),
        ModelConfig("bernoulli", 64, network="conv", channels=8, tractable="linear", nonlinear=True, estimator="none",
                    start="ppca", cutoff=6),
        TrainConfig(epochs=12, lr=5e-4),
    ),
    "mnist-fixed-bernoulli-silent-paper": Settings(
        DataConfig("mnist", batch_size=64),
        ModelConfig("bernoulli", 200, network="conv", tractable="fixed", variance=0.01, nonlinear=False,
                    estimator="exact"),
        TrainConfig(epochs=500, lr=5e-4),
    ),
    "imagenet32-bernoulli-reinforce-sg-paper": Settings(
        DataConfig("imagenet32", batch_size=128),
        ModelConfig("bernoulli", 1024, network="strided", channels=64, tractable="linear", log_term="taylor",
                    start="random", nonlinear=True, estimator="reinforce", guided=1.0),
        TrainConfig(epochs=100, lr=5e-4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_a_recipe_without_a_file_has_the_settings_of_its_name(name: str) -> None:
    assert read_recipe(name) == BY_HAND[name]
    assert not (FOLDER / f"{name}.yaml").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_full_disk_loses_nothing(data: list[str], tmp_path: Path, cli: Cli) -> None:
    """The first checkpoint does not fit."""
    words = ["train", *SMALL, *data, "--train.epochs", "2", "--model.hidden", "16"]
    full, output = tmp_path / "full", tmp_path / "said.txt"
    assert processes.run(processes.silentgrad_on_a_full_disk, *words, "--folder", str(full), output=output) == 1
    said = output.read_text()
    assert [told in said for told in ("cannot write to", "--resume true", "Traceback")] == [True, True, False]
    cli("train", "--folder", full, "--resume", "true", "--quiet", "true")
    cli(*words, "--folder", tmp_path / "whole")
    resumed, whole = (pd.read_csv(folder / "metrics.csv") for folder in (full, tmp_path / "whole"))
    pd.testing.assert_frame_equal(resumed.drop(columns="seconds"), whole.drop(columns="seconds"), check_exact=True)


@pytest.mark.usefixtures("undrawn")
def test_tensorboard_is_an_extra(data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    words = ["train", *SMALL, *data, "--train.epochs", "1", "--train.tensorboard", "true", "--folder"]
    cli(*words, tmp_path / "with")
    assert list((tmp_path / "with" / "tensorboard").glob("events*"))
    for package in ("TENSORBOARD", "TENSORBOARDX"):
        monkeypatch.setattr(f"lightning_fabric.loggers.tensorboard._{package}_AVAILABLE", False)
    assert "tensorboard" in cli.fails(*words, tmp_path / "without")
    assert not (tmp_path / "without").exists()


def test_figures_are_those_of_the_best_epoch(few: Levels, tmp_path: Path) -> None:
    """The rate is so high that the last epoch is not the best one."""
    summary = trained(few, tmp_path / "run", replace(TWICE, epochs=6, lr=0.5), tractable="none")
    bpd = [float(row["valid_bpd"]) for row in rows(tmp_path / "run" / "metrics.csv")]
    assert summary.best_epoch == 1 + bpd.index(min(bpd)) < 6
    best = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["best"]["model"]
    for name, value in load_file(tmp_path / "run" / "model.safetensors").items():
        assert torch.equal(best[name], value)
    # With its first, large variance a model has a better BPD, but it is another model.
    shrinking = {"tractable": "fixed", "variance_start": 0.3, "variance_factor": 0.01, "variance": 0.003}
    summary = trained(few, tmp_path / "other", replace(TWICE, epochs=3, lr=1e-5), **ALONE, **shrinking)
    bpd = [float(row["valid_bpd"]) for row in rows(tmp_path / "other" / "metrics.csv")]
    assert bpd.index(min(bpd)) == 0
    assert summary.best_epoch > 1


def test_a_guide_gives_way_within_epochs(few: Levels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weight falls step by step from 1, over its part of the training: with half of two epochs, the first."""
    asked: list[float] = []
    forward = GuidedVAE.forward

    def noting(model: GuidedVAE, x: Tensor, epoch: float, *rest: Any) -> Any:
        asked.append(model.weight(epoch))
        return forward(model, x, epoch, *rest)

    monkeypatch.setattr(GuidedVAE, "forward", noting)
    trained(few, tmp_path / "run", guided=0.5)
    assert asked == [1.0, 0.5, 0.0, 0.0]


BITS = ModelConfig(latent="bernoulli", guided=2.0, tractable="constant", latent_dim=2, hidden=[4])
MOVING: list[tuple[dict[str, Any], float | None]] = [
    ({"latent": "gaussian"}, None),
    ({}, 5e-4),
    ({"start": "random"}, None),
    ({"guide_estimator": "gumbel-softmax"}, None),
    ({"guided": 0.25, "estimator": "none"}, None),
    ({"guided": 0.25, "nonlinear": False, "estimator": "exact"}, None),
]


def test_a_guide_of_bits_stays_as_it_starts(few: Levels, tmp_path: Path) -> None:
    """Unless a rate of its own is given, it starts at random, it is sampled, or it is all that there is."""
    for changes, rate in MOVING:
        settings = Settings(DataConfig(), replace(BITS, **changes), replace(TWICE, lr_mean=rate))
        assert resolve(settings, ["gaussian"]).train.lr_mean == rate, changes
    train(tmp_path, train=replace(TWICE, keep=[1, 2]), model=BITS, observations=few)
    assert read_config(tmp_path).train.lr_mean == 0.0
    first, second = (load_file(RunFolder(tmp_path).kept(epoch)) for epoch in (1, 2))
    for name, weight in first.items():
        assert torch.equal(weight, second[name]) == name.startswith("tractable."), name
