"""What follows from the data where options leave it open: decoders, the estimator of the gradient, learning rates.

Images and real numbers have a nonlinear decoder that a linear one guides. Counts have a linear decoder alone, which is
trained by its exact gradient, unless a nonlinear one is asked for. An option that was given is never changed.
"""

from typing import NamedTuple

from silentgrad.lab.kinds import OF_COUNTS, LikelihoodName
from silentgrad.lab.training.suitable import ESTIMATORS, EstimatorName, TractableKind, family_named


class Decoders(NamedTuple):
    """Which decoders a model has, and how its gradient is estimated.

    Args:
        tractable: The tractable decoder.
        nonlinear: Whether there is a nonlinear one.
        estimator: The estimator of the gradient through the sampled decoder, or through the linear one if it is alone.
    """

    tractable: TractableKind
    nonlinear: bool
    estimator: EstimatorName

    @property
    def guided(self) -> bool:
        """Whether a tractable decoder stands beside a nonlinear one."""
        return self.tractable != "none" and self.nonlinear


def decoders_for(
    likelihood: LikelihoodName,
    tractable: TractableKind | None = None,
    nonlinear: bool | None = None,
    estimator: EstimatorName | None = None,
    latent: str = "gaussian",
    network: str = "mlp",
) -> Decoders:
    """The decoders for data of a likelihood, as far as they were not chosen.

    Args:
        likelihood: The likelihood.
        tractable: The tractable decoder, if it was chosen.
        nonlinear: Whether there is a nonlinear one, if that was chosen.
        estimator: The estimator, if it was chosen.
        latent: The name of the latents' family.
        network: The name of the network.

    Example:
        >>> decoders_for("gaussian")
        Decoders(tractable='constant', nonlinear=True, estimator='reparameterized')
        >>> decoders_for("poisson")
        Decoders(tractable='linear', nonlinear=False, estimator='exact')
        >>> decoders_for("poisson", nonlinear=True)
        Decoders(tractable='linear', nonlinear=True, estimator='reparameterized')
        >>> decoders_for("gaussian", latent="bernoulli")
        Decoders(tractable='constant', nonlinear=True, estimator='gumbel-softmax')
        >>> decoders_for("gaussian", latent="bernoulli", network="conv")
        Decoders(tractable='none', nonlinear=True, estimator='gumbel-softmax')
    """
    counts = likelihood in OF_COUNTS
    if tractable is None:
        tractable = _tractable(likelihood)
        would_guide = tractable == "constant" and nonlinear is not False and estimator != "none"
        if would_guide and _guide_hurts(latent, network):
            tractable = "none"
    if nonlinear is None:
        nonlinear = not counts or tractable == "none"
    if estimator is None:
        estimator = _sampling(latent)
        if counts and not nonlinear:
            estimator = "exact"
    return Decoders(tractable, nonlinear, estimator)


def _sampling(latent: str) -> EstimatorName:
    """The estimator of a sampled decoder's gradient: the paper's where the latents allow it, else RLOO."""
    of_the_paper: tuple[EstimatorName, ...] = ("reparameterized", "gumbel-softmax")
    for name in of_the_paper:
        if ESTIMATORS[name].suits(family_named(latent)):
            return name
    return "rloo"


def _tractable(likelihood: LikelihoodName) -> TractableKind:
    """The tractable decoder: bits and counts have no variance of their own, which the others name."""
    if likelihood == "bernoulli" or likelihood in OF_COUNTS:
        return "linear"
    return "constant"


def _guide_hurts(latent: str, network: str) -> bool:
    """Whether a guide was found to hurt: the paper's convolutions with Bernoulli latents.

    On MNIST, with 8 channels and three seeds, one that stays as it starts costs 0.25 BPD, one that learns 0.32.
    """
    return latent == "bernoulli" and network == "conv"


def guide_stays(decoders: Decoders, latent: str, likelihood: LikelihoodName | None) -> bool:
    """Whether an exact guide that starts as probabilistic PCA had better stay so.

    With bits it had. Change of the test BPD against no guide, fully connected networks, three seeds, by `silentgrad
    reproduce causes`: -1.58 on MNIST and -0.08 on Fashion-MNIST, where a guide that learns has -1.42 and +0.13.
    """
    for_a_while = decoders.guided and decoders.estimator != "none"
    return for_a_while and latent == "bernoulli" and likelihood == "gaussian" and decoders.tractable == "constant"


class Rates(NamedTuple):
    """Learning rates.

    Args:
        lr: That of everything.
        lr_network: That of the networks, if it is another.
    """

    lr: float
    lr_network: float | None = None


def rates_for(likelihood: LikelihoodName) -> Rates:
    """The learning rates for data of a likelihood.

    The logarithms of mean counts have a long way to go, and an exact gradient tolerates it: on 1,600 cells of 1,000
    genes, 60 epochs at 1e-3 for all leave 0.03 nats per entry to be gained.
    """
    if likelihood in OF_COUNTS:
        return Rates(1e-2, 2e-3)
    return Rates(5e-4)
