"""Mixtures, circuits and whole levels in the laboratory: judged, as a likelihood and as a guide."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import distributions as td

import silentgrad as sg
from refusals import refused
from runs import Cli
from silentgrad.lab.build import model_for, seen_by, weights_on_z
from silentgrad.lab.data import load
from silentgrad.lab.networks import NonlinearCircuit
from silentgrad.lab.printing import number, with_error
from silentgrad.lab.reports import write_report
from silentgrad.lab.runs.evaluation import evaluate_model
from silentgrad.lab.settings import DataConfig, ModelConfig, Settings, TrainConfig, resolve
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import Run
from silentgrad.lab.training import train_model
from silentgrad.lab.training.fabric import fabric_for
from silentgrad.lab.training.finishing import generated
from silentgrad.lab.training.loop import Loop, parameter_groups
from silentgrad.latents.families import FAMILIES
from silentgrad.schedules import constant

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SMALL: dict[str, Any] = {"latent_dim": 2, "hidden": [8], "components": 2}
ALONE = SMALL | {"nonlinear": False, "estimator": "exact"}
CIRCUIT = ALONE | {"tractable": "circuit"}
TRAIN = TrainConfig(epochs=2, lr=5e-3, decay="cosine", warmup=3, accelerator="cpu")
DATA, DIGITS = DataConfig(batch_size=256), load("digits")


def test_networks_and_precisions_have_rates_of_their_own() -> None:
    model = model_for(ModelConfig(**SMALL, tractable="circuit", gates="all", likelihood="circuit"), DIGITS)
    groups = parameter_groups(model, TrainConfig(lr=1e-2, lr_network=1e-3, lr_precision=5e-2))
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        other = 5e-2 if name == "tractable.leaves.decoder.log_scale" else 1e-2
        assert rates[id(parameter)] == (1e-3 if name.startswith(("encoder", "nonlinear.network")) else other), name
    assert len(rates) == len(list(model.parameters()))


@pytest.mark.parametrize("estimator", ["exact", "reparameterized"])
def test_the_best_epoch_is_that_of_what_was_descended(estimator: str) -> None:
    config = ModelConfig(**SMALL, nonlinear=False, estimator=estimator, tractable="circuit", leaves="constant")
    model = model_for(config, DIGITS)
    loop = Loop(fabric_for(TRAIN), model, TRAIN, DIGITS, 64, constant(1.0))
    loop.evaluation = evaluate_model(model, DIGITS)
    assert loop.evaluation.sampled != loop.evaluation.figure
    chosen_by = {"exact": loop.evaluation.figure, "reparameterized": loop.evaluation.sampled}
    assert loop.score[1] == chosen_by[estimator]


def test_no_epoch_is_chosen_while_the_context_is_entering() -> None:
    model = model_for(ModelConfig(**CIRCUIT, context=1), DIGITS)
    loop = Loop(fabric_for(TRAIN), model, TRAIN, DIGITS, 64, constant(1.0))
    scores = []
    for weight, figure in ((0.3, 1.0), (1.0, 2.0)):
        sg.decoders.set_context_weight(model, weight)
        loop.evaluation = SimpleNamespace(figure=figure, sampled=None)
        scores.append(loop.score)
    assert min(scores) == scores[1] == (0.0, 2.0)


def test_pictures_of_a_circuit_are_samples_and_no_blur() -> None:
    vae = model_for(ModelConfig(**ALONE, tractable="circuit"), DIGITS)
    with torch.no_grad():
        torch.manual_seed(0)
        found = generated(vae, 5)
        torch.manual_seed(0)
        expected = vae.generate(5).sample()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("decoder", ["circuit", "network"])
def test_data_that_no_start_can_be_made_from_are_refused(decoder: str) -> None:
    circuit = sg.Circuit(2, (1, 4, 4), 3)
    if decoder == "network":
        circuit = NonlinearCircuit(torch.nn.Identity(), (1, 4, 4), 3, circuit.region_graph)
    for x in (torch.rand(5, 1, 4, 5), torch.rand(0, 1, 4, 4)):
        refused(sg.ShapeError, r"expected examples of shape \(1, 4, 4\)", lambda x=x: circuit.init_from_data(x))
    refused(sg.DomainError, "hold NaN", lambda: circuit.init_from_data(torch.full((5, 1, 4, 4), torch.nan)))


def test_a_circuit_of_a_network_is_that_of_a_linear_decoder() -> None:
    """With a network that is linear, the same weights give the same p(x|z) as `Circuit`."""
    torch.manual_seed(0)
    shape, components, pixels = (1, 4, 4), 3, 16
    circuit = sg.Circuit(2, shape, components)
    network = torch.nn.Linear(2, 3 * components * pixels)
    shaped = torch.nn.Sequential(network, torch.nn.Unflatten(1, (3 * components, 4, 4)))
    nonlinear = NonlinearCircuit(shaped, shape, components, circuit.region_graph)
    circuit.init_from_data(torch.rand(50, *shape))
    nonlinear.init_from_data(torch.rand(50, *shape))
    nonlinear.sums.load_state_dict(circuit.network.state_dict())
    leaf, weights = circuit.leaves.decoder, nonlinear.state_dict()
    for name in ("center", "log_scale"):
        weights[name] = getattr(leaf, name).detach().reshape(*shape, components)
    nonlinear.load_state_dict(weights)
    (gate,) = circuit.gates.values()
    in_regions = circuit.network.layers[0].over_outputs
    with torch.no_grad():
        weights = network.weight.unflatten(0, (3, components, pixels)).movedim(1, 2)  # mean, precision, logit
        biases = network.bias.unflatten(0, (3, components, pixels)).movedim(1, 2)
        circuit.leaves.decoder.affine.weight.copy_(weights[0].flatten(0, 1))
        circuit.leaves.decoder.affine.bias.copy_(biases[0].flatten())
        gate.logits.weight.copy_(in_regions(weights[2]).flatten(0, 1))
        gate.logits.bias.copy_(in_regions(biases[2]).flatten())
    z, x = torch.randn(5, 2), torch.rand(5, *shape)
    found, linear = nonlinear(z), circuit(z)
    leaves = td.Normal(linear.leaves.mean, found.leaves.stddev)  # the network's precision is bent below its cap
    expected = sg.decoders.CircuitDistribution(leaves, circuit.network, linear.logits, event_dims=3)
    torch.testing.assert_close(found.log_prob(x), expected.log_prob(x), rtol=1e-4, atol=1e-3)


def test_a_likelihood_of_levels_is_handed_levels_and_a_density_is_not() -> None:
    """Bits per dimension are the same quantity: one in 17 levels has as many as a density of one over all of them."""
    assert DIGITS.figure(0.0) == pytest.approx(math.log2(17))
    assert replace(DIGITS, whole=True).figure(-64 * math.log(17)) == pytest.approx(math.log2(17))
    rows = DIGITS.rows("test")
    leaves = {name: seen_by(ModelConfig(**CIRCUIT, leaves=name), DIGITS) for name in ("logistic", "constant")}
    torch.testing.assert_close(leaves["logistic"].as_seen(rows), rows.stored.float(), rtol=0, atol=0)
    assert leaves["constant"].as_seen(rows).max() < 1
    assert resolve(Settings(DATA, ModelConfig(**CIRCUIT), TRAIN), DIGITS.likelihoods).model.leaves == "logistic"
    assert resolve(Settings(DATA, ModelConfig(**CIRCUIT), TRAIN), ["gaussian"]).model.leaves == "constant"


def test_a_context_enters_late_and_a_run_tells_its_gap_and_what_latents_are_worth(tmp_path: Path, cli: Cli) -> None:
    weights = []

    def note(loop: Loop) -> None:
        weights.append(float(loop.model.tractable.leaves.decoder.context_weight))

    model = ModelConfig(**CIRCUIT, context=1, context_after=0.25)
    train_model(DATA, model, replace(TRAIN, epochs=4), tmp_path / "context", quiet=True, reports=[note])
    assert weights == pytest.approx([0.0, 1.0, 1.0, 1.0])
    page = write_report(tmp_path / "context").read_text()
    assert [told in page for told in ("not trained", "one draw given z", "moves one latent")] == [True, True, False]
    assert "with a context the mean" in cli.fails("sample", tmp_path / "context", "--mean", "true")
    options = [f"--model.{name}={value}" for name, value in CIRCUIT.items()]
    options += ["--train.epochs=1", "--quiet=true", f"--folder={tmp_path / 'two'}", "--compare=without-z"]
    said, summary = cli("train", *options), Run.read(tmp_path / "two").summary
    assert "(epoch 1 of 1, still improving); z is worth" in said
    check = cli("check", tmp_path / "two", "--examples", "40")
    assert ("the same without z" in check, "4 samples of" in check) == (True, False)
    cli("sample", tmp_path / "two", "--mean", "true", "--output", tmp_path / "means.png")
    shades = np.asarray(Image.open(tmp_path / "means.png"))[..., 0]
    assert ((shades > 10) & (shades < 245)).mean() > 0.3  # levels are scaled: no picture of black and white
    gap = with_error(summary.figure - summary.sampled, summary.sampled_error)
    for told in (said, cli("evaluate", tmp_path / "two")):
        assert f"(sampled ELBO {summary.sampled:.4f}, gap {gap})" in told
    blind = Run.read(tmp_path / "two-without-z")
    assert blind.summary.kld == 0
    page = RunFolder(tmp_path / "two").report.read_text()
    assert "latents worth" in page
    assert "gap of the bound" not in RunFolder(blind.folder).report.read_text()
    assert number(blind.summary.elbo) in page


@pytest.mark.parametrize("latent", sorted(FAMILIES))
def test_without_z_is_the_prior_and_decoders_are_blind(latent: str) -> None:
    config = ModelConfig(**SMALL, likelihood="circuit", tractable="circuit", gates="all")
    plan = resolve(Settings(DATA, replace(config, latent=latent, without_z=True), TRAIN), DIGITS.likelihoods)
    model = model_for(plan.model, DIGITS)
    for weight in weights_on_z(model):
        torch.nn.init.zeros_(weight)
    x = seen_by(plan.model, DIGITS).as_seen(DIGITS.rows("test").between(0, 3))
    q = model.encode(x)
    assert model.objective(q, None)(x, q).kld.abs().max() < 1e-6
    for decoder in (model.tractable, model.nonlinear):
        first, second = (decoder(model.prior.sample(3)).log_prob(x) for _ in range(2))
        torch.testing.assert_close(first, second)
