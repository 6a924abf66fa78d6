"""Exported files say what the model says, to programs that know nothing of it."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from huggingface_hub import ModelCard
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn
from torch.onnx._internal.exporter._registration import ONNXRegistry

from refusals import refused
from runs import TINY, Cli, train
from silentgrad.lab.build import build_model
from silentgrad.lab.data import load
from silentgrad.lab.kinds import Kind
from silentgrad.lab.settings import resolve_model
from silentgrad.lab.settings.documents import train_command
from silentgrad.lab.store.records import Run
from silentgrad.lab.training import DataConfig, ModelConfig, TrainConfig, export, load_run, read_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")
SHAPES = {"mlp": (1, 8, 8), "conv": (3, 8, 8), "strided": (3, 32, 32)}
LATENTS = 4
BITS = {"latent": "bernoulli", "tractable": "none", "estimator": "rloo"}


@pytest.fixture(scope="module", autouse=True)
def one_registry() -> Iterator[None]:
    """For every file torch parses the source of five hundred operators, into a registry that it then only reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


def outputs(content: bytes, **inputs: Tensor) -> dict[str, NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {k: v.numpy() for k, v in inputs.items()}), strict=True))


ALONE = {"nonlinear": False, "estimator": "exact"}
CASES: list[tuple[str, dict[str, object], list[str]]] = [
    *[(part, {"network": network}, ["mean", "std"]) for network in SHAPES for part in ("encoder", "decoder")],
    *[("decoder", ALONE | {"tractable": link}, ["mean", "std"]) for link in ("fixed", "linear", "exp")],
    ("encoder", {"latent": "bernoulli"}, ["probs"]),
    ("encoder", {"latent": "categorical", "estimator": "rloo"}, ["probs"]),
    ("encoder", {"latent": "full-gaussian", "estimator": "rloo"}, ["mean", "scale_tril"]),
]
TOLD = {"std": "stddev", "probs": "mean"}  # names of torch's for the same


