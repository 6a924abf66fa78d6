"""A linear decoder alone, where the exact gradient is exact: every estimator at its best rate, beside it.

The variance of an output is fixed at 0.01 or learned, with a precision linear in z, both as in the paper. All runs of a
block have the same encoder, start (the mean image), batches and number of steps, and rates that fall along half a
cosine.

A variance that is learned but constant in z is not compared. With Gaussian latents and the exact gradient, its
validation figure was best after the first of 20 epochs, so that a comparison would be one of early stopping.
"""

from itertools import product
from typing import Any

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Request, seeded
from silentgrad.lab.experiments.experiment import Grid
from silentgrad.lab.experiments.tuned import CHOSEN, Comparison
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig

DATASETS = ("mnist", "fashion-mnist")
VARIANCES = {"fixed": "fixed, 0.01", "linear": "learned"}
ESTIMATORS = {
    "gaussian": ["exact", "reparameterized"],
    "bernoulli": ["exact", "gumbel-softmax", "reinmax", "disarm", "rloo", "reinforce"],
}
METHODS = {**paper.METHODS, "exact": paper.METHODS["silent"], "reinmax": "ReinMax", "disarm": "DisARM", "rloo": "RLOO"}
RATES = [3e-4, 1e-3, 3e-3, 1e-2]
TEMPERATURES = [0.25, None, 1.0]  # 0.5 if absent
BATCH, EPOCHS = 55, 20  # 20,000 steps on 55,000 images
SIZES: dict[str, Any] = {"latent_dim": 64, "hidden": [256]}


def linear_cells(request: Request) -> list[Cell]:
    """Return the runs of the table."""
    cells = []
    for tractable, dataset, latent in product(VARIANCES, request.datasets, ESTIMATORS):  # the exact limit first
        for estimator, seed in product(ESTIMATORS[latent], range(request.seeds)):
            given: dict[str, Any] = {"tractable": tractable, "estimator": estimator, "start": "mean"}
            model = ModelConfig(latent, nonlinear=False, **SIZES, **given)
            train = TrainConfig(EPOCHS, lr=1e-3, decay="cosine")
            settings = seeded(Settings(DataConfig(dataset, batch_size=BATCH), model, train), request.scale, seed)
            cells.append(Cell(dataset, latent, estimator, seed, f"linear-{tractable}", settings))
    return cells


def grid_of(cell: Cell) -> Grid:
    """Return what a row is chosen from."""
    grid: dict[str, list[float | None]] = {"train.lr": [*RATES]}
    if cell.method == "gumbel-softmax":
        grid["model.temperature"] = [*TEMPERATURES]
    if cell.latent == "bernoulli" and cell.settings.model.tractable == "fixed":
        grid["model.variance_start"] = [None, 0.3]
    return grid


EXPERIMENT = Comparison(
    name="linear",
    title="Linear decoder alone: every estimator at its best rate",
    heads=["data", "variance", "latents", *CHOSEN],
    cells=linear_cells,
    grid=grid_of,
    refused=dict.fromkeys(("paper", "conv"), "linear is not in the paper"),
    datasets=DATASETS,
    labels=lambda cell: [cell.data, VARIANCES[str(cell.settings.model.tractable)], paper.BLOCKS[cell.latent].lower()],
    methods=METHODS,
    reference="exact",
    levels=[name for names in ESTIMATORS.values() for name in names if name != "exact"],
    told=[
        f"Encoder of {SIZES['hidden']} units, {SIZES['latent_dim']} latents, {EPOCHS} epochs of batches of {BATCH} "
        "(20,000 steps), start at the mean image, rates that fall along half a cosine.",
        f"Chosen by validation with seed 0: the learning rate among {RATES}, the temperature of Gumbel-Softmax among "
        "0.25, 0.5 (not named) and 1, with a fixed variance and Bernoulli latents whether it starts at 0.3 and halves "
        "every epoch. "
        "Runs in the table have other seeds.",
        "The limit is that of the test images, by probabilistic PCA of these themselves: no linear decoder of this "
        "fixed variance and with Gaussian latents can be better.",
    ],
)
