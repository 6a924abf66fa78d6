"""The runs behind the paper's tables: a cell is one run, its settings are those of a recipe.

Four scales: `paper` as the paper says; `conv`, its convolutional networks with few channels, on MNIST and with learned
variance only; `cpu`, fully connected networks for two processor cores; and `smoke`, which only shows that everything
works: `cpu` on the embedded digits, two epochs, a handful of units.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any, Literal, NamedTuple

from silentgrad.lab.data import kind_of
from silentgrad.lab.experiments import paper
from silentgrad.lab.training import Settings, TrainConfig
from silentgrad.lab.training.recipes import read_recipe

Scale = Literal["smoke", "cpu", "conv", "paper"]
SCHEDULE = 0.3  # where a scheduled variance starts
SMOKE_EPOCHS = 2
TITLES = {**paper.DATASETS, "fashion-mnist": "Fashion-MNIST"}  # of the datasets, in print
# Of the fixed-variance runs, whose gradients are measured there; `conv` has none of these.
KEPT_EPOCHS: dict[Scale, list[int]] = {"smoke": [1, 2], "cpu": [1, 5, 20], "conv": [], "paper": [1, 50, 250]}


class Cell(NamedTuple):
    """One run of a table.

    Args:
        dataset: Name of the dataset in the recipes.
        latent: Name of the latent's family.
        method: Name of the estimator, followed by `-sg` if a linear decoder guides.
        seed: Seed of the run.
        scheduled: Whether a fixed variance is annealed; None if the variance is learned.
        settings: All settings of the run.
        title: What curves call the run; the names of the paper if empty.
    """

    dataset: str
    latent: str
    method: str
    seed: int
    scheduled: bool | None
    settings: Settings
    title: str = ""

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        kind = self.dataset
        if self.scheduled is not None:
            kind += "-fixed"
        if self.scheduled:
            kind += "-scheduled"
        return f"{kind}-{self.latent}-{self.method}-seed{self.seed}"

    @property
    def data(self) -> str:
        """What the run's data are called in print; what stands in for other data than MNIST says for which."""
        used = self.settings.data.name
        if used == self.dataset:
            return TITLES[used]
        if self.dataset == "mnist":
            return used
        return f"{used} for {TITLES[self.dataset]}"


def fixed_cells(scale: Scale, seeds: int) -> list[Cell]:
    """A linear decoder with fixed variance on MNIST, each method with and without a schedule of the variance."""
    cells = []
    for (latent, method), scheduled, seed in product(paper.FIXED, (False, True), range(seeds)):
        settings = _fixed(latent, method, scale, seed, scheduled)
        cells.append(Cell("mnist", latent, method, seed, scheduled, settings))
    return cells


def learned_cells(scale: Scale, datasets: Sequence[str], seeds: int) -> list[Cell]:
    """Learned variance: each estimator alone and guided, and the guide alone."""
    cells = []
    for dataset, (latent, method), seed in product(datasets, paper.LEARNED["bpd"], range(seeds)):
        settings = _learned(dataset, latent, method, scale, seed)
        cells.append(Cell(dataset, latent, method, seed, None, settings))
    return cells


def recipe_of(cell: Cell, scale: Scale) -> str:
    """The recipe that a cell's settings come from."""
    kind = cell.dataset
    if cell.scheduled is not None:
        kind += "-fixed"
    return f"{kind}-{cell.latent}-{cell.method}-{_written(scale)}"


def _written(scale: Scale) -> Scale:
    """The scale whose recipes are read: `smoke` has none of its own."""
    if scale == "smoke":
        return "cpu"
    return scale


def _fixed(latent: str, method: str, scale: Scale, seed: int, scheduled: bool) -> Settings:
    settings = seeded(read_recipe(f"mnist-fixed-{latent}-{method}-{_written(scale)}"), scale, seed)
    if scheduled:
        model, train = replace(settings.model, variance_start=SCHEDULE), replace(settings.train, keep=[])
    else:
        model, train = replace(settings.model, variance_start=None), replace(settings.train, keep=KEPT_EPOCHS[scale])
    return settings._replace(model=model, train=train)


def _learned(dataset: str, latent: str, method: str, scale: Scale, seed: int) -> Settings:
    return seeded(read_recipe(f"{dataset}-{latent}-{method}-{_written(scale)}"), scale, seed)


def seeded(settings: Settings, scale: Scale, seed: int) -> Settings:
    """The settings with a seed; for the smoke scale, made as small as that is."""
    data, model, train = settings
    if scale == "smoke":
        data = replace(data, name="digits")
        model = replace(model, latent_dim=4, hidden=[8])
        if model.cutoff is not None:
            model = replace(model, cutoff=SMOKE_EPOCHS)
        train = replace(train, epochs=SMOKE_EPOCHS, lr=5e-4, lr_network=None, lr_precision=None)
    return Settings(data, model, replace(train, seed=seed))


def same_experiment(made: Settings, asked: Settings) -> bool:
    """Whether a run was made with the settings that are asked for, wherever it ran and the data lay."""
    return _essence(made, made.train) == _essence(asked, _resolved(asked).train)


def _resolved(settings: Settings) -> Settings:
    return settings.resolved(kind_of(settings.data.name, settings.data.kind).likelihoods)


def _essence(settings: Settings, train: TrainConfig) -> dict[str, Any]:
    """The settings that decide what a run comes to, with those of its training as they were chosen when it was made."""
    data = replace(settings.data, root=None)
    train = replace(train, accelerator="auto", devices=1)
    model = asdict(_resolved(settings).model)
    if model["variance_start"] is None:
        del model["variance_factor"]  # unused
    return {**asdict(data), **model, **asdict(train)}
