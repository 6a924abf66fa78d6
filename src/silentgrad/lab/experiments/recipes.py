"""Recipes: complete settings by name, each with a header that says what to expect of it.

Recipes of the circuits and of counts are YAML files of the package, with their header in comments. The cells of the
paper's tables are made here from their names, DATASET-LATENT-METHOD-SCALE or mnist-fixed-LATENT-METHOD-SCALE. A method
that ends in `-sg` has the paper's guide: precision linear in z, Taylor's log term, a random start. One that ends in
`-ours` has ours. The scale `paper` is as the paper says; `cpu` and `conv` change the size of the networks and the
length of the training, in which annealing and cut-off keep their part: constant rates, no clipping.

What the paper leaves open is chosen here: channels 32 (MNIST) and 64 (strided), latent sizes of the learned-variance
models. The Gumbel temperature and REINFORCE's decay are the estimators' defaults. A guide's weight falls from step to
step, in the paper from epoch to epoch.
"""

import re
from dataclasses import replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from silentgrad.errors import SilentgradError
from silentgrad.lab.experiments import paper
from silentgrad.lab.settings import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.settings.documents import read_settings, with_options
from silentgrad.registry import did_you_mean

FOLDER = Path(str(files("silentgrad.lab") / "recipes"))
NOT_MEASURED = "not measured"
FIXED = "fixed"  # variant of the runs with a fixed variance
BATCH = {"mnist": 64, "imagenet32": 128, "cifar10": 256}
EPOCHS = {"mnist": 200, "imagenet32": 100, "cifar10": 2000}
LATENTS = {"mnist": 200, "imagenet32": 1024, "cifar10": 1024}
REDUCED: dict[str, dict[str, Any]] = {  # what the scales below the paper's change, and nothing else
    "cpu": {
        "model.network": "mlp",
        "model.hidden": [256],
        "model.channels": ModelConfig().channels,  # which the network does not have
        "model.latent_dim": 64,
        "train.epochs": 20,
    },
    # An epoch of the paper's networks then takes less than a minute on one core.
    "conv": {"model.network": "conv", "model.channels": 8, "model.latent_dim": 64, "train.epochs": 12},
}
RATE = 5e-4  # of the paper's four; its search is that of `silentgrad reproduce --tune`
ANNEALING = 0.01  # an epoch of the paper's: one of its four rates
CUTOFFS = {"mnist": 100, "imagenet32": 50, "cifar10": 100}  # the paper's epoch from which on an encoder is frozen


class RecipeError(SilentgradError):
    """There is no such recipe."""


def recipe_names() -> list[str]:
    """Return the names of all recipes, those that were measured first."""
    names = {path.stem for path in FOLDER.glob("*.yaml")} | set(GRID)
    return sorted(names, key=lambda name: (recipe_header(name)["time"] == NOT_MEASURED, name))


def recipe_header(name: str) -> dict[str, str]:
    """Return what a recipe says of itself: `what` it is, its `command`, what it `expects` and its `time`."""
    path = _file(name)
    if path.exists():
        return dict(re.findall(r"^# (\w+): (.*)$", path.read_text(), re.MULTILINE))
    return _cell(name).header


def read_recipe(name: str) -> Settings:
    """Return a recipe's settings."""
    path = _file(name)
    if path.exists():
        return read_settings(path)
    return _cell(name).settings


