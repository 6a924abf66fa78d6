"""From a configuration to the model it describes."""

from typing import Literal, NamedTuple

import torch
from torch import nn

from silentgrad.decoders import (
    Circuit,
    LinearDecoder,
    LinearGaussian,
    LinearLikelihood,
    LinearPrecisionGaussian,
    Mixture,
    StandardizedGaussian,
)
from silentgrad.decoders.circuit import default_structure
from silentgrad.decoders.mixture import mixtures
from silentgrad.estimators import (
    Averaged,
    Estimator,
    Exact,
    GumbelSoftmax,
    Nvil,
    Relax,
    Reparameterized,
    Rloo,
    StraightThrough,
)
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations
from silentgrad.lab.kinds import LikelihoodName
from silentgrad.lab.networks import NETWORKS, Encoder, NonlinearBernoulli, NonlinearCircuit, NonlinearGaussian, Sizes
from silentgrad.lab.training.config import ModelConfig
from silentgrad.lab.training.ranges import ConfigError
from silentgrad.lab.training.suitable import ESTIMATORS, EstimatorName, family_named, gaussian_leaves
from silentgrad.latents.families import Family
from silentgrad.latents.priors import LearnedPrior, MixturePrior, Prior
from silentgrad.likelihoods import Bernoulli
from silentgrad.objective import Weighting
from silentgrad.schedules import Schedule, constant, geometric, linear_decay, linear_rise

PRIOR_COMPONENTS = 10
COMPONENTS = {"mixture": 3, "circuit": 8}
NUMBERS = {"bernoulli": 1, "gaussian": 2, "mixture": 3, "circuit": 3}  # of the network, per output and component


def model_for(config: ModelConfig, observations: Observations, epochs: int = 1) -> GuidedVAE:
    """The VAE that a configuration describes, for some observations and a number of epochs, as `build_model`.

    Raises:
        ConfigError: No model can be made of it, or its likelihood is not one for these observations.
        ShapeError: Its network does not take examples of this shape.
    """
    kind = type(observations).__name__.lower()
    if not observations.likelihoods:
        raise ConfigError(f"{kind} cannot be trained on from the command line yet: choose another --data.kind")
    for beside in ("covariates", "mask", "offset"):
        if getattr(observations, beside) is not None:
            raise ConfigError(
                f"no model of the command line looks at the {beside} of {observations.name} yet: leave it out"
            )
    likelihood = config.likelihood or observations.likelihoods[0]
    if likelihood not in observations.likelihoods:
        suitable = " or ".join(observations.likelihoods)
        raise ConfigError(f"--model.likelihood {likelihood} is not for {kind} ({observations.name}): choose {suitable}")
    if NETWORKS[config.network].images_only and len(observations.event_shape) != 3:
        raise ConfigError(f"--model.network {config.network} is for images, not for {kind}: choose mlp")
    return build_model(config, observations.event_shape, observations.resolution, likelihood, epochs)


def build_model(
    config: ModelConfig,
    event_shape: torch.Size,
    levels: int,
    likelihood: LikelihoodName = "gaussian",
    epochs: int = 1,
) -> GuidedVAE:
    """The VAE that a configuration describes.

    Args:
        config: The configuration.
        event_shape: Shape of one example.
        levels: Number of levels of an output.
        likelihood: Likelihood of the decoders.
        epochs: Number of epochs of the training that `guided` and `kl_warmup` are parts of.

    Raises:
        ConfigError: No model can be made of it.
        ShapeError: Its network does not take examples of this shape.
    """
    config.validate()
    if likelihood == "bernoulli":
        _require_bernoulli(config)
    try:
        return _model(config, event_shape, levels, likelihood, epochs)
    except (RuntimeError, MemoryError) as error:  # what torch says to more numbers than memory holds
        raise ConfigError(
            f"no memory for a model of --model.latent_dim {config.latent_dim}, --model.hidden {config.hidden} and "
            f"--model.channels {config.channels} on examples of shape {tuple(event_shape)}"
        ) from error


