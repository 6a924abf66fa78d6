"""The protocol: settings, the estimators in each of them, and their runs, which are those of `silentgrad train`.

The protocol is that of Dong, Mnih and Tucker (2020), Dimitriev and Zhou (2021) and Titsias and Shi (2022): images
binarized anew each time they are seen, 200 Bernoulli latents with a prior of 1/2, batches of 100, Adam, an encoder and
a decoder that are one linear layer each or have two hidden layers of 200 LeakyReLU units, the encoder's input centered
and the decoder started at the data's mean; a rate of 1e-3 on MNIST and 3e-4 on Fashion-MNIST. In the Gaussian variant
the decoder has a learned variance for every pixel. There the linear decoder has a closed form, so that the exact
gradient is one of the rows; a third network, the silent circuit, has a bound in closed form.

Where this protocol departs from the papers: x of the Gaussian variant is dequantized (a pixel that never changes would
have an infinite density), and its outputs are in units of their own deviation, which starts at the data's; so x is in
[0, 1], not in [-1, 1], which changes nothing but the unit. The figures are those of the epoch that is best in
validation, by the ELBO. The encoder of the circuit is that of the nonlinear network, and only some estimators are
compared there, on MNIST: a circuit is slow. In place of the bits there can be groups of categories, as many as Liu et
al. (2023) and Wang and Bui (2026) have; the networks stay the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from silentgrad.estimators import ESTIMATORS
from silentgrad.lab import kinds
from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.experiment import Grid
from silentgrad.lab.settings import EstimatorName, suitable_estimators
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.latents.families import Bernoulli, Categorical, Family

BenchmarkScale = Literal["smoke", "cpu", "paper"]
LikelihoodKind = Literal["bernoulli", "gaussian"]
NetworkKind = Literal["linear", "nonlinear", "circuit"]
DatasetName = Literal["mnist", "fashion-mnist"]
LatentsKind = Literal["bits", "8x4", "4x24", "8x16", "16x12", "64x8", "10x30"]

LIKELIHOODS = {"bernoulli": "bits", "gaussian": "Gaussian"}
DECODERS: dict[tuple[LikelihoodKind, NetworkKind], dict[str, Any]] = {
    ("bernoulli", "linear"): {"tractable": "none"},
    ("bernoulli", "nonlinear"): {"tractable": "none"},
    ("gaussian", "linear"): {"tractable": "constant", "nonlinear": False, "start": "moments"},
    ("gaussian", "nonlinear"): {"tractable": "none", "likelihood": "constant"},
    ("gaussian", "circuit"): {"tractable": "circuit", "nonlinear": False, "leaves": "constant", "gates": "all"},
}
RATES = {"mnist": 1e-3, "fashion-mnist": 3e-4, "digits": 1e-3}
TEMPERATURES: dict[EstimatorName, tuple[float, ...]] = {
    **dict.fromkeys(("gumbel-softmax", "gumbel-rao", "gapped-straight-through"), (0.5, 1.0)),
    **dict.fromkeys(("reinmax", "reinmax-rao"), (0.7, 1.0)),
}
BATCH = 100
REFERENCE: EstimatorName = "rloo"  # on whose weights the gradients of all estimators are measured
ON_CIRCUITS: tuple[EstimatorName, ...] = ("exact", "reinmax", "disarm", "rloo", "reinforce")
EXPENSIVE = 20  # evaluations of a step from which on an estimator has to be asked for by name, except at `paper`


@dataclass(frozen=True)
class Size:
    """The size of a scale's runs; that of `paper` by default."""

    epochs: int = 1_000  # epochs of a run
    epoch_steps: int = 1_000  # steps of an epoch
    measured: tuple[int, ...] = (1, 2, 1_000)  # the epochs after which gradients are measured
    latents: int = 200  # latents, and of units of a hidden layer
    components: int = 8  # components of the circuit
    samples: int = 100  # samples of the test bound
    batches: int = 50  # batches behind a gradient's variance
    draws: int = 100  # draws on each of them
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)  # to choose from by validation
    seeds: int = 3  # number of runs of each kind, unless another is asked for


SIZES: dict[BenchmarkScale, Size] = {
    "smoke": Size(
        epochs=2, epoch_steps=10, measured=(1, 2), latents=4, components=2, samples=5, batches=4, draws=4, seeds=1
    ),
    "cpu": Size(epochs=20, epoch_steps=100, measured=(1, 20), components=4, batches=8, draws=20, rates=(1e-3, 3e-3)),
    "paper": Size(),
}


