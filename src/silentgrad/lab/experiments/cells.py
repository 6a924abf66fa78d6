"""The runs behind the paper's tables: a cell is one run, its settings are those of a recipe.

Three scales: `paper` as the paper says, `cpu` for two processor cores, and `smoke`, which only shows that everything
works: `cpu` on the embedded digits, two epochs, a handful of units.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.training import Settings
from silentgrad.lab.training.recipes import read_recipe

Scale = Literal["smoke", "cpu", "paper"]
SCHEDULE = 0.3  # where a scheduled variance starts
SMOKE_EPOCHS = 2
KEPT_EPOCHS = {"smoke": [1, 2], "cpu": [1, 5, 20], "paper": [1, 50, 250]}


class Cell(NamedTuple):
    """One run of a table.

    Args:
        dataset: As the recipes name it.
        latent: Family of the latent.
        method: Estimator, with `-sg` if a linear decoder guides.
        seed: Seed of the run.
        scheduled: Whether a fixed variance is annealed; None if the variance is learned.
        settings: All that the run is told.
    """

    dataset: str
    latent: str
    method: str
    seed: int
    scheduled: bool | None
    settings: Settings

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        kind = self.dataset
        if self.scheduled is not None:
            kind += "-fixed"
        if self.scheduled:
            kind += "-scheduled"
        return f"{kind}-{self.latent}-{self.method}-seed{self.seed}"


def fixed_cells(scale: Scale, seeds: int) -> list[Cell]:
    """A linear decoder with fixed variance on MNIST, each method with and without a schedule of the variance."""
    return [
        Cell("mnist", latent, method, seed, scheduled, _fixed(latent, method, scale, seed, scheduled))
        for latent, method in paper.FIXED
        for scheduled in (False, True)
        for seed in range(seeds)
    ]


def learned_cells(scale: Scale, datasets: Sequence[str], seeds: int) -> list[Cell]:
    """Learned variance: each estimator alone and guided, and the guide alone."""
    return [
        Cell(dataset, latent, method, seed, None, _learned(dataset, latent, method, scale, seed))
        for dataset in datasets
        for latent, method in paper.LEARNED["bpd"]
        for seed in range(seeds)
    ]


def recipe_of(cell: Cell, scale: Scale) -> str:
    """The recipe that a cell's settings come from."""
    kind = "" if cell.scheduled is None else "fixed-"
    return f"{cell.dataset}-{kind}{cell.latent}-{cell.method}-{_written(scale)}"


def reductions(cells: Sequence[Cell], scale: Scale) -> list[str]:
    """What was reduced with respect to the paper's scale, a sentence for each set of runs."""
    if scale == "paper":
        return []
    found: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        changed = _difference(cell.settings, read_recipe(recipe_of(cell, "paper")))
        found.setdefault((cell.dataset, changed), set()).add(f"{cell.latent} {cell.method}")
    return [
        f"{paper.DATASETS[dataset]}{_only(runs, cells, dataset)}: {changed}"
        for (dataset, changed), runs in found.items()
        if changed
    ]


def _only(runs: set[str], cells: Sequence[Cell], dataset: str) -> str:
    """Which runs of a dataset are meant; nothing if all of them."""
    everything = {f"{cell.latent} {cell.method}" for cell in cells if cell.dataset == dataset}
    return "" if runs == everything else f" ({', '.join(sorted(runs))})"


def _difference(ours: Settings, full: Settings) -> str:
    told = {
        "images": (ours.data.name, full.data.name),
        "batch": (ours.data.batch_size, full.data.batch_size),
        "epochs": (ours.train.epochs, full.train.epochs),
        "network": (_network(ours), _network(full)),
        "latents": (ours.model.latent_dim, full.model.latent_dim),
    }
    return ", ".join(f"{name} {here} instead of {there}" for name, (here, there) in told.items() if here != there)


def _network(settings: Settings) -> str:
    model = settings.model
    return f"mlp {model.hidden}" if model.network == "mlp" else f"{model.network}, {model.channels} channels"


def _written(scale: Scale) -> str:
    return "cpu" if scale == "smoke" else scale


def _fixed(latent: str, method: str, scale: Scale, seed: int, scheduled: bool) -> Settings:
    settings = _seeded(read_recipe(f"mnist-fixed-{latent}-{method}-{_written(scale)}"), scale, seed)
    model = replace(settings.model, variance_start=SCHEDULE if scheduled else None)
    return settings._replace(model=model, train=replace(settings.train, keep=[] if scheduled else KEPT_EPOCHS[scale]))


def _learned(dataset: str, latent: str, method: str, scale: Scale, seed: int) -> Settings:
    return _seeded(read_recipe(f"{dataset}-{latent}-{method}-{_written(scale)}"), scale, seed)


def _seeded(settings: Settings, scale: Scale, seed: int) -> Settings:
    data, model, train = settings
    if scale == "smoke":
        data = replace(data, name="digits")
        model = replace(model, latent_dim=4, hidden=[8], cutoff=None if model.cutoff is None else SMOKE_EPOCHS)
        train = replace(train, epochs=SMOKE_EPOCHS, lr=5e-4, lr_precision=None)
    return Settings(data, model, replace(train, seed=seed))


def same_experiment(one: Settings, other: Settings) -> bool:
    """Whether two settings describe the same run; where it runs and where the data lie do not matter."""
    return _essence(one) == _essence(other)


def _essence(settings: Settings) -> dict[str, Any]:
    data = replace(settings.data, root=None)
    train = replace(settings.train, accelerator="auto", devices=1)
    unused = {} if settings.model.variance_start is not None else {"variance_factor": None}
    return {**asdict(data), **asdict(settings.model), **asdict(train), **unused}
