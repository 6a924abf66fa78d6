"""From a configuration to the model it describes."""

from dataclasses import replace
from typing import NamedTuple

import torch

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
from silentgrad.lab.kinds import OF_COUNTS, LikelihoodName
from silentgrad.lab.networks import NETWORKS, CountEncoder, Encoder
from silentgrad.lab.training.annealing import temperature_schedule
from silentgrad.lab.training.config import ModelConfig
from silentgrad.lab.training.decoding import (
    Outputs,
    nonlinear_decoder,
    require_decoders_of,
    require_given,
    sizes_of,
    tractable_decoder,
)
from silentgrad.lab.training.ranges import ConfigError
from silentgrad.lab.training.suitable import ESTIMATORS, EstimatorName, family_named
from silentgrad.latents.families import Family
from silentgrad.latents.priors import LearnedPrior, MixturePrior, Prior
from silentgrad.objective import Weighting
from silentgrad.schedules import Schedule, constant, linear_decay, linear_rise

PRIOR_COMPONENTS = 10


def model_for(config: ModelConfig, observations: Observations, epochs: int = 1) -> GuidedVAE:
    """The VAE that a configuration describes, for some observations and a number of epochs, as `build_model`.

    Raises:
        ConfigError: No model can be made of it, or its likelihood is not one for these observations.
        ShapeError: Its network does not take examples of this shape.
    """
    kind = type(observations).__name__.lower()
    if not observations.likelihoods:
        raise ConfigError(f"{kind} cannot be trained on from the command line yet: choose another --data.kind")
    likelihood = config.likelihood or observations.likelihoods[0]
    if likelihood not in observations.likelihoods:
        suitable = " or ".join(observations.likelihoods)
        raise ConfigError(f"--model.likelihood {likelihood} is not for {kind} ({observations.name}): choose {suitable}")
    if NETWORKS[config.network].images_only and len(observations.event_shape) != 3:
        raise ConfigError(f"--model.network {config.network} is for images, not for {kind}: choose mlp")
    covariates = 0
    if observations.covariates is not None:
        covariates = observations.covariates.train.shape[1]
    vae = build_model(
        config, observations.event_shape, observations.resolution, likelihood, epochs, covariates=covariates
    )
    if observations.mask is not None:
        require_given(vae)
    return vae


def build_model(
    config: ModelConfig,
    event_shape: torch.Size,
    levels: int,
    likelihood: LikelihoodName = "gaussian",
    epochs: int = 1,
    covariates: int = 0,
) -> GuidedVAE:
    """The VAE that a configuration describes.

    Args:
        config: The configuration.
        event_shape: Shape of one example.
        levels: Number of levels of an output.
        likelihood: Likelihood of the decoders.
        epochs: Number of epochs of the training that `guided` and `kl_warmup` are parts of.
        covariates: Number of covariates of each example.

    Raises:
        ConfigError: No model can be made of it.
        ShapeError: Its network does not take examples of this shape.
    """
    config = replace(config, likelihood=likelihood).resolved(likelihood)
    config.validate()
    outputs = Outputs(event_shape, levels, likelihood, covariates)
    require_decoders_of(outputs, config)
    try:
        return _model(config, outputs, epochs)
    except (RuntimeError, MemoryError) as error:  # what torch says to more numbers than memory holds
        raise ConfigError(
            f"no memory for a model of --model.latent_dim {config.latent_dim}, --model.hidden {config.hidden} and "
            f"--model.channels {config.channels} on examples of shape {tuple(event_shape)}"
        ) from error


def _model(config: ModelConfig, outputs: Outputs, epochs: int) -> GuidedVAE:
    family = build_family(config)
    nonlinear = None
    if config.nonlinear:
        nonlinear = nonlinear_decoder(config, family, outputs)
    tractable = tractable_decoder(config, family, outputs)
    guidance = _guidance(config, family, epochs)
    return GuidedVAE(
        encoder=_encoder(config, family, outputs),
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
    if config.decoders.estimator == "none":  # the encoder learns from the tractable decoder alone
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


def _encoder(config: ModelConfig, family: Family, outputs: Outputs) -> Encoder:
    network = NETWORKS[config.network]
    if outputs.likelihood not in OF_COUNTS:
        return Encoder(network.body(outputs.event_shape, family.numbers, sizes_of(config)), family)
    columns = outputs.event_shape.numel()
    body = network.body(torch.Size([columns + outputs.covariates]), family.numbers, sizes_of(config))
    return CountEncoder(body, family)


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
    return _estimator_named(config.decoders.estimator, config)


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