@pytest.mark.parametrize(("part", "settings", "names"), CASES)
def test_networks_say_the_same_of_any_number_of_examples(part: str, settings: dict[str, Any], names: list[str]) -> None:
    torch.manual_seed(0)
    kind = settings.get("network", "mlp")
    sizes, shape = {"hidden": [16]} if kind == "mlp" else {"channels": 4}, torch.Size(SHAPES[kind])
    vae = build_model(ModelConfig(latent_dim=LATENTS, **sizes, **settings), shape, 17).eval()
    for module in vae.modules():  # as if trained: statistics of a batch normalization are not 0 and 1
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    network, name, size = (vae.encoder, "x", shape) if part == "encoder" else (vae.decoder, "z", torch.Size([LATENTS]))
    content = export.to_onnx(network, torch.rand(3, *size), name)
    given = torch.rand(7, *size)
    found = outputs(content, **{name: given})
    assert list(found) == names
    with torch.no_grad():
        said = network(given)
    for output, value in found.items():
        np.testing.assert_allclose(value, getattr(said, TOLD.get(output, output)), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def run(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(digits_run, tmp_path_factory.mktemp("export") / "run")


def exported_in(folder: Path, data: DataConfig, **settings: Any) -> Path:
    """Return the folder of an exported model of two latents, trained on some data."""
    train(folder / "run", data, model=replace(TINY, **settings))
    export.export_run(folder / "run", folder / "out")
    return folder / "out"


def executed(card: str, folder: Path, **names: Any) -> dict[str, Any]:
    """Return the names that the code of a card leaves, run in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for code in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
            exec(compile(code, "card", "exec"), names)
    return names


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    export.export_run(run, run / "export")
    return run / "export"


@pytest.fixture
def as_before(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the run's networks as they were converted before."""
    names = {"x": "encoder.onnx", "z": "decoder.onnx"}
    monkeypatch.setattr(export, "to_onnx", lambda network, example, name: (exported / names[name]).read_bytes())


@pytest.mark.usefixtures("as_before")
def test_a_run_is_exported_with_its_figures(run: Path, exported: Path, cli: Cli) -> None:
    said = cli("export", run)  # over an export of its own
    assert said.count("differs from torch by at most") == 2
    assert "export/model.safetensors" in said.replace("\n", "")
    files = {"model.safetensors", "encoder.onnx", "decoder.onnx", "README.md"}
    assert {path.name for path in exported.iterdir()} == files
    with safe_open(exported / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["figures"]) == json.loads((run / "summary.json").read_text())
    assert metadata["silentgrad"]


@pytest.mark.usefixtures("as_before")
def test_what_cannot_be_exported_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("my own words")
    told = "README.md is there already .*nothing was written"
    refused(export.ExportError, told, lambda: export.export_run(run, tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"README.md": "my own words"}
    faithful = export.to_onnx

    def unfaithful(network: nn.Module, example: Tensor, name: str) -> bytes:
        if name == "z":
            with torch.no_grad():
                next(network.parameters()).mul_(1.001)
        return faithful(network, example, name)

    monkeypatch.setattr(export, "to_onnx", unfaithful)
    told = "decoder differs from torch's by .*nothing was written"
    refused(export.ExportError, told, lambda: export.export_run(run, tmp_path / "out"))
    unfinished = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("export", "summary.json"))
    told = "no finished run: it has no summary.json"
    refused(export.ExportError, told, lambda: export.export_run(unfinished, tmp_path / "out"))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    told = r"needs onnxscript: pip install 'silentgrad\[onnx\]'"
    refused(export.ExportError, told, lambda: export.export_run(run, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("checked", [True, False])
def test_checks_of_distributions_are_as_they_were(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", checked)
    with export._exporting():
        torch.distributions.Normal(0.0, -1.0)
    assert torch.distributions.Distribution._validate_args is checked


def test_the_card_tells_the_hub_what_the_summary_says(run: Path, exported: Path) -> None:
    card = ModelCard.load(exported / "README.md")
    summary = json.loads((run / "summary.json").read_text())
    assert (card.data.library_name, card.data.license, card.data.model_name) == ("silentgrad", "unknown", "run")
    assert "variational-autoencoder" in card.data.tags
    told = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert told == {"bpd": summary["figure"], **summary["metrics"], "kld": summary["kld"]}
    first = card.data.eval_results[0]
    assert (first.dataset_name, first.dataset_split) == ("digits", "test")
    assert (first.metric_name, first.task_type) == ("BPD, bits per dimension", "unconditional-image-generation")
    assert f"| BPD | {summary['figure']:.4f} | bits per dimension |" in card.text
    assert "datasets" not in card.data.to_dict()  # the hub has none of that name
    (command,) = re.findall(r"```bash\n(.*?)\n```", card.text, re.DOTALL)
    assert command == train_command(read_config(run))


def test_the_code_of_the_card_loads_the_model(run: Path, exported: Path) -> None:
    names = executed((exported / "README.md").read_text(), exported)
    expected = load_run(run, load("digits"))
    x = torch.from_numpy(names["x"])
    assert x.shape == (1, 1, 8, 8)
    with torch.no_grad():
        z = expected.encoder(x).mean
        torch.testing.assert_close(names["vae"].encoder(x).mean, z)
        np.testing.assert_allclose(names["p"]["mean"], expected.decoder(z).mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kind", "settings", "unit", "outputs"),
    [("digits", "binarized", BITS, "nats per example", "probs"), ("table.csv", "counts", {}, "nats per entry", "mean")],
)
def test_cards_of_other_observations(
    name: str, kind: Kind, settings: dict[str, Any], unit: str, outputs: str, tmp_path: Path
) -> None:
    """Bits and counts: their unit, no path of this machine, and code that loads them."""
    if name != "digits":
        path = tmp_path / "of somebody" / name
        path.parent.mkdir()
        np.savetxt(path, np.random.RandomState(0).poisson(3.0, (100, 5)), "%d", ",")
        name = str(path)
    out = exported_in(tmp_path, DataConfig(name=name, root=tmp_path, kind=kind, batch_size=256), **settings)
    text = (out / "README.md").read_text()
    result = ModelCard(text).data.eval_results[0]
    told = result.metric_type, result.metric_name, result.dataset_name
    assert told == ("nll", f"NLL, {unit}", Path(name).name)
    for path in out.iterdir():
        assert not any(private in path.read_bytes() for private in (b"of somebody", str(tmp_path).encode())), path.name
    names = executed(text, out)
    assert [next(iter(names["q"])), next(iter(names["p"]))] == [outputs, outputs]


def test_an_exported_table_takes_and_gives_the_numbers_of_its_columns(tmp_path: Path) -> None:
    """A round trip by the card's code alone, against means and deviations of the training rows by NumPy."""
    table = np.random.default_rng(0).normal([1e4, -3.0, 0.5], [2e3, 0.1, 7.0], (60, 3))
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header="first,=second,third", comments="", fmt="%.17g")
    out = exported_in(tmp_path, DataConfig(name=str(tmp_path / "t.csv")), latent="laplace")
    seen = load(str(tmp_path / "t.csv"))
    rows = table[seen.numbers.train.numpy()]
    mean, deviation = rows.mean(0), rows.std(0)
    columns = json.loads((out / "columns.json").read_text())
    assert columns["names"] == ["first", "=second", "third"]
    np.testing.assert_allclose([columns["mean"], columns["deviation"]], [mean, deviation], rtol=1e-12)
    card = re.sub(r"np\.zeros\(.*float32\)", "given", (out / "README.md").read_text())
    assert ModelCard(card).data.eval_results[0].metric_name == "NLL, nats per entry"
    names = executed(card, out, given=table[:5])
    assert [next(iter(names["q"])), next(iter(names["p"]))] == ["loc", "mean"]
    vae = load_run(tmp_path / "run", seen)
    with torch.no_grad():
        decoded = vae.decoder(vae.encoder(torch.from_numpy((table[:5] - mean) / deviation).float()).mean)
    np.testing.assert_allclose(names["reconstruction"], mean + deviation * decoded.mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(names["uncertainty"], deviation * decoded.stddev.numpy(), rtol=1e-4)


def test_the_card_escapes_what_a_run_says(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "a<b>")
    hostile = "1<img src=x>\n# title\n![a](http://b) | c"
    (tmp_path / "a<b>" / "environment.json").write_text(json.dumps({"torch": hostile}))
    data = DataConfig(name="x`<i>`\n```\n<script>", label="```\n<s>")
    text = card_of(tmp_path / "a<b>", {"metrics": {"<u>|": 1.0}}, data=data).text
    prose = re.sub(r"(?s)(?m)^(`{3,})\w*\n.*?^\1$|`[^`\n]*`", "", text)
    assert not re.search(r"<\w|^# title|(?<!\\)\[", prose, re.MULTILINE)
    assert r"torch 1&lt;img src=x&gt; # title !\[a\](http://b) \| c" in prose
    assert r"| &lt;U&gt;\| | 1.0000 |" in prose
    assert "<s>" in text  # of the command
    for name in ("two\nlines: #1", "'q\"uote`"):
        card, title = card_of(shutil.copytree(run, tmp_path / name), {}), name.replace("\n", " ")
        assert card.data.model_name == title
        assert f"\n# {title}\n" in card.text


def card_of(run: Path, changes: dict[str, Any], **settings: Any) -> ModelCard:
    """Return the card of a run if its figures and settings had been others."""
    record = Run.read(run)
    summary, other = replace(record.summary, **changes), read_config(run)._replace(**settings)
    outputs = {"encoder": ["mean"], "decoder": ["mean"]}
    return ModelCard(export.model_card(record, summary, other, load("digits"), outputs))


BOUND = {"exactness": "lower bound", "sampled": 2.5}
CARD_SAYS: list[tuple[dict[str, Any], dict[str, object], str]] = [
    ({}, {}, "estimated by `reparameterized`. At first the encoder was guided by a tractable decoder (`constant`)."),
    ({}, {"tractable": "none"}, "The gradient through the decoder was estimated by `reparameterized`.\n"),
    ({}, {"estimator": "none"}, "The encoder was trained by a tractable decoder (`constant`) alone."),
    ({}, ALONE | {"tractable": "circuit"}, "(`circuit`) in closed form: no latent"),
    ({}, {}, "better: the ELBO, whose expectation was taken by samples."),
    (BOUND, {}, "better: a lower bound of the ELBO, in closed form."),
    (BOUND, {}, "| SAMPLED | 2.5000 | bits per dimension |"),
]


@pytest.mark.parametrize(("changes", "model", "said"), CARD_SAYS)
def test_the_card_says_how_a_model_was_trained(run: Path, changes: dict[str, Any], model: Any, said: str) -> None:
    assert said in card_of(run, changes, model=resolve_model(ModelConfig(**model), "gaussian")).text


def test_the_hub_is_told_of_data_that_it_has_and_of_every_bound(run: Path) -> None:
    card = card_of(run, BOUND, data=DataConfig(name="mnist"), train=TrainConfig(iwae_samples=50))
    assert card.data.datasets == [card.data.eval_results[0].dataset_type] == ["ylecun/mnist"]
    assert [result.metric_type for result in card.data.eval_results] == ["bpd", "sampled", "mse", "kld"]
    assert "better: the importance-weighted bound of 50 samples." in card.text
