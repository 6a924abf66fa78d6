"""A trained model as files that other programs read: weights in safetensors, encoder and decoder in ONNX, and a card.

An exported network gives a distribution's parameters as plain arrays: the encoder the latent's (of Gaussian latents
mean and std, of others what their family names), the decoder the image's mean and std. Each file is run by ONNX
Runtime, with more than one batch size, and its outputs compared with torch's, before anything is written.

The card is a README.md as the Hugging Face hub reads it, by the template `card.md.j2`. YAML in front says what the hub
lists a model by, with the figures of the test as a `model-index`. Of a path to data of one's own, only the last part is
told. Text out of a run's files is escaped.
"""

import contextlib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import CircuitDistribution
from silentgrad.distributions import ZeroInflated
from silentgrad.errors import SilentgradError
from silentgrad.lab.data import NAMES, Counts, Observations, Reals
from silentgrad.lab.data.files import names_or_numbers
from silentgrad.lab.printing import in_a_line, render
from silentgrad.lab.runs.evaluation import seen
from silentgrad.lab.settings import Settings
from silentgrad.lab.settings.documents import train_command
from silentgrad.lab.store.files import write_atomically, write_json_atomically, write_tensors_atomically
from silentgrad.lab.store.folders import ExportFolder, RunFolder
from silentgrad.lab.store.records import Run, Summary, content_of
from silentgrad.lab.tables import Column, Content, Table, markdown
from silentgrad.lab.training.loading import load_run, observations_of, read_config
from silentgrad.latents.families import family_of
from silentgrad.latents.independent import base_of

BATCH = 16
TOLERANCE = 1e-5
INPUTS = {"encoder": "x", "decoder": "z"}
COUNTED = (td.NegativeBinomial, ZeroInflated)
ON_THE_HUB = {"mnist": "ylecun/mnist", "fashion-mnist": "zalando-datasets/fashion_mnist", "cifar10": "uoft-cs/cifar10"}
BOUNDS = {
    "exact": "the ELBO, whose expectation is in closed form",
    "lower bound": "a lower bound of the ELBO, in closed form",
    "approximation": "an approximation of the ELBO, in closed form",
    "sampled": "the ELBO, whose expectation was taken by samples",
}


class ExportError(SilentgradError):
    """A model cannot be exported, or the exported file does something else than the model."""


class Parameters(nn.Module):
    """An encoder or a decoder whose output is the parameters of its distribution."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(outputs_of(self.network(x)).values())


def outputs_of(distribution: td.Distribution) -> dict[str, Tensor]:
    """Return the parameters of a distribution by name, as its family gives them; an image is told like a latent.

    A circuit has too many to tell, and most counts are of no family of latents: mean and deviation stand for them.
    """
    if isinstance(distribution, CircuitDistribution) or isinstance(base_of(distribution), COUNTED):
        return {"mean": distribution.mean, "std": distribution.stddev}
    return family_of(distribution).outputs(distribution)


def export_run(folder: Path, output: Path) -> dict[str, float]:
    """Write `model.safetensors`, `encoder.onnx` and `decoder.onnx` of a finished run, and a card, `README.md`.

    Weights and networks are in single precision. Of a table, `columns.json` has the names of the columns and, where
    they were standardized, their means and standard deviations in the training rows. If anything is wrong, nothing is
    written. Returned is the largest difference between torch and ONNX Runtime for each network, relative to the largest
    value.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ExportError(f"export needs {package}: pip install 'silentgrad[onnx]'") from error
    run = Run.read(folder)
    if run.summary is None:
        raise ExportError(f"{folder} holds no finished run: it has no {RunFolder(folder).summary.name}")
    settings = read_config(folder)
    observations = observations_of(settings)
    if observations.rows("test").between(0, 1).side_info:
        raise ExportError(f"an exported network takes x alone, and {observations.name} has more beside it")
    vae = load_run(folder, observations).float()  # ONNX Runtime lacks some operators in double precision
    x, _ = seen(observations, observations.rows("test").between(0, BATCH), torch.empty(0))
    with torch.no_grad():
        z = vae.encoder(x).mean
    decoder = vae.decoder
    assert isinstance(decoder, nn.Module)  # as all are that a configuration can name
    files, differences, outputs = {}, {}, {}
    for name, network, example in (("encoder", vae.encoder, x), ("decoder", decoder, z)):
        files[name] = to_onnx(network, example, INPUTS[name])
        differences[name] = largest_difference(files[name], network, example)
        if not differences[name] <= TOLERANCE:
            raise ExportError(
                f"ONNX Runtime's {name} differs from torch's by {differences[name]:.1e} of the largest value, "
                f"more than {TOLERANCE:.0e}; nothing was written"
            )
        outputs[name] = list(outputs_of(network(example)))
    place = ExportFolder(output)
    card = model_card(run, run.summary, settings, observations, outputs).encode()
    if place.card.exists() and place.card.read_bytes() != card:  # somebody may have written it, or changed it, by hand
        raise ExportError(
            f"{place.card} is there already and says something else: move it away, or choose another --folder; nothing "
            "was written"
        )
    output.mkdir(parents=True, exist_ok=True)
    metadata = {
        "silentgrad": version("silentgrad"),
        "config": json.dumps({name: asdict(group) for name, group in without_folders(settings)._asdict().items()}),
        "figures": json.dumps(content_of(run.summary)),
        "event_shape": json.dumps(list(observations.event_shape)),
        "levels": str(observations.resolution),
    }
    write_tensors_atomically(place.weights, vae.state_dict(), metadata)
    if isinstance(observations, Reals | Counts):
        names = names_or_numbers(observations.columns, observations.event_shape.numel())
        columns: dict[str, object] = {"names": list(names)}
        if isinstance(observations, Reals):
            columns |= {"mean": observations.mean.tolist(), "deviation": observations.deviation.tolist()}
        write_json_atomically(place.columns, columns)
    for name, content in files.items():
        write_atomically(place.network(name), content)
    write_atomically(place.card, card)
    return differences


