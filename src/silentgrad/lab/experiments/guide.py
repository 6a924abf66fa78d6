"""Guides at tuned rates and lengths: none, ours, the same by a sample, the same never trained, and the paper's.

A guided network is compared with the same network without a guide, each at the rate, and each guide with the schedule,
that validation chooses, for several lengths of the training. All rates fall along half a cosine.
"""

from dataclasses import replace
from itertools import product
from typing import Any

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Request, seeded
from silentgrad.lab.experiments.experiment import Grid
from silentgrad.lab.experiments.tuned import CHOSEN, Comparison
from silentgrad.lab.settings.documents import with_options
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig

METHODS = {
    "none": "no guide",
    "ours": "our guide",
    "sampled": "our guide, sampled",
    "frozen": "our guide, not trained",
    "paper": "the paper's guide",
}
OURS = {"model.tractable": "constant", "model.start": "ppca"}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {"model.tractable": "none"},
    "ours": OURS,
    "sampled": OURS,
    "frozen": {**OURS, "train.lr_mean": 0.0, "train.lr_precision": 0.0},
    "paper": {"model.tractable": "linear", "model.log_term": "taylor", "model.start": "random"},
}
SAMPLERS = {"gaussian": "reparameterized", "bernoulli": "gumbel-softmax"}
LATENTS = {"gaussian": 32, "bernoulli": 64}
LENGTHS = {"digits": (60, 240, 960), "mnist": (20,), "fashion-mnist": (20,), "cifar10": (60,)}  # epochs
RATES = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]
PARTS = {"paper": [0.1, 0.5, 1.0]}  # of the training that a guide takes: the paper's rates at its 200 epochs
OUR_PARTS = [0.25, 0.5]
HIDDEN, BATCH = 256, {"digits": 64}


def guide_cells(request: Request) -> list[Cell]:
    """Return the runs of the table, the shortest ones of each dataset first."""
    cells = []
    for dataset in request.datasets:
        latents = ["gaussian"] if dataset == "digits" else list(LATENTS)
        for epochs, latent, method, seed in product(LENGTHS[dataset], latents, METHODS, range(request.seeds)):
            settings = seeded(_settings(dataset, latent, method, epochs), request.scale, seed)
            cells.append(Cell(dataset, latent, method, seed, f"guide-{epochs}", settings))
    return cells


def _settings(dataset: str, latent: str, method: str, epochs: int) -> Settings:
    data = DataConfig(dataset, batch_size=BATCH.get(dataset, 128))
    model = ModelConfig(latent, LATENTS[latent], hidden=[HIDDEN], nonlinear=True, estimator=SAMPLERS[latent])
    if method == "sampled":
        model = replace(model, guide_estimator=SAMPLERS[latent])
    settings = Settings(data, model, TrainConfig(epochs, lr=1e-3, decay="cosine"))
    chosen = dict(OPTIONS[method])
    if method in ("ours", "sampled") and latent == "bernoulli":  # where a guide stays as it starts by default
        chosen |= {"train.lr_mean": 1e-3, "train.lr_precision": 1e-3}
    return with_options(settings, chosen)


def grid_of(cell: Cell) -> Grid:
    """Return what a row is chosen from."""
    grid: dict[str, list[Any]] = {"train.lr": [*RATES]}
    if cell.method != "none":
        grid["model.guided"] = PARTS.get(cell.method, OUR_PARTS)
    return grid


EXPERIMENT = Comparison(
    name="guide",
    title="Guides at tuned rates and lengths",
    heads=["data", "latents", "epochs", *CHOSEN],
    cells=guide_cells,
    grid=grid_of,
    refused=dict.fromkeys(("paper", "conv"), "guide is not in the paper"),
    datasets=tuple(LENGTHS),
    labels=lambda cell: [cell.data, paper.BLOCKS[cell.latent].lower(), str(cell.settings.train.epochs)],
    methods=METHODS,
    reference="none",
    levels=["none"],
    told=[
        f"Encoder and decoder of {HIDDEN} units, {LATENTS['gaussian']} Gaussian or {LATENTS['bernoulli']} Bernoulli "
        "latents, rates that fall along half a cosine, no clipping.",
        f"Chosen by validation with seed 0: the learning rate among {RATES} and the part of the training in which a "
        f"guide gives way, {OUR_PARTS} of ours, {PARTS['paper']} of the paper's. Runs in the table have other seeds.",
        "Our guide has a variance that is constant in z and starts as probabilistic PCA; the paper's has a precision "
        "linear in z, Taylor's log term and a random start.",
    ],
)