def _require_bernoulli(config: ModelConfig) -> None:
    """Refuses what a Bernoulli likelihood does not have."""
    if config.leaves != "constant":
        raise ConfigError(f"--model.leaves {config.leaves} is a Gaussian leaf's precision, and bits have none")
    if config.tractable in ("fixed", "constant", "exp"):
        raise ConfigError(
            f"--model.tractable {config.tractable} is a Gaussian decoder's variance, and bits have none: "
            "choose --model.tractable linear, or none"
        )
    if config.tractable != "none" and not family_named(config.latent).gaussian:
        raise ConfigError(
            f"a linear decoder of bits has a closed form for Gaussian latents only, not for --model.latent "
            f"{config.latent}: choose --model.tractable none"
        )


def _model(
    config: ModelConfig, event_shape: torch.Size, levels: int, likelihood: LikelihoodName, epochs: int
) -> GuidedVAE:
    family = build_family(config)
    nonlinear = None
    if config.nonlinear:
        nonlinear = _nonlinear(config, family, event_shape, levels, likelihood)
    tractable = _tractable(config, family, event_shape, likelihood)
    guidance = _guidance(config, family, epochs)
    return GuidedVAE(
        encoder=_encoder(config, family, event_shape),
        tractable=tractable,
        nonlinear=nonlinear,
        tractable_estimator=guidance.tractable_estimator,
        estimator=guidance.estimator,
        schedule=guidance.schedule,
        weighting=guidance.weighting,
        cutoff=config.cutoff,
        kl_weight=_kl_weight(config, epochs),
        prior=_prior(config, family),
    )


class _Guidance(NamedTuple):
    """How the decoders' expectations are estimated and weighted.

    Args:
        tractable_estimator: Estimator of the tractable decoder's expectation.
        estimator: Estimator of the nonlinear decoder's expectation, if there is one.
        schedule: Weight of the tractable decoder over epochs.
        weighting: What that weight scales.
    """

    tractable_estimator: Estimator
    estimator: Estimator | None
    schedule: Schedule
    weighting: Weighting


def _guidance(config: ModelConfig, family: Family, epochs: int) -> _Guidance:
    if config.estimator == "none":  # the encoder learns from the tractable decoder alone
        return _Guidance(_guide_estimator(config), _sampler(family), constant(1.0), "encoder")
    schedule = linear_decay(epochs=config.guided * epochs)
    if config.nonlinear:
        return _Guidance(_guide_estimator(config), build_estimator(config), schedule, config.weighting)
    return _Guidance(build_estimator(config), None, schedule, config.weighting)


def _kl_weight(config: ModelConfig, epochs: int) -> Schedule:
    """The weight of the KL divergence over epochs."""
    if config.kl_warmup == 0:
        return constant(config.kl_weight)
    return linear_rise(config.kl_warmup * epochs, config.kl_weight)


def variance_schedule(config: ModelConfig) -> Schedule:
    """The fixed variance over epochs."""
    return _shrinking(config.variance_start, config.variance_factor, config.variance)


def temperature_schedule(config: ModelConfig) -> Schedule:
    """The temperature of Gumbel-Softmax over epochs."""
    return _shrinking(config.temperature_start, config.temperature_factor, config.temperature)


def _shrinking(start: float | None, factor: float, end: float) -> Schedule:
    if start is None:
        return constant(end)
    return geometric(start, factor, end)


def build_family(config: ModelConfig) -> Family:
    """The family of latents that a configuration names."""
    family = family_named(config.latent)
    options = {}
    for name in family.options:
        value = getattr(config, name)
        if value is not None:
            options[name] = value
    return family(config.latent_dim, **options)


def _prior(config: ModelConfig, family: Family) -> Prior:
    if config.prior == "learned":
        return LearnedPrior(family)
    if config.prior == "mixture":
        return MixturePrior(family, config.prior_components or PRIOR_COMPONENTS)
    return family.prior()


def _encoder(config: ModelConfig, family: Family, event_shape: torch.Size) -> Encoder:
    body = NETWORKS[config.network].body(event_shape, family.numbers, _sizes(config))
    return Encoder(body, family)


