"""What is compared: settings, the estimators in each of them, and how large the runs are.

The protocol is that of Dong, Mnih and Tucker (2020), Dimitriev and Zhou (2021) and Titsias and Shi (2022): images
binarized anew each time they are seen, 200 Bernoulli latents with a prior of 1/2, batches of 100, Adam, an encoder and
a decoder that are one linear layer each or have two hidden layers of 200 LeakyReLU units, the encoder's input centred
and the decoder's bias started at the data's mean; a rate of 1e-3 on MNIST and 3e-4 on Fashion-MNIST. In the Gaussian
variant x is in [-1, 1] and the decoder has a learned variance for every pixel. There the linear decoder has a closed
form, so that the exact gradient is one of the rows; a third network, the silent circuit, has a bound in closed form.

Where this protocol departs from the papers: x of the Gaussian variant is dequantized (a pixel that never changes would
have an infinite density), and its outputs are in units of their own deviation, which starts at the data's. The encoder
of the circuit is that of the nonlinear network, and only some estimators are compared there, on MNIST: a circuit is
slow.
"""

from collections.abc import Sequence
from itertools import product
from typing import Literal, NamedTuple

from silentgrad.lab.training.suitable import EstimatorName, suitable_estimators
from silentgrad.latents.families.bernoulli import Bernoulli

BenchmarkScale = Literal["smoke", "cpu", "paper"]
LikelihoodKind = Literal["bernoulli", "gaussian"]
NetworkKind = Literal["linear", "nonlinear", "circuit"]
DatasetName = Literal["mnist", "fashion-mnist"]

TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "digits": "digits"}
LIKELIHOODS = {"bernoulli": "bits", "gaussian": "Gaussian"}
RATES = {"mnist": 1e-3, "fashion-mnist": 3e-4, "digits": 1e-3}
BATCH = 100
REFERENCE: EstimatorName = "rloo"  # on whose weights the gradients of all estimators are measured
ON_CIRCUITS: tuple[EstimatorName, ...] = ("exact", "reinmax", "disarm", "rloo", "reinforce")
EXPENSIVE = 20  # evaluations of a step from which on an estimator is measured but not trained, except at `paper`


class Size(NamedTuple):
    """How large the runs of a scale are.

    Args:
        steps: Number of steps of a run.
        reported: Number of steps between the points of its curve.
        measured: The steps at which gradients are measured.
        latents: Number of latents.
        width: Number of units of a hidden layer.
        components: Number of components of the circuit.
        batches: Number of batches behind a gradient's variance.
        draws: Number of draws on each of them.
        learning: Number of steps that an estimator has to learn what it learns before its measurement.
        examples: Number of examples that each point of a curve is the mean of.
        tested: Number of test examples.
        samples: Number of samples of the test bound.
        rounds: Number of timings behind the milliseconds of a step.
        toy_draws: Number of draws of each toy problem.
        seeds: Number of runs of each kind where the exact gradient is one of the rows, unless another is asked for.
    """

    steps: int
    reported: int
    measured: tuple[int, ...]
    latents: int
    width: int
    components: int
    batches: int
    draws: int
    learning: int
    examples: int
    tested: int
    samples: int
    rounds: int
    toy_draws: int
    seeds: int


SIZES: dict[BenchmarkScale, Size] = {
    "smoke": Size(
        steps=20,
        reported=10,
        measured=(0, 20),
        latents=4,
        width=8,
        components=2,
        batches=4,
        draws=4,
        learning=2,
        examples=100,
        tested=100,
        samples=5,
        rounds=2,
        toy_draws=1_000,
        seeds=1,
    ),
    "cpu": Size(
        steps=2_000,
        reported=100,
        measured=(0, 2_000),
        latents=200,
        width=200,
        components=4,
        batches=8,
        draws=20,
        learning=200,
        examples=1_000,
        tested=1_000,
        samples=100,
        rounds=9,
        toy_draws=100_000,
        seeds=3,
    ),
    "paper": Size(
        steps=1_000_000,
        reported=1_000,
        measured=(0, 2_000, 1_000_000),
        latents=200,
        width=200,
        components=8,
        batches=50,
        draws=100,
        learning=1_000,
        examples=10_000,
        tested=10_000,
        samples=100,
        rounds=25,
        toy_draws=1_000_000,
        seeds=3,
    ),
}


class Setting(NamedTuple):
    """A model on a data set.

    Args:
        dataset: Name of the data set in the protocol.
        likelihood: The likelihood, and with it what x is.
        network: The networks.
    """

    dataset: DatasetName
    likelihood: LikelihoodKind
    network: NetworkKind

    @property
    def name(self) -> str:
        """The beginning of the names of its files."""
        return "-".join(self)

    @property
    def tractable(self) -> bool:
        """Whether the decoder has a closed form for bits."""
        return self.likelihood == "gaussian" and self.network != "nonlinear"

    def title(self, scale: BenchmarkScale) -> str:
        """The setting in print."""
        return f"{TITLES[data_of(self.dataset, scale)]}, {LIKELIHOODS[self.likelihood]}, {self.network}"

    def estimators(self) -> list[EstimatorName]:
        """All estimators that the setting allows, the exact one first."""
        names = suitable_estimators(Bernoulli)
        names.remove("none")
        if not self.tractable:
            names.remove("exact")
        if self.network == "circuit":
            return [name for name in names if name in ON_CIRCUITS]
        return names


class BenchmarkRun(NamedTuple):
    """One run.

    Args:
        setting: Its model and data.
        estimator: Its estimator.
        seed: Its seed.
    """

    setting: Setting
    estimator: EstimatorName
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.setting.name}-{self.estimator}-seed{self.seed}"


def data_of(dataset: str, scale: BenchmarkScale) -> str:
    """The data that are used: the digits at `smoke`."""
    if scale == "smoke":
        return "digits"
    return dataset


def settings_of(
    datasets: Sequence[DatasetName], likelihoods: Sequence[LikelihoodKind], networks: Sequence[NetworkKind]
) -> list[Setting]:
    """All settings of these; a circuit has Gaussian leaves only, and is compared on MNIST: it is slow."""
    settings = []
    for dataset, likelihood, network in product(datasets, likelihoods, networks):
        if network != "circuit" or (dataset, likelihood) == ("mnist", "gaussian"):
            settings.append(Setting(dataset, likelihood, network))
    return settings