def _file(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


class GridCell(NamedTuple):
    """A cell of the paper's tables at one scale."""

    dataset: str  # name of the dataset
    latent: str  # name of the latents' family
    method: str  # name of the estimator, followed by `-sg` if a linear decoder guides
    scale: str  # size of the run
    variant: str = ""  # FIXED of a linear decoder with a fixed variance; empty of models that learn it

    @property
    def name(self) -> str:
        """The recipe's name."""
        return "-".join(filter(None, (self.dataset, self.variant, self.latent, self.method, self.scale)))

    @property
    def header(self) -> dict[str, str]:
        """The recipe's header as long as nobody has measured it."""
        figure = None
        if self.scale == "paper":
            learned = paper.learned("bpd", self.dataset, self.latent, self.method)
            figure = paper.FIXED[self.latent, self.method].bpd if self.variant else learned and learned.mean
        kind = "fixed variance 0.01, linear decoder" if self.variant else "learned variance"
        method = self.method.replace(paper.GUIDED, " + SG").replace(paper.OURS, " + our guide")
        networks = ", the paper's convolutions with few channels" if self.scale == "conv" else ""
        return {
            "what": f"{self.dataset}, {kind}, {self.latent} latents, {method}{networks}",
            "command": f"silentgrad train --recipe {self.name}",
            "expects": NOT_MEASURED if figure is None else f"test BPD {figure} (the paper)",
            "time": NOT_MEASURED,
        }

    @property
    def settings(self) -> Settings:
        """All settings of the run."""
        return _fixed(self) if self.variant else _learned(self)


def _fixed(cell: GridCell) -> Settings:
    """Return a linear decoder with a fixed variance, on MNIST."""
    estimator = "exact" if cell.method == "silent" else cell.method
    model = ModelConfig(cell.latent, 200, tractable="fixed", variance=0.01, nonlinear=False, estimator=estimator)
    model = replace(model, network="conv", channels=32)
    settings = Settings(DataConfig("mnist", batch_size=64), model, TrainConfig(epochs=500, lr=RATE))
    if cell.scale == "paper":
        return settings
    return with_options(settings, {"model.network": "mlp", "model.hidden": [512], "train.epochs": 25})


def _learned(cell: GridCell) -> Settings:
    """Return a network that learns its variance, alone or guided, as in the paper but for the size of a scale."""
    mnist, estimator = cell.dataset == "mnist", paper.alone(cell.method)
    model = ModelConfig(cell.latent, LATENTS[cell.dataset], tractable="none", nonlinear=True, estimator=estimator)
    model = replace(model, network="conv" if mnist else "strided", channels=32 if mnist else 64)
    train = TrainConfig(epochs=full_epochs(cell.dataset, cell.method), lr=RATE)
    settings = Settings(DataConfig(cell.dataset, batch_size=BATCH[cell.dataset]), model, train)
    settings = with_options(settings, REDUCED.get(cell.scale, {}))
    return with_options(settings, _guide(cell, settings.train.epochs))


def full_epochs(dataset: str, method: str) -> int:
    """Return the number of epochs in the paper."""
    return 300 if dataset == "mnist" and paper.alone(method) == "reinforce" else EPOCHS[dataset]


def _guide(cell: GridCell, epochs: int) -> dict[str, Any]:
    """Return the options of the paper's guide, or of ours: it starts as probabilistic PCA, with an exact log term."""
    if cell.method == paper.alone(cell.method):
        return {}
    follows = paper.alone(cell.method) == "none"  # the encoder has nothing but the guide
    full = full_epochs(cell.dataset, cell.method)
    length: dict[str, Any] = {"model.guided": round(1 / (ANNEALING * full), 3)}
    if follows:
        length = {"model.cutoff": max(1, round(CUTOFFS[cell.dataset] * epochs / full))}
    if cell.method.endswith(paper.GUIDED):
        return {"model.tractable": "linear", "model.log_term": "taylor", "model.start": "random", **length}
    if not follows:
        return {"model.tractable": "constant", "model.start": "ppca"}
    # With bits the exponential link would take ten times as long.
    return {"model.tractable": "exp" if cell.latent == "gaussian" else "linear", "model.start": "ppca", **length}


def _grid() -> list[GridCell]:
    cells = [GridCell("mnist", *key, "conv") for key in paper.COMPARED]
    for scale in ("paper", "cpu"):
        cells += [GridCell("mnist", *key, scale, FIXED) for key in paper.FIXED]
        cells += [GridCell(dataset, *key, scale) for dataset, key in product(paper.DATASETS, paper.COMPARED)]
    return cells


GRID = {cell.name: cell for cell in _grid()}


def _cell(name: str) -> GridCell:
    if name not in GRID:
        hint = did_you_mean(name, recipe_names())
        raise RecipeError(f"there is no recipe {name!r}.{hint} `silentgrad recipes --all true` lists them all.")
    return GRID[name]