def _sizes(config: ModelConfig) -> Sizes:
    return Sizes(config.hidden, config.channels)


def _tractable(
    config: ModelConfig, family: Family, event_shape: torch.Size, likelihood: LikelihoodName
) -> LinearDecoder | Circuit | None:
    latents = family.shape.numel()
    if config.tractable == "none":
        return None
    if config.tractable == "mixture" or config.tractable == "circuit":
        return _circuit(config, latents, event_shape, likelihood)
    if likelihood == "bernoulli":
        return LinearLikelihood(latents, event_shape, Bernoulli())
    if config.tractable == "fixed":
        return LinearGaussian(latents, event_shape, variance_schedule(config)(1))
    if config.tractable == "constant":
        return StandardizedGaussian(latents, event_shape)
    return LinearPrecisionGaussian(latents, event_shape, link=config.tractable, log_term=config.log_term)


def _circuit(config: ModelConfig, latents: int, event_shape: torch.Size, likelihood: LikelihoodName) -> Circuit:
    components = _components(config, config.tractable)
    leaves = gaussian_leaves(latents, event_shape, components, config.leaves)
    if likelihood == "bernoulli":
        leaves = LinearLikelihood(latents, (*event_shape, components), Bernoulli())
    if config.tractable == "mixture":
        return Mixture(latents, event_shape, components, _mixed_per(event_shape), leaves=leaves)
    return Circuit(latents, event_shape, components, gates=config.gates, leaves=leaves)


def _components(config: ModelConfig, kind: str) -> int:
    return config.components or COMPONENTS[kind]


def _mixed_per(event_shape: torch.Size) -> Literal["pixel", "output"]:
    """The colours of a pixel are mixed together."""
    if len(event_shape) == 3:
        return "pixel"
    return "output"


def _nonlinear(
    config: ModelConfig, family: Family, event_shape: torch.Size, levels: int, likelihood: LikelihoodName
) -> nn.Module:
    components = 1
    if likelihood == "mixture" or likelihood == "circuit":
        components = _components(config, likelihood)
    numbers = NUMBERS[likelihood] * components
    latents = family.shape.numel()
    network = NETWORKS[config.network].decoder(latents, event_shape, _sizes(config), numbers)
    if likelihood == "bernoulli":
        return NonlinearBernoulli(network, event_shape)
    if likelihood == "gaussian":
        return NonlinearGaussian(network, event_shape, levels)
    structure = default_structure(event_shape)
    if likelihood == "mixture":
        structure = mixtures(event_shape, _mixed_per(event_shape))
    return NonlinearCircuit(network, event_shape, components, structure, levels)


def _sampler(family: Family) -> Estimator:
    """What feeds the nonlinear decoder samples when no gradient goes back through them."""
    samplers: tuple[type[Estimator], ...] = (Reparameterized, StraightThrough)
    for sampler in samplers:
        if sampler.suits(type(family)):
            return sampler()
    return Rloo()


def closed_form() -> Exact:
    """The exact estimator, which takes approximations too: a configuration's log term is its user's choice."""
    return Exact(allow_approximation=True)


def build_estimator(config: ModelConfig) -> Estimator:
    """The estimator that a configuration names."""
    return _estimator_named(config.estimator, config)


def _guide_estimator(config: ModelConfig) -> Estimator:
    """The estimator of the guide's expectation."""
    estimator = _estimator_named(config.guide_estimator, config)
    if config.guide_draws == 1:
        return estimator
    return Averaged(estimator, config.guide_draws)


def _estimator_named(name: EstimatorName, config: ModelConfig) -> Estimator:
    if name == "gumbel-softmax":
        return GumbelSoftmax(temperature_schedule(config), config.hard)
    if name == "exact":
        return closed_form()
    if name == "nvil":
        return Nvil(inputs=build_family(config).shape.numel())
    if name == "relax":
        return Relax(inputs=build_family(config).shape.numel())
    return ESTIMATORS[name]()
