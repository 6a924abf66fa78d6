"""The card of an exported model: a README.md as the Hugging Face hub reads it.

YAML in front says what the hub lists a model by, with the figures of the test as a `model-index`. The text tells what
was trained, on what, by which command, the figures with their units, how to load the model, and its limits. Of a path
to data of one's own, only the last part is told.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from silentgrad.lab.data import NAMES, Observations
from silentgrad.lab.runs.folder import ExportFolder
from silentgrad.lab.runs.records import Run
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training.config import GROUPS, Settings

ON_THE_HUB = {"mnist": "ylecun/mnist", "fashion-mnist": "zalando-datasets/fashion_mnist", "cifar10": "uoft-cs/cifar10"}
UNITS = {"mse": "squared units of x, summed over outputs"}  # of metrics beside the bound; those of one's own tell none
BOUNDS = {
    "exact": "the ELBO, whose expectation is in closed form",
    "lower bound": "a lower bound of the ELBO, in closed form",
    "approximation": "an approximation of the ELBO, in closed form",
    "sampled": "the ELBO, whose expectation was taken by samples",
}


class Figure(NamedTuple):
    """A number of the test.

    Args:
        name: Its name in a run's files.
        value: The number.
        unit: What it is measured in.
    """

    name: str
    value: float
    unit: str


class Model(NamedTuple):
    """An exported model and what is known of it.

    Args:
        run: Its run.
        settings: The run's settings.
        observations: What it was trained on.
        outputs: Names of the arrays that each exported network gives.
    """

    run: Run
    settings: Settings
    observations: Observations
    outputs: Mapping[str, Sequence[str]]

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return _in_a_line(self.run.folder.resolve().name)

    @property
    def data(self) -> str:
        """The name of the data, without the folders of a path."""
        return _told(self.settings.data.name)


def model_card(model: Model, summary: Summary) -> str:
    """The text of an exported model's README.md.

    Args:
        model: The model.
        summary: What its run came to.
    """
    figures = _figures(summary)
    front = yaml.safe_dump(_front_matter(model, figures), sort_keys=False, allow_unicode=True)
    sections = [
        f"---\n{front}---",
        _introduction(model, summary),
        _training(model, summary),
        _table_of(figures, model, summary),
        _loading(model),
        _limits(model),
    ]
    return "\n\n".join(sections) + "\n"


def _figures(summary: Summary) -> list[Figure]:
    unit = summary.unit.of.strip() or "bits per dimension"
    figures = [Figure(summary.unit.metric, summary.figure, unit)]
    if summary.sampled is not None:
        figures.append(Figure("sampled", summary.sampled, unit))
    for name, value in summary.metrics.items():
        figures.append(Figure(name, value, UNITS.get(name, "")))
    figures.append(Figure("kld", summary.kld, "nats per example"))
    return figures


def _front_matter(model: Model, figures: Sequence[Figure]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "license": "unknown",
        "library_name": "silentgrad",
        "tags": ["silentgrad", "variational-autoencoder", "safetensors", "onnx"],
    }
    if model.data in ON_THE_HUB:
        content["datasets"] = [ON_THE_HUB[model.data]]
    content["metrics"] = [figure.name for figure in figures]
    content["model-index"] = [{"name": model.name, "results": [_result(model, figures)]}]
    return content


def _result(model: Model, figures: Sequence[Figure]) -> dict[str, Any]:
    """The figures in the form of a `model-index`."""
    task = "other"
    if model.observations.pictured:
        task = "unconditional-image-generation"
    metrics = []
    for figure in figures:
        metrics.append({"type": figure.name, "value": figure.value, "name": _titled(figure)})
    data = {"type": ON_THE_HUB.get(model.data, model.data), "name": model.data, "split": "test"}
    return {"task": {"type": task}, "dataset": data, "metrics": metrics}


def _titled(figure: Figure) -> str:
    if not figure.unit:
        return figure.name.upper()
    return f"{figure.name.upper()}, {figure.unit}"


def _introduction(model: Model, summary: Summary) -> str:
    config = model.settings.model
    shape = " x ".join(map(str, model.observations.event_shape))
    return f"""# {model.name}

A variational autoencoder, trained on `{model.data}`: {summary.training_examples:,} examples of shape {shape}.
It has {summary.parameters:,} parameters and {config.latent_dim} latents, of the family `{config.latent}`."""


def _training(model: Model, summary: Summary) -> str:
    return f"""## Training

```bash
{_command(model.settings)}
```