def to_onnx(network: nn.Module, example: Tensor, name: str) -> bytes:
    """Return a network of one input, its first dimension free, as the content of an ONNX file."""
    outputs = list(outputs_of(network(example)))
    with _exporting():
        program = torch.onnx.export(
            Parameters(network).eval(),
            (example,),
            dynamo=True,
            verbose=False,
            input_names=[name],
            output_names=outputs,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    assert program is not None
    return program.model_proto.SerializeToString()


@torch.no_grad()
def largest_difference(content: bytes, network: nn.Module, example: Tensor) -> float:
    """Return the largest difference between ONNX Runtime and torch, for a whole batch and for one example.

    Deviations are compared by their reciprocals: those of the linear link, 1 / |v|, have no bound.
    """
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    differences = []
    for batch in (example, example[:1]):
        truths = outputs_of(network(batch))
        for (name, truth), found in zip(truths.items(), session.run(None, {source.name: batch.numpy()}), strict=True):
            value = torch.from_numpy(found)
            if name == "std":
                value, truth = value.reciprocal(), truth.reciprocal()
            differences.append(((value - truth).abs().max() / truth.abs().max()).item())
    return max(differences)


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Make distributions without checks, which no graph can hold; and without the exporter's remarks about itself."""
    log, validate = logging.getLogger("torch.onnx"), td.Normal(0.0, 1.0)._validate_args
    level = log.level
    log.setLevel(logging.ERROR)
    td.Distribution.set_default_validate_args(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
        try:
            yield
        finally:
            log.setLevel(level)
            td.Distribution.set_default_validate_args(validate)


def model_card(
    run: Run, summary: Summary, settings: Settings, observations: Observations, outputs: Mapping[str, Sequence[str]]
) -> str:
    """Return the text of an exported model's README.md; `outputs` names the arrays that each network gives."""
    published, config, known = without_folders(settings), settings.model, run.environment
    name, data, samples = in_a_line(run.folder.resolve().name), published.data.name, settings.train.iwae_samples
    sampled = {} if summary.sampled is None else {"sampled": summary.sampled}
    figures = {summary.unit.metric: summary.figure, **sampled, **summary.metrics, "kld": summary.kld}
    rows: list[list[Content]] = []
    metrics = []  # what the hub lists a model by
    for metric, value in figures.items():
        word, unit = summary.unit.title_of(metric), summary.unit.counted(metric)
        rows.append([word, value, unit])
        metrics.append({"type": metric, "value": value, "name": ", ".join(filter(None, [word, unit]))})
    rows.append(["active latents", summary.active, f"of {config.latent_dim}"])
    task = "unconditional-image-generation" if observations.pictured else "other"
    dataset = {"type": ON_THE_HUB.get(data, data), "name": data, "split": "test"}
    front: dict[str, Any] = {
        "license": "unknown",
        "library_name": "silentgrad",
        "tags": ["silentgrad", "variational-autoencoder", "safetensors", "onnx"],
        **({"datasets": [ON_THE_HUB[data]]} if data in ON_THE_HUB else {}),
        "metrics": [metric["type"] for metric in metrics],
        "model-index": [{"name": name, "results": [{"task": {"type": task}, "dataset": dataset, "metrics": metrics}]}],
    }
    return render(
        "card.md.j2",
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True),
        model={"name": name, "data": data, "settings": settings, "observations": observations, "outputs": outputs},
        config=config,
        summary=summary,
        shape=list(observations.event_shape),
        command=train_command(published),
        versions=[f"{part} {known[part]}" for part in ("silentgrad", "torch", "python") if part in known],
        figures=markdown(Table("", [Column("figure"), Column("value", 4), Column("unit")], rows)).strip(),
        bound=BOUNDS[summary.exactness] if samples == 1 else f"the importance-weighted bound of {samples} samples",
        standardized=isinstance(observations, Reals),
        files=ExportFolder(Path()),
    )


def without_folders(settings: Settings) -> Settings:
    """Return settings that can be published: data of one's own are told by the last part of their path."""
    name = settings.data.name
    if name not in NAMES:
        name = in_a_line(Path(name).resolve().name)
    return settings._replace(data=replace(settings.data, name=name, root=None))