class Setting(NamedTuple):
    """A data set as the protocol names it, the likelihood and with it what x is, and the networks."""

    dataset: DatasetName
    likelihood: LikelihoodKind
    network: NetworkKind
    latents: LatentsKind = "bits"

    @property
    def variant(self) -> str:
        """All of it but the data set, as in the names of runs."""
        return "-".join(self[1:]).removesuffix("-bits")

    @property
    def name(self) -> str:
        """The beginning of the names of its files."""
        return f"{self.dataset}-{self.variant}"

    @property
    def unit(self) -> kinds.Unit:
        """The unit of its figures."""
        return kinds.NATS_PER_EXAMPLE if self.likelihood == "bernoulli" else kinds.BITS_PER_DIMENSION

    def family(self, size: Size) -> Family:
        """Return the latents of an example."""
        if self.latents == "bits":
            return Bernoulli(size.latents)
        groups, categories = map(int, self.latents.split("x"))
        return Categorical(groups, categories)

    def estimators(self) -> list[EstimatorName]:
        """All estimators that the setting allows, the exact one first."""
        names = suitable_estimators(Bernoulli if self.latents == "bits" else Categorical)
        names.remove("none")
        names.remove("enumerate")  # of all configurations of so many latents
        if DECODERS[self.likelihood, self.network]["tractable"] == "none":  # which has no closed form
            names.remove("exact")
        if self.network == "circuit":
            return [name for name in names if name in ON_CIRCUITS]
        return names


def settings_of(
    datasets: Sequence[DatasetName],
    likelihoods: Sequence[LikelihoodKind],
    networks: Sequence[NetworkKind],
    latents: Sequence[LatentsKind] = ("bits",),
) -> list[Setting]:
    """All settings of these; a circuit has Gaussian leaves and bits, and is compared on MNIST: it is slow."""
    settings = []
    for kind, dataset, likelihood, network in product(latents, datasets, likelihoods, networks):
        if network != "circuit" or (dataset, likelihood, kind) == ("mnist", "gaussian", "bits"):
            settings.append(Setting(dataset, likelihood, network, kind))
    return settings


class BenchmarkPlan(NamedTuple):
    """A benchmark to be made."""

    scale: BenchmarkScale  # size of the runs
    settings: Sequence[Setting]
    estimators: Sequence[EstimatorName] | None  # the estimators; those that a setting does not allow are left out of it
    folder: Path  # folder of the runs and the measurements
    root: Path | None  # folder that holds the data sets
    accelerator: str  # kind of device that computes all of it, as Lightning names it

    @property
    def size(self) -> Size:
        """The size of the runs."""
        return SIZES[self.scale]

    def setting(self, dataset: str, variant: str) -> Setting:
        """Return the setting of a run, by these fields."""
        return next(one for one in self.settings if (one.dataset, one.variant) == (dataset, variant))

    def title(self, setting: Setting) -> str:
        """Return a setting in print."""
        words = [self.reference(setting).data, LIKELIHOODS[setting.likelihood], setting.network]
        if setting.latents != "bits":
            words.append(f"{setting.latents.replace('x', ' x ')} categories")
        return ", ".join(words)

    def names(self, setting: Setting) -> list[EstimatorName]:
        """Return the estimators of a setting; classes that are named by their modules come last."""
        names, family = setting.estimators(), setting.family(self.size)
        if self.estimators is not None:
            strangers = [name for name in self.estimators if ":" in name]
            return [name for name in names if name in self.estimators] + strangers
        latents = family.latents.numel()
        sizes = latents, max(2, family.numbers // latents)  # of an example, and the values that each of them takes
        most = math.inf if self.scale == "paper" else EXPENSIVE
        return [name for name in names if ESTIMATORS[name].sized(1).evaluations(*sizes) < most]

    def run(self, setting: Setting, name: EstimatorName, seed: int) -> Cell:
        """Return a run of an estimator."""
        size, family = self.size, setting.family(self.size)
        data = "digits" if self.scale == "smoke" else setting.dataset
        model: dict[str, Any] = {"hidden": [] if setting.network == "linear" else 2 * [size.latents]}
        if isinstance(family, Categorical):
            model |= {"categories": family.shape[-1]}
        if setting.network == "circuit":
            model |= {"components": size.components}
        model |= DECODERS[setting.likelihood, setting.network]
        train = TrainConfig(size.epochs, size.epoch_steps, optimizer="adam", lr=RATES[data], iwae_samples=size.samples)
        settings = Settings(
            DataConfig(data, batch_size=BATCH, kind="binarized" if setting.likelihood == "bernoulli" else "auto"),
            ModelConfig(family.name, family.latents[0], network="leaky", estimator=name, **model),
            replace(train, seed=seed, keep=[*size.measured] if name == REFERENCE else []),
        )
        return Cell(setting.dataset, family.name, name, seed, setting.variant, settings)

    def runs(self, seeds: int) -> list[Cell]:
        """Return all runs, untuned."""
        kinds = [(setting, name) for setting in self.settings for name in self.names(setting)]
        return [self.run(*kind, seed) for kind in kinds for seed in range(seeds)]

    def reference(self, setting: Setting) -> Cell:
        """Return the run on whose weights the gradients of a setting are measured."""
        return self.run(setting, REFERENCE, 0)

    def weights(self, setting: Setting) -> RunFolder:
        """Return the folder of that run."""
        return RunFolder(self.folder / self.reference(setting).name)

    def grid(self, cell: Cell) -> Grid:
        """Return what validation chooses from."""
        grid: dict[str, Sequence[float]] = {"train.lr": self.size.rates}
        if cell.method in TEMPERATURES:
            grid["model.temperature"] = TEMPERATURES[cell.method]
        return grid
