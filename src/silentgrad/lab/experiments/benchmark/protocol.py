"""The protocol: settings, the estimators in each of them, how large the runs are, and a plan of all runs.

The protocol is that of Dong, Mnih and Tucker (2020), Dimitriev and Zhou (2021) and Titsias and Shi (2022): images
binarized anew each time they are seen, 200 Bernoulli latents with a prior of 1/2, batches of 100, Adam, an encoder and
a decoder that are one linear layer each or have two hidden layers of 200 LeakyReLU units, the encoder's input centred
and the decoder's bias started at the data's mean; a rate of 1e-3 on MNIST and 3e-4 on Fashion-MNIST. In the Gaussian
variant x is in [-1, 1] and the decoder has a learned variance for every pixel. There the linear decoder has a closed
form, so that the exact gradient is one of the rows; a third network, the silent circuit, has a bound in closed form.

Where this protocol departs from the papers: x of the Gaussian variant is dequantized (a pixel that never changes would
have an infinite density), and its outputs are in units of their own deviation, which starts at the data's. The encoder
of the circuit is that of the nonlinear network, and only some estimators are compared there, on MNIST: a circuit is
slow. In place of the bits there can be groups of categories, as many as Liu et al. (2023) and Wang and Bui (2026) have;
the networks stay the same.

A tuned estimator has the learning rate, and the temperature if it has one, whose run of seed 0 has the best bound of
validation images; the other seeds then have these too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from silentgrad.estimators import Estimator
from silentgrad.lab.experiments.cells import TITLES
from silentgrad.lab.settings import EstimatorName, estimator_class, suitable_estimators
from silentgrad.latents.families import Bernoulli, Categorical, Family

BenchmarkScale = Literal["smoke", "cpu", "paper"]
LikelihoodKind = Literal["bernoulli", "gaussian"]
NetworkKind = Literal["linear", "nonlinear", "circuit"]
DatasetName = Literal["mnist", "fashion-mnist"]
LatentsKind = Literal["bits", "8x4", "4x24", "8x16", "16x12", "64x8", "10x30"]

LIKELIHOODS = {"bernoulli": "bits", "gaussian": "Gaussian"}
RATES = {"mnist": 1e-3, "fashion-mnist": 3e-4, "digits": 1e-3}
TEMPERATURES: dict[EstimatorName, tuple[float, ...]] = {
    **dict.fromkeys(("gumbel-softmax", "gumbel-rao", "gapped-straight-through"), (0.5, 1.0)),
    **dict.fromkeys(("reinmax", "reinmax-rao"), (0.7, 1.0)),
}
BATCH = 100
REFERENCE: EstimatorName = "rloo"  # on whose weights the gradients of all estimators are measured
ON_CIRCUITS: tuple[EstimatorName, ...] = ("exact", "reinmax", "disarm", "rloo", "reinforce")
EXPENSIVE = 20  # evaluations of a step from which on an estimator is measured but not trained, except at `paper`


@dataclass(frozen=True)
class Size:
    """The size of a scale's runs; that of `paper` by default."""

    steps: int = 1_000_000  # steps of a run
    reported: int = 1_000  # steps between the points of its curve
    measured: tuple[int, ...] = (0, 2_000, 1_000_000)  # the steps at which gradients are measured
    latents: int = 200  # latents, and of units of a hidden layer
    components: int = 8  # components of the circuit
    batches: int = 50  # batches behind a gradient's variance
    draws: int = 100  # draws on each of them
    learning: int = 1_000  # steps that an estimator has to learn what it learns before its measurement
    # Number of training examples that each point of a curve is the mean of, and of test examples.
    examples: int = 10_000
    samples: int = 100  # samples of the test bound
    rounds: int = 25  # timings behind the milliseconds of a step
    toy_draws: int = 1_000_000  # draws of each toy problem
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)  # to choose from by validation
    seeds: int = 3  # number of runs of each kind, unless another is asked for


SIZES: dict[BenchmarkScale, Size] = {
    "smoke": Size(
        steps=20,
        reported=10,
        measured=(0, 20),
        latents=4,
        components=2,
        batches=4,
        draws=4,
        learning=2,
        examples=100,
        samples=5,
        rounds=2,
        toy_draws=1_000,
        seeds=1,
    ),
    "cpu": Size(
        steps=2_000,
        reported=100,
        measured=(0, 2_000),
        components=4,
        batches=8,
        draws=20,
        learning=200,
        examples=1_000,
        rounds=9,
        toy_draws=100_000,
        rates=(1e-3, 3e-3),
    ),
    "paper": Size(),
}


class Setting(NamedTuple):
    """A data set as the protocol names it, the likelihood and with it what x is, and the networks."""

    dataset: DatasetName
    likelihood: LikelihoodKind
    network: NetworkKind
    latents: LatentsKind = "bits"

    @property
    def name(self) -> str:
        """The beginning of the names of its files."""
        return "-".join(self).removesuffix("-bits")

    def family(self, size: Size) -> Family:
        """Return the latents of an example."""
        if self.latents == "bits":
            return Bernoulli(size.latents)
        groups, categories = map(int, self.latents.split("x"))
        return Categorical(groups, categories)

    @property
    def tractable(self) -> bool:
        """True if the decoder has a closed form for bits."""
        return self.likelihood == "gaussian" and self.network != "nonlinear"

    def estimators(self) -> list[EstimatorName]:
        """All estimators that the setting allows, the exact one first."""
        names = suitable_estimators(Bernoulli if self.latents == "bits" else Categorical)
        names.remove("none")
        names.remove("enumerate")  # of all configurations of so many latents
        if not self.tractable:
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


