"""Mixtures and circuits in the laboratory: trained, resumed, judged, exported, as a likelihood and as a guide."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import distributions as td

import silentgrad as sg
from silentgrad.lab.build import model_for
from silentgrad.lab.cli.main import main
from silentgrad.lab.data import load
from silentgrad.lab.networks import NonlinearCircuit
from silentgrad.lab.printing import with_error
from silentgrad.lab.runs.evaluation import evaluate_model
from silentgrad.lab.settings import resolve_model
from silentgrad.lab.training import DataConfig, ModelConfig, TrainConfig, load_run, train_model
from silentgrad.lab.training.fabric import fabric_for
from silentgrad.lab.training.finishing import generated
from silentgrad.lab.training.loop import Loop, parameter_groups
from silentgrad.schedules import constant

SMALL = {"latent_dim": 2, "hidden": [8], "components": 2}
ALONE = SMALL | {"nonlinear": False, "estimator": "exact"}
TRAIN = TrainConfig(epochs=2, lr=5e-3, decay="cosine", warmup=3, accelerator="cpu")
DATA = DataConfig(batch_size=256)
WORDS = {
    "mixture": {"tractable": "mixture"},
    "circuit": {"tractable": "circuit", "gates": "all"},
    "constant precision, bits": {"tractable": "circuit", "latent": "bernoulli", "leaves": "constant"},
    "constant precision, categories": {"tractable": "circuit", "latent": "categorical", "leaves": "constant"},
}


@pytest.mark.parametrize("name", WORDS)
def test_a_circuit_is_trained(name: str, tmp_path: Path) -> None:
    summary = train_model(DATA, ModelConfig(**ALONE, **WORDS[name]), TRAIN, tmp_path / "run", quiet=True)
    assert summary.figure < 4.5  # a linear decoder is above 6 after two epochs
    assert summary.exactness == summary.closed_form == "lower bound"
    pictures = load_file(tmp_path / "run" / "pictures.safetensors")
    assert pictures["stds"].min() > 0
    assert pictures["samples"].shape == (64, 1, 8, 8)


def test_the_command_line_tells_the_gap_of_a_circuit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"--model.{option}={value}" for option, value in (ALONE | WORDS["circuit"]).items()]
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


class StopError(Exception):
    """The end of a run in its second epoch."""


def test_a_killed_circuit_ends_with_the_same_bits(tmp_path: Path) -> None:
    """The learning rates of a step depend on the step alone."""

    def stop(loop: Loop) -> None:
        if loop.epoch == 2:
            raise StopError

    model = ModelConfig(**ALONE, tractable="circuit")
    whole = train_model(DATA, model, TRAIN, tmp_path / "whole", quiet=True)
    with pytest.raises(StopError):
        train_model(DATA, model, TRAIN, tmp_path / "half", quiet=True, reports=[stop])
    resumed = train_model(DATA, model, TRAIN, tmp_path / "half", resume=True, quiet=True)
    assert resumed.figure == whole.figure
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "half"))
    for name, weights in first.items():
        torch.testing.assert_close(second[name], weights, rtol=0, atol=0)


@pytest.mark.parametrize(("likelihood", "tractable"), [("mixture", "none"), ("circuit", "circuit")])
def test_a_nonlinear_decoder_has_a_circuit_as_its_likelihood(likelihood: str, tractable: str, tmp_path: Path) -> None:
    guide = {} if tractable == "none" else {"guided": 0.5}
    model = ModelConfig(**SMALL, tractable=tractable, likelihood=likelihood, **guide)
    summary = train_model(DATA, model, TRAIN, tmp_path / "run", quiet=True)
    assert summary.exactness == "sampled"
    assert summary.figure < 6
    vae = load_run(tmp_path / "run", load("digits"))
    assert isinstance(vae.nonlinear, NonlinearCircuit)


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


def test_options_without_a_circuit_are_refused() -> None:
    refused = {
        "--model.components": {"components": 3},
        "--model.leaves": {"leaves": "exp"},
        "--model.gates": {"gates": "all"},
        "--model.start": {"tractable": "circuit", "start": "mean"},
    }
    for option, given in refused.items():
        with pytest.raises(sg.DomainError, match=option):
            resolve_model(ModelConfig(**given), "gaussian")
    with pytest.raises(sg.DomainError, match=r"--model.components has to be at least 1"):
        ModelConfig(tractable="circuit", components=0)