These are the weights of epoch {summary.best_epoch} of {summary.epochs}, the best by validation.
{_gradient(model.settings)}
The training took {summary.seconds:.1f} seconds, with {_versions(model.run)}."""


def _versions(run: Run) -> str:
    """What a run was made with, as far as that was recorded."""
    versions = []
    for name in ("silentgrad", "torch", "python"):
        if name in run.environment:
            versions.append(f"{name} {run.environment[name]}")
    return ", ".join(versions) or "versions that were not recorded"


def _command(settings: Settings) -> str:
    """The command that trains with these settings; what is not named is the default."""
    words = ["silentgrad", "train", "--data.name", _told(settings.data.name)]
    for group, values in settings._asdict().items():
        defaults = asdict(GROUPS[group]())
        for name, value in asdict(values).items():
            if value != defaults[name] and (group, name) not in (("data", "name"), ("data", "root")):
                words += [f"--{group}.{name}", _word(value)]
    return shlex.join(words)


def _word(value: object) -> str:
    """A setting's value as a word of the command line."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def _gradient(settings: Settings) -> str:
    """How the encoder came by its gradient."""
    decoders = settings.model.decoders
    guide = f"a tractable decoder (`{decoders.tractable}`)"
    if decoders.estimator == "exact":
        return f"The encoder's gradient was that of {guide} in closed form: no latent was sampled."
    if decoders.estimator == "none":
        return f"The encoder was trained by {guide} alone."
    sentence = f"The gradient through the decoder was estimated by `{decoders.estimator}`."
    if decoders.guided:
        sentence += f" At first the encoder was guided by {guide}."
    return sentence


def _table_of(figures: Sequence[Figure], model: Model, summary: Summary) -> str:
    lines = ["## Figures of the test", "", "| figure | value | unit |", "|---|---|---|"]
    for figure in figures:
        lines.append(f"| {figure.name.upper()} | {figure.value:.4f} | {figure.unit} |")
    lines.append(f"| active latents | {summary.active} | of {model.settings.model.latent_dim} |")
    lines += ["", f"{summary.unit.title} is the bound, the lower the better: {_bound(model.settings, summary)}."]
    if summary.sampled is not None:
        lines.append("SAMPLED is the ELBO by samples, in the same unit.")
    return "\n".join(lines)


def _bound(settings: Settings, summary: Summary) -> str:
    """What the bound of the test is."""
    samples = settings.train.iwae_samples
    if samples > 1:
        return f"the importance-weighted bound of {samples} samples"
    return BOUNDS[summary.exactness]


def _loading(model: Model) -> str:
    shape = tuple(model.observations.event_shape)
    likelihood = model.settings.model.likelihood or model.observations.likelihoods[0]
    latent, decoded = model.outputs["encoder"], model.outputs["decoder"]
    weights = ExportFolder(Path()).weights
    return f"""## How to load it

Without silentgrad, by ONNX Runtime; x is {model.observations.seen_as}:

```python
import numpy as np
import onnxruntime


def run(file, **inputs):
    session = onnxruntime.InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs)))


x = np.zeros((1, {", ".join(map(str, shape))}), dtype=np.float32)
q = run("encoder.onnx", x=x)  # of each latent: {", ".join(latent)}
p = run("decoder.onnx", z=q["{latent[0]}"])  # of each output: {", ".join(decoded)}
```

With silentgrad and its extra `lab`, as a `silentgrad.GuidedVAE`:

```python
import json

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from silentgrad.lab.training import ModelConfig, build_model

with safe_open("{weights}", "pt") as file:
    about = file.metadata()
config = ModelConfig(**json.loads(about["config"])["model"])
vae = build_model(config, torch.Size({list(shape)}), int(about["levels"]), "{likelihood}").eval()
vae.load_state_dict(load_file("{weights}"))
```"""


def _limits(model: Model) -> str:
    return f"""## Limits

- The figures are those of one training, with seed {model.settings.train.seed}, on the test split of `{model.data}`.
  Of other data nothing is known.
- The networks take x alone, in this shape and scale, in single precision.
- The model repeats what its training data hold, their gaps and biases too.
- `license: unknown` is for whoever publishes the weights to replace; the license of the data may have a say in it."""


def _told(data: str) -> str:
    """The name of data: a path is told by its last part."""
    if data in NAMES:
        return data
    return _in_a_line(Path(data).resolve().name)


def _in_a_line(name: str) -> str:
    """The name of a file or folder, which may hold anything, as text of one line."""
    return " ".join(name.split())
