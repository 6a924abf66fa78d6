"""Mixtures, circuits and whole levels in the laboratory: trained, judged, as a likelihood and as a guide."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import distributions as td

import silentgrad as sg
from silentgrad.lab.build import model_for, seen_by, weights_on_z
from silentgrad.lab.cli.main import main
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
LEVELS: dict[str, Any] = {"latent_dim": 2, "hidden": [8], "likelihood": "logistic"}
TRAIN = TrainConfig(epochs=2, lr=5e-3, decay="cosine", warmup=3, accelerator="cpu")
DATA = DataConfig(batch_size=256)
BOUND = "lower bound"
TRAINED: dict[str, tuple[dict[str, Any], str, float]] = {  # with the exactness of the figure, and what is above it
    "mixture": (ALONE | {"tractable": "mixture"}, BOUND, 4.5),  # a linear decoder is above 6 after two epochs
    "circuit": (CIRCUIT | {"gates": "all"}, BOUND, 4.5),
    "bits": (CIRCUIT | {"latent": "bernoulli", "leaves": "constant"}, BOUND, 4.5),
    "categories": (CIRCUIT | {"latent": "categorical", "leaves": "constant"}, BOUND, 4.5),
    "levels with a context": (LEVELS | {"nonlinear": False, "estimator": "exact", "context": 1}, BOUND, 6),
    "probabilities of levels": (CIRCUIT | {"leaves": "categorical"}, BOUND, 6),
    "levels of a network": (LEVELS | {"tractable": "none"}, "sampled", 6),
    "silent samples": (CIRCUIT | {"estimator": "silent-reparameterized"}, BOUND, 6),
    "silent bits": (CIRCUIT | {"estimator": "silent-rloo", "latent": "bernoulli", "leaves": "constant"}, BOUND, 6),
    "mixture of a network": (SMALL | {"tractable": "none", "likelihood": "mixture"}, "sampled", 6),
    "circuit of a network": (SMALL | {"tractable": "circuit", "likelihood": "circuit", "guided": 0.5}, "sampled", 6),
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_is_trained(name: str, tmp_path: Path) -> None:
    model, exactness, above = TRAINED[name]
    summary = train_model(DATA, ModelConfig(**model), TRAIN, tmp_path / "run", quiet=True)
    assert summary.figure < above
    assert summary.exactness == exactness
    assert summary.closed_form == exactness or model.get("estimator") != "exact"
    pictures = load_file(tmp_path / "run" / "pictures.safetensors")
    assert pictures["samples"].shape == (64, 1, 8, 8)
    assert "stds" not in pictures or pictures["stds"].min() > 0


def test_the_command_line_tells_the_gap_of_a_circuit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"--model.{option}={value}" for option, value in TRAINED["circuit"][0].items()]
    main(["train", *settings, "--train.epochs=1", "--quiet=true", f"--folder={tmp_path / 'run'}"])
    main(["evaluate", str(tmp_path / "run")])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    gap = with_error(summary["figure"] - summary["sampled"], summary["sampled_error"])
    told = f"(sampled ELBO {summary['sampled']:.4f}, gap {gap})"
    assert capsys.readouterr().out.count(told) == 2


def test_networks_and_precisions_have_rates_of_their_own() -> None:
    digits = load("digits")
    model = model_for(ModelConfig(**SMALL, tractable="circuit", gates="all", likelihood="circuit"), digits)
    rates = {}
    for group in parameter_groups(model, TrainConfig(lr=1e-2, lr_network=1e-3, lr_precision=5e-2)):
        for parameter in group["params"]:
            rates[id(parameter)] = group["lr"]
    for name, parameter in model.named_parameters():
        expected = 1e-2
        if name.startswith(("encoder", "nonlinear.network")):
            expected = 1e-3
        elif name == "tractable.leaves.decoder.log_scale":
            expected = 5e-2
        assert rates[id(parameter)] == expected
    assert len(rates) == len(list(model.parameters()))


@pytest.mark.parametrize("estimator", ["exact", "reparameterized"])
def test_the_best_epoch_is_that_of_what_was_descended(estimator: str) -> None:
    digits = load("digits")
    config = ModelConfig(**SMALL, nonlinear=False, estimator=estimator, tractable="circuit", leaves="constant")
    model = model_for(config, digits)
    loop = Loop(fabric_for(TRAIN), model, TRAIN, digits, 64, constant(1.0))
    loop.evaluation = evaluate_model(model, digits)
    assert loop.evaluation.sampled != loop.evaluation.figure
    chosen_by = {"exact": loop.evaluation.figure, "reparameterized": loop.evaluation.sampled}
    _, figure = loop.score
    assert figure == chosen_by[estimator]


def test_pictures_of_a_circuit_are_samples_and_no_blur() -> None:
    vae = model_for(ModelConfig(**ALONE, tractable="circuit"), load("digits"))
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
    for data in (torch.rand(5, 1, 4, 5), torch.rand(0, 1, 4, 4)):
        with pytest.raises(sg.ShapeError, match=r"expected examples of shape \(1, 4, 4\)"):
            circuit.init_from_data(data)
    with pytest.raises(sg.DomainError, match="hold NaN"):
        circuit.init_from_data(torch.full((5, 1, 4, 4), torch.nan))


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


def test_a_bound_is_below_the_sampled_elbo(tmp_path: Path) -> None:
    digits = load("digits")
    torch.manual_seed(0)
    vae = model_for(ModelConfig(**ALONE, tractable="circuit", leaves="constant"), digits)
    vae.tractable.init_from_data(digits.as_seen(digits.rows("train")))
    torch.nn.init.normal_(vae.encoder.body[-1].weight, std=0.5)  # latents that say something, with some noise
    found = evaluate_model(vae, digits)
    assert found.exactness == "lower bound"
    assert found.sampled is not None
    assert found.sampled_error is not None
    assert found.figure - found.sampled > 3 * found.sampled_error


# --- whole levels


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


def test_a_context_enters_late_and_a_run_tells_what_latents_are_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = []

    def note(loop: Loop) -> None:
        weights.append(float(loop.model.tractable.leaves.decoder.context_weight))

    model = ModelConfig(**CIRCUIT, context=1, context_after=0.25)
    train_model(DATA, model, replace(TRAIN, epochs=4), tmp_path / "context", quiet=True, reports=[note])
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
    config = ModelConfig(**SMALL, likelihood="circuit", tractable="circuit", gates="all")
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
