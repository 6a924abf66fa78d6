"""Whole levels in the laboratory: what models see, contexts that enter late, and the same model without z."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import silentgrad as sg
from silentgrad.lab.build import model_for, seen_by, weights_on_z
from silentgrad.lab.cli.main import main
from silentgrad.lab.data import load
from silentgrad.lab.printing import number
from silentgrad.lab.reports import write_report
from silentgrad.lab.settings import DataConfig, ModelConfig, Settings, TrainConfig, resolve
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import Run
from silentgrad.lab.training import train_model
from silentgrad.lab.training.loop import Loop
from silentgrad.latents.families import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SMALL = {"latent_dim": 2, "hidden": [8]}
CIRCUIT = SMALL | {"components": 2, "tractable": "circuit", "nonlinear": False, "estimator": "exact"}
LINEAR = SMALL | {"likelihood": "logistic", "nonlinear": False, "estimator": "exact"}
TRAIN = TrainConfig(epochs=4, lr=5e-3, lr_network=1e-3, accelerator="cpu")
DATA = DataConfig(batch_size=256)


def test_a_likelihood_of_levels_is_handed_levels_and_a_density_is_not() -> None:
    digits = load("digits")
    rows = digits.rows("test")
    leaves = {name: seen_by(ModelConfig(**CIRCUIT, leaves=name), digits) for name in ("logistic", "constant")}
    torch.testing.assert_close(leaves["logistic"].as_seen(rows), rows.stored.float(), rtol=0, atol=0)
    assert leaves["constant"].as_seen(rows).max() < 1
    assert resolve(Settings(DATA, ModelConfig(**CIRCUIT), TRAIN), digits.likelihoods).model.leaves == "logistic"
    assert resolve(Settings(DATA, ModelConfig(**CIRCUIT), TRAIN), ["gaussian"]).model.leaves == "constant"


def test_bits_per_dimension_are_the_same_quantity() -> None:
    """One in 17 levels has as many bits as a density of one over all of them."""
    digits = load("digits")
    assert digits.figure(0.0) == pytest.approx(math.log2(17))
    assert replace(digits, whole=True).figure(-64 * math.log(17)) == pytest.approx(math.log2(17))


@pytest.mark.parametrize(
    "model",
    [
        LINEAR | {"context": 1},
        CIRCUIT | {"leaves": "categorical"},
        SMALL | {"likelihood": "logistic", "tractable": "none"},
        CIRCUIT | {"estimator": "silent-reparameterized"},
        CIRCUIT | {"estimator": "silent-rloo", "latent": "bernoulli", "leaves": "constant"},
    ],
)
def test_models_of_levels_are_trained(model: dict[str, object], tmp_path: Path) -> None:
    summary = train_model(DATA, ModelConfig(**model), replace(TRAIN, epochs=1), tmp_path / "run", quiet=True)
    assert summary.figure < 6
    assert Run.read(tmp_path / "run").pictures is not None


def test_a_context_enters_late_and_a_run_tells_what_latents_are_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = []

    def note(loop: Loop) -> None:
        weights.append(float(loop.model.tractable.leaves.decoder.context_weight))

    model = ModelConfig(**CIRCUIT, context=1, context_after=0.25)
    train_model(DATA, model, TRAIN, tmp_path / "context", quiet=True, reports=[note])
    assert weights == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert "not trained" in write_report(tmp_path / "context").read_text()
    options = [f"--model.{name}={value}" for name, value in CIRCUIT.items()]
    main(["train", *options, "--train.epochs=1", "--quiet=true", f"--folder={tmp_path / 'two'}", "--compare=without-z"])
    assert "z is worth" in capsys.readouterr().out
    blind = Run.read(tmp_path / "two-without-z")
    assert blind.summary is not None
    assert blind.summary.kld == 0
    page = RunFolder(tmp_path / "two").report.read_text()
    assert "latents worth" in page
    assert number(blind.summary.elbo) in page


@pytest.mark.parametrize("latent", sorted(FAMILIES))
def test_without_z_is_the_prior_and_decoders_are_blind(latent: str) -> None:
    digits = load("digits")
    config = ModelConfig(**{**SMALL, "likelihood": "circuit", "components": 2}, tractable="circuit", gates="all")
    plan = resolve(Settings(DATA, replace(config, latent=latent, without_z=True), TRAIN), digits.likelihoods)
    model = model_for(plan.model, digits)
    for weight in weights_on_z(model):
        torch.nn.init.zeros_(weight)
    x = seen_by(plan.model, digits).as_seen(digits.rows("test").between(0, 3))
    q = model.encode(x)
    assert model.objective(q, None)(x, q).kld.abs().max() < 1e-6
    for decoder in (model.tractable, model.nonlinear):
        first, second = (decoder(model.prior.sample(3)).log_prob(x) for _ in range(2))
        torch.testing.assert_close(first, second)


def test_what_does_not_go_with_levels_is_named() -> None:
    digits = load("digits").likelihoods
    refused = {
        "is a density": {"tractable": "constant", "likelihood": "logistic"},
        "are of whole levels, and": {"tractable": "circuit", "leaves": "logistic", "likelihood": "gaussian"},
        "choose --model.leaves logistic": {"likelihood": "logistic", "tractable": "circuit", "leaves": "constant"},
        "nothing to shift": {**CIRCUIT, "context": 1, "leaves": "exp"},
        "decoder of constant or logistic leaves alone": {"context": 1, "tractable": "circuit"},
        "is for --model.context": {**CIRCUIT, "context_hidden": 8},
        "needs statistics": {"estimator": "silent-rloo"},
    }
    for message, given in refused.items():
        with pytest.raises(sg.DomainError, match=message):
            resolve(Settings(DATA, ModelConfig(**given), TRAIN), digits)
