"""A trained model as files that other programs read: weights in safetensors, encoder and decoder in ONNX, and a card.

An exported network gives a distribution's parameters as plain arrays: the encoder the latent's (of Gaussian latents
mean and std, of others what their family names), the decoder the image's mean and std. Each file is run by ONNX
Runtime, with more than one batch size, and its outputs compared with torch's, before anything is written.
"""

import contextlib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import CircuitDistribution
from silentgrad.distributions import ZeroInflated
from silentgrad.errors import SilentgradError
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations
from silentgrad.lab.runs.folder import ExportFolder, RunFolder
from silentgrad.lab.runs.records import Run, write_atomically, write_tensors_atomically
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training.card import Model, model_card
from silentgrad.lab.training.loading import load_run, observations_of, read_config
from silentgrad.latents.families import family_of
from silentgrad.latents.independent import base_of

BATCH = 16
TOLERANCE = 1e-5
INPUTS = {"encoder": "x", "decoder": "z"}
COUNTED = (td.NegativeBinomial, ZeroInflated)


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
    """The parameters of a distribution by name, as its family gives them; an image is told like a latent.

    A circuit has too many to tell, and most counts are of no family of latents: mean and deviation stand for them.
    """
    if isinstance(distribution, CircuitDistribution) or isinstance(base_of(distribution), COUNTED):
        return {"mean": distribution.mean, "std": distribution.stddev}
    return family_of(distribution).outputs(distribution)


def export_run(folder: Path, output: Path) -> dict[str, float]:
    """Writes `model.safetensors`, `encoder.onnx` and `decoder.onnx` of a finished run, and a card, `README.md`.

    Weights and networks are in single precision.

    Returns:
        The largest difference between torch and ONNX Runtime for each of the two networks, relative to the largest
        value.

    Raises:
        ExportError: The difference is too large, the packages are missing, the run is not finished, or another
            README.md is in the way; nothing is written then.
    """
    _require_packages()
    run = Run.read(folder)
    if run.summary is None:
        raise ExportError(f"{folder} holds no finished run: it has no {RunFolder(folder).summary.name}")
    settings = read_config(folder)
    observations = observations_of(settings)
    if observations.rows("test").between(0, 1).beside:
        raise ExportError(f"an exported network takes x alone, and {observations.name} has more beside it")
    vae = load_run(folder, observations).float()  # ONNX Runtime lacks some operators in double precision
    files, differences, outputs = {}, {}, {}
    for name, (network, example) in _networks(vae, observations).items():
        files[name] = to_onnx(network, example, INPUTS[name])
        differences[name] = largest_difference(files[name], network, example)
        _require_same(name, differences[name])
        outputs[name] = list(outputs_of(network(example)))
    place = ExportFolder(output)
    card = model_card(Model(run, settings, observations, outputs), run.summary).encode()
    _require_no_other(place.card, card)
    output.mkdir(parents=True, exist_ok=True)
    write_tensors_atomically(place.weights, vae.state_dict(), _metadata(run, run.summary, observations))
    for name, content in files.items():
        write_atomically(place.network(name), content)
    write_atomically(place.card, card)
    return differences


def _require_same(name: str, difference: float) -> None:
    """Refuses a network that does something else in ONNX Runtime than in torch."""
    if not difference <= TOLERANCE:
        raise ExportError(
            f"ONNX Runtime's {name} differs from torch's by {difference:.1e} of the largest value, "
            f"more than {TOLERANCE:.0e}; nothing was written"
        )


def _require_no_other(path: Path, content: bytes) -> None:
    """Refuses to replace a page that somebody may have written, or changed, by hand."""
    if path.exists() and path.read_bytes() != content:
        raise ExportError(
            f"{path} is there already and says something else: move it away, or choose another --folder; nothing was "
            "written"
        )


def to_onnx(network: nn.Module, example: Tensor, name: str) -> bytes:
    """A network of one input, its first dimension free, as the content of an ONNX file."""
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
    """The largest difference between ONNX Runtime and torch, relative to the largest value.

    Both a whole batch and one example are compared.
    Deviations are compared by their reciprocals: those of the linear link, 1 / |v|, have no bound.
    """
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    differences = []
    for batch in (example, example[:1]):
        results = session.run(names, {source.name: batch.numpy()})
        for name, found, expected in zip(names, results, Parameters(network)(batch), strict=True):
            value, truth = torch.from_numpy(found), expected
            if name == "std":
                value, truth = value.reciprocal(), truth.reciprocal()
            differences.append(((value - truth).abs().max() / truth.abs().max()).item())
    return max(differences)


def _networks(vae: GuidedVAE, observations: Observations) -> dict[str, tuple[nn.Module, Tensor]]:
    """Encoder and decoder, each with an example of what it takes."""
    rows = observations.rows("test").between(0, BATCH)
    x = observations.as_seen(rows, torch.Generator().manual_seed(0)).float()
    with torch.no_grad():
        z = vae.encoder(x).mean
    decoder = vae.decoder
    assert isinstance(decoder, nn.Module)  # as all are that a configuration can name
    return {"encoder": (vae.encoder, x), "decoder": (decoder, z)}


def _metadata(run: Run, summary: Summary, observations: Observations) -> dict[str, str]:
    return {
        "silentgrad": version("silentgrad"),
        "config": json.dumps(run.config),
        "figures": json.dumps(summary.as_json()),
        "event_shape": json.dumps(list(observations.event_shape)),
        "levels": str(observations.resolution),
    }


def _require_packages() -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ExportError(f"export needs {name}: pip install 'silentgrad[onnx]'") from error


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Distributions without checks, which no graph can hold; and without the exporter's remarks about itself."""
    log = logging.getLogger("torch.onnx")
    level, validate = log.level, td.Distribution._validate_args
    log.setLevel(logging.ERROR)
    td.Distribution.set_default_validate_args(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
        try:
            yield
        finally:
            log.setLevel(level)
            td.Distribution.set_default_validate_args(validate)
