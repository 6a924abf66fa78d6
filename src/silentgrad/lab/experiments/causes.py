"""What a guide helps by: the silent guide beside everything else that it changes, one cause at a time.

Not one of the paper's tables. A guide without sampling noise is also a second decoder, a good start, and a softer
beginning. Each row has some of these: the guide's exact gradient; the same guide by 1 and by 16 samples; a guide that
starts as probabilistic PCA and does not learn; one that learns from a random start; no guide, but a KL divergence or
learning rates that rise in the same part of the training; nothing. All else is the same within a host, which is a
family of latents and a network on a data set, but for the random numbers that an encoder starts with. Rows are compared
with none by pairs of seeds, after the same steps and after the same seconds, beside the noise of the encoder's gradient
while they train; guides also with the exact one, which tells what its silence gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import SMOKE_EPOCHS, TITLES, Cell, Scale, seeded
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.training.config import Decay

GUIDED = 0.25  # part of the training that a guide or a warm-up takes
BATCH = 128
DATASETS = ("mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True)
class Cause:
    """A row of every host.

    Args:
        title: The row in print.
        guided: Whether a linear decoder guides.
        model: What the model has that differs from its host's.
        train: What the training has that differs.
    """

    title: str
    guided: bool
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)


NONE, EXACT = "none", "exact"
CAUSES = {
    NONE: Cause("none", guided=False),
    EXACT: Cause("guide, exact", guided=True),
    "sampled": Cause("guide, 1 sample", guided=True, model={"guide_draws": 1}),
    "sampled-16": Cause("guide, 16 samples", guided=True, model={"guide_draws": 16}),
    "untrained": Cause("guide, not trained", guided=True, train={"lr_mean": 0.0, "lr_precision": 0.0}),
    "random": Cause("guide, random start", guided=True, model={"start": "random"}),
    "kl-warmup": Cause("KL warm-up", guided=False, model={"kl_warmup": GUIDED}),
    "lr-warmup": Cause("learning-rate warm-up", guided=False, train={"warmup": GUIDED}),
}


class Family(NamedTuple):
    """What hosts with one family of latents have in common.

    Args:
        latents: Number of latents.
        estimator: The host's estimator, which also samples the guide where that is sampled.
    """

    latents: int
    estimator: str


FAMILIES = {"gaussian": Family(32, "reparameterized"), "bernoulli": Family(64, "gumbel-softmax")}


class Host(NamedTuple):
    """A network, and how long it is trained.

    Args:
        title: The network in print.
        model: Its settings.
        epochs: Number of epochs, by data set.
        decay: How its learning rates fall.
    """

    title: str
    model: dict[str, Any]
    epochs: dict[str, int]
    decay: Decay


CONVOLUTIONS = {"mnist": "conv", "fashion-mnist": "conv", "cifar10": "strided"}
HOSTS = {
    "mlp": Host("MLP", {"hidden": [256]}, {"mnist": 8, "fashion-mnist": 8, "cifar10": 24}, "none"),
    # At a constant rate the learned precisions of few convolutions make single epochs jump by whole bits.
    "conv": Host("convolutions", {"channels": 4}, {"mnist": 4, "fashion-mnist": 4, "cifar10": 12}, "cosine"),
}


def cause_cells(scale: Scale, datasets: Sequence[str], seeds: int) -> list[Cell]:
    """The runs of the table."""
    cells = []
    for dataset, latent, host, cause, seed in product(datasets, FAMILIES, HOSTS, CAUSES, range(seeds)):
        settings = seeded(_settings(dataset, latent, host, CAUSES[cause]), scale, seed)
        if scale == "smoke":
            settings = _small(settings, host)
        title = f"{TITLES[dataset]}, {latent}, {host}: {CAUSES[cause].title}"
        cells.append(Cell(dataset, latent, f"{host}-{cause}", seed, None, settings, title))
    return cells


def _settings(dataset: str, latent: str, host: str, cause: Cause) -> Settings:
    family = FAMILIES[latent]
    model: dict[str, Any] = {
        "latent": latent,
        "latent_dim": family.latents,
        "estimator": family.estimator,
        "network": host,
        "tractable": "none",
        **HOSTS[host].model,
        **cause.model,
    }
    epochs, decay = HOSTS[host].epochs[dataset], HOSTS[host].decay
    train: dict[str, Any] = {"epochs": epochs, "lr": 1e-3, "clip": 1.0, "decay": decay}
    if host == "conv":
        model["network"] = CONVOLUTIONS[dataset]
    if cause.guided:
        model |= {"tractable": "constant", "guided": GUIDED}
        train |= {"lr_mean": train["lr"], "lr_precision": train["lr"]}  # or a guide of bits would stay as it starts
    if "guide_draws" in cause.model:
        model["guide_estimator"] = family.estimator
    train |= cause.train
    train["keep"] = measured_epochs(epochs)
    return Settings(DataConfig(dataset, batch_size=BATCH), ModelConfig(**model), TrainConfig(**train))


def measured_epochs(epochs: int) -> list[int]:
    """The epochs at whose end gradients are measured: half of the guide's part, the whole of it, and all.

    Example:
        >>> measured_epochs(8)
        [1, 2, 8]
    """
    part = GUIDED * epochs
    return sorted({max(1, round(part / 2)), max(1, round(part)), epochs})


def _small(settings: Settings, host: str) -> Settings:
    """The settings as small as the smoke scale is."""
    data, model, train = settings
    if host == "conv":
        model = replace(model, network="conv", channels=2)
    if model.guide_draws > 1:
        model = replace(model, guide_draws=2)
    return Settings(data, model, replace(train, keep=measured_epochs(SMOKE_EPOCHS)))


def host_title(latent: str, host: str) -> list[str]:
    """The family of latents and the network in print."""
    return [paper.BLOCKS[latent].lower(), HOSTS[host].title]
