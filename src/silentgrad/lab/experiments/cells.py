"""The runs behind the paper's tables: a cell is one run, its settings are those of a recipe.

Four scales: `paper` as the paper says; `conv`, its convolutional networks with few channels, on MNIST and with learned
variance only; `cpu`, fully connected networks for two processor cores; and `smoke`, which only shows that everything
works: `cpu` on the embedded digits, two epochs, a handful of units.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.recipes import FIXED, GridCell
from silentgrad.lab.settings.documents import with_options
from silentgrad.lab.training import Settings

Scale = Literal["smoke", "cpu", "conv", "paper"]
SMOKE_EPOCHS = 2
TITLES = {**paper.DATASETS, "fashion-mnist": "Fashion-MNIST", "digits": "digits"}  # of the datasets, in print
# Of the fixed-variance runs, whose gradients are measured there; `conv` has none of these.
KEPT_EPOCHS: dict[Scale, list[int]] = {"smoke": [1, 2], "cpu": [1, 5, 20], "conv": [], "paper": paper.VARIANCE_EPOCHS}


class Request(NamedTuple):
    """A request for a table."""

    scale: Scale  # size of the runs
    seeds: int  # number of runs of each kind
    datasets: Sequence[str] = ("mnist",)  # the datasets of tables that have several
    root: Path | None = None  # folder that holds the datasets
    tune: bool = False  # whether options are chosen by validation with one seed, and the runs made with others

    @property
    def comparable(self) -> bool:
        """True if the figures may be judged, and stand beside the paper's."""
        return self.scale != "smoke"


class Cell(NamedTuple):
    """One run of a table."""

    dataset: str  # name of the dataset in the recipes
    latent: str  # name of the latent's family
    method: str  # name of the estimator, followed by `-sg` if a linear decoder guides
    seed: int  # seed of the run
    variant: str  # what else tells its kind, as in fixed; empty if nothing does
    settings: Settings  # all settings of the run
    point: tuple[tuple[str, Any], ...] = ()  # options that were tuned, each with its value

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        kind = "-".join(filter(None, (self.dataset, self.variant, self.latent, self.method)))
        tuned = "".join(f"-{option.partition('.')[2]}{value}" for option, value in self.point)
        return f"{kind.replace(':', '-')}{tuned}-seed{self.seed}"

    def at(self, point: Mapping[str, Any], seed: int) -> "Cell":
        """Return the run with values of some options, and with another seed."""
        settings = with_options(self.settings, {**point, "train.seed": seed})
        return self._replace(settings=settings, seed=seed, point=tuple(point.items()))

    @property
    def data(self) -> str:
        """The name of the run's data in print; a stand-in for other data than MNIST says for which."""
        used = self.settings.data.name
        if used == self.dataset:
            return TITLES[used]
        return used if self.dataset == "mnist" else f"{used} for {TITLES[self.dataset]}"

    @property
    def label(self) -> str:
        """The run's name in curves and pictures."""
        return f"{self.data} {paper.BLOCKS[self.latent].lower()} {paper.in_print(self.method)}"


def fixed_cells(request: Request) -> list[Cell]:
    """Return runs of a linear decoder with fixed variance on MNIST."""
    return _cells(request, [("mnist", *key) for key in paper.FIXED], FIXED)


def learned_cells(request: Request) -> list[Cell]:
    """Return runs with learned variance: each estimator alone and guided, and the guide alone."""
    return _cells(request, [(dataset, *key) for dataset, key in product(request.datasets, paper.COMPARED)])


def _cells(request: Request, keys: Iterable[tuple[str, str, str]], variant: str = "") -> list[Cell]:
    cells, keep = [], KEPT_EPOCHS[request.scale] if variant == FIXED else []
    scale = "cpu" if request.scale == "smoke" else request.scale  # smoke has no recipes of its own
    for key, seed in product(keys, range(request.seeds)):
        settings = seeded(GridCell(*key, scale, variant).settings, request.scale, seed)
        cells.append(Cell(*key, seed, variant, with_options(settings, {"train.keep": [*keep]})))
    return cells


def seeded(settings: Settings, scale: Scale, seed: int) -> Settings:
    """Return the settings with a seed; for the smoke scale, made as small as that is."""
    if scale == "smoke":
        small: dict[str, Any] = {"data.name": "digits", "model.latent_dim": 4, "train.epochs": SMOKE_EPOCHS}
        small |= {"train.lr": 5e-4, "train.lr_network": None}
        if settings.train.lr_precision:  # 0 for what is not trained
            small["train.lr_precision"] = None
        if settings.model.network == "mlp":
            small["model.hidden"] = [8]
        if settings.model.cutoff is not None:
            small["model.cutoff"] = SMOKE_EPOCHS
        settings = with_options(settings, small)
    return with_options(settings, {"train.seed": seed})