def estimator_named(name: EstimatorName, numbers: int, temperature: float | None = None) -> Estimator:
    """Return an estimator as it is by default, for z of so many numbers, or at a temperature."""
    chosen: Any = estimator_class("--estimators", name)
    return chosen.sized(numbers) if temperature is None else chosen(temperature=temperature)


class BenchmarkRun(NamedTuple):
    """A run by an estimator in a setting, from a seed."""

    setting: Setting
    estimator: EstimatorName
    seed: int
    rate: float | None = None  # None for that of the protocol
    temperature: float | None = None  # None for the estimator's own

    @property
    def name(self) -> str:
        """The name of its folder."""
        tuned = "".join(f"-{word}{value}" for word, value in self.tuned.items())
        return f"{self.setting.name}-{self.estimator.replace(':', '-')}{tuned}-seed{self.seed}"

    @property
    def tuned(self) -> dict[str, float]:
        """Options that differ from the defaults, by name."""
        values = {"rate": self.rate, "temperature": self.temperature}
        return {word: value for word, value in values.items() if value is not None}


def weights_file(folder: Path, step: int) -> Path:
    """Return the file of the weights that the run in a folder had after a step."""
    return folder / f"step-{step}.safetensors"


class BenchmarkPlan(NamedTuple):
    """A benchmark to be made."""

    scale: BenchmarkScale  # size of the runs
    settings: Sequence[Setting]
    estimators: Sequence[EstimatorName] | None  # the estimators; those that a setting does not allow are left out of it
    seeds: int | None  # number of runs of each kind; that of the scale if absent
    folder: Path  # folder of the runs and the measurements
    root: Path | None  # folder that holds the data sets
    accelerator: str  # kind of device that computes all of it, as Lightning names it
    tune: bool = False  # whether each estimator's rate and temperature are chosen by validation

    @property
    def size(self) -> Size:
        """The size of the runs."""
        return SIZES[self.scale]

    def data(self, setting: Setting) -> str:
        """Name of the data that are used: the digits at `smoke`."""
        return "digits" if self.scale == "smoke" else setting.dataset

    def title(self, setting: Setting) -> str:
        """Return a setting in print."""
        words = [TITLES[self.data(setting)], LIKELIHOODS[setting.likelihood], setting.network]
        if setting.latents != "bits":
            words.append(f"{setting.latents.replace('x', ' x ')} categories")
        return ", ".join(words)

    def names(self, setting: Setting) -> list[EstimatorName]:
        """Return the estimators of a setting; classes that are named by their modules come last."""
        names = setting.estimators()
        if self.estimators is None:
            return names
        return [name for name in names if name in self.estimators] + [name for name in self.estimators if ":" in name]

    def trained(self, setting: Setting) -> list[EstimatorName]:
        """Return the estimators of a setting that are trained: of very many evaluations a step only at `paper`."""
        family = setting.family(self.size)
        latents = family.latents.numel()
        sizes = latents, max(2, family.numbers // latents)  # of an example, and the values that each of them takes
        most = math.inf if self.scale == "paper" else EXPENSIVE
        return [name for name in self.names(setting) if estimator_named(name, 1).evaluations(*sizes) < most]

    def rate(self, run: BenchmarkRun) -> float:
        """Return the learning rate of a run."""
        return run.rate or RATES[self.data(run.setting)]

    def protocol(self, run: BenchmarkRun) -> str:
        """All that decides what a run comes to, in words, to know it again by."""
        parts = ("steps", "reported", "latents", "components", "examples", "samples")
        return ", ".join(
            [run.name, f"rate {self.rate(run)}", *(f"{part} {getattr(self.size, part)}" for part in parts)]
        )

    def candidates(self, setting: Setting, name: EstimatorName) -> list[BenchmarkRun]:
        """Return the runs of seed 0 among which validation chooses an estimator's rate and temperature."""
        default = BenchmarkRun(setting, name, 0)
        if not self.tune:
            return [default]
        rates = [None if rate == RATES[self.data(setting)] else rate for rate in self.size.rates]
        pairs = product(rates, TEMPERATURES.get(name, (None,)))
        return [default._replace(rate=rate, temperature=temperature) for rate, temperature in pairs]

    def first_runs(self) -> list[BenchmarkRun]:
        """All runs to choose from; each setting has one by the reference, on whose weights gradients are measured."""
        runs: dict[BenchmarkRun, None] = {}
        for setting in self.settings:
            runs[BenchmarkRun(setting, REFERENCE, 0)] = None
            for name in self.trained(setting):
                runs |= dict.fromkeys(self.candidates(setting, name))
        return list(runs)
