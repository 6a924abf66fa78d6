"""From a configuration to the model it describes."""

import torch

from silentgrad.decoders import LinearDecoder, LinearGaussian, LinearLikelihood, LinearPrecisionGaussian
from silentgrad.estimators import Estimator, Exact, GumbelSoftmax, Reparameterized, Rloo, StraightThrough
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations
from silentgrad.lab.kinds import LikelihoodName
from silentgrad.lab.networks import NETWORKS, Encoder, NonlinearBernoulli, NonlinearGaussian, Sizes
from silentgrad.lab.training.config import ModelConfig
from silentgrad.lab.training.ranges import ConfigError
from silentgrad.lab.training.suitable import ESTIMATORS, family_named
from silentgrad.latents.families import Family
from silentgrad.latents.priors import LearnedPrior, MixturePrior, Prior
from silentgrad.likelihoods import Bernoulli
from silentgrad.schedules import Schedule, constant, geometric, linear_decay

COMPONENTS = 10  # of a mixture prior, unless told otherwise


def model_for(config: ModelConfig, observations: Observations) -> GuidedVAE:
    """The VAE that a configuration describes, for some observations.

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
    return build_model(config, observations.event_shape, observations.resolution, likelihood)


def build_model(
    config: ModelConfig, event_shape: torch.Size, levels: int, likelihood: LikelihoodName = "gaussian"
) -> GuidedVAE:
    """The VAE that a configuration describes, for examples of a shape and a number of levels.

    Raises:
        ConfigError: No model can be made of it.
        ShapeError: Its network does not take examples of this shape.
    """
    config.validate()
    if likelihood == "bernoulli":
        _require_bernoulli(config)
    try:
        return _model(config, event_shape, levels, likelihood)
    except (RuntimeError, MemoryError) as error:  # what torch says to more numbers than memory holds
        raise ConfigError(
            f"no memory for a model of --model.latent_dim {config.latent_dim}, --model.hidden {config.hidden} and "
            f"--model.channels {config.channels} on examples of shape {tuple(event_shape)}"
        ) from error


def _require_bernoulli(config: ModelConfig) -> None:
    """Refuses what a Bernoulli likelihood does not have."""
    if config.tractable in ("fixed", "exp"):
        raise ConfigError(
            f"--model.tractable {config.tractable} is a Gaussian decoder's variance, and bits have none: "
            "choose --model.tractable linear, or none"
        )
    if config.tractable != "none" and not family_named(config.latent).gaussian:
        raise ConfigError(
            f"a linear decoder of bits has a closed form for Gaussian latents only, not for --model.latent "
            f"{config.latent}: choose --model.tractable none"
        )


def _model(config: ModelConfig, event_shape: torch.Size, levels: int, likelihood: LikelihoodName) -> GuidedVAE:
    family = build_family(config)
    nonlinear = _nonlinear(config, family, event_shape, levels, likelihood) if config.nonlinear else None
    linear = _linear(config, family, event_shape, likelihood)
    alone = config.estimator == "none"
    estimator = _sampler(family) if alone else build_estimator(config)
    return GuidedVAE(
        encoder=_encoder(config, family, event_shape),
        tractable=linear,
        nonlinear=nonlinear,
        tractable_estimator=estimator if nonlinear is None else closed_form(),
        estimator=None if nonlinear is None else estimator,
        schedule=constant(1.0) if alone else linear_decay(config.annealing_rate),
        weighting="encoder" if alone else config.weighting,
        cutoff=config.cutoff,
        kl_weight=config.kl_weight,
        prior=_prior(config, family),
    )


def variance_schedule(config: ModelConfig) -> Schedule:
    """The fixed variance over epochs."""
    return _shrinking(config.variance_start, config.variance_factor, config.variance)


def temperature_schedule(config: ModelConfig) -> Schedule:
    """The temperature of Gumbel-Softmax over epochs."""
    return _shrinking(config.temperature_start, config.temperature_factor, config.temperature)


def _shrinking(start: float | None, factor: float, end: float) -> Schedule:
    return constant(end) if start is None else geometric(start, factor, end)


def build_family(config: ModelConfig) -> Family:
    """The family of latents that a configuration names."""
    family = family_named(config.latent)
    options = {name: getattr(config, name) for name in family.options}
    given = {name: value for name, value in options.items() if value is not None}
    return family(config.latent_dim, **given)


def _prior(config: ModelConfig, family: Family) -> Prior:
    if config.prior == "learned":
        return LearnedPrior(family)
    if config.prior == "mixture":
        return MixturePrior(family, config.prior_components or COMPONENTS)
    return family.prior()


def _encoder(config: ModelConfig, family: Family, event_shape: torch.Size) -> Encoder:
    body = NETWORKS[config.network].body(event_shape, family.numbers, _sizes(config))
    return Encoder(body, family)


def _sizes(config: ModelConfig) -> Sizes:
    return Sizes(config.hidden, config.channels)


def _linear(
    config: ModelConfig, family: Family, event_shape: torch.Size, likelihood: LikelihoodName
) -> LinearDecoder | None:
    latents = family.shape.numel()
    if config.tractable == "none":
        return None
    if likelihood == "bernoulli":
        return LinearLikelihood(latents, event_shape, Bernoulli())
    if config.tractable == "fixed":
        return LinearGaussian(latents, event_shape, variance_schedule(config)(1))
    return LinearPrecisionGaussian(latents, event_shape, link=config.tractable, log_term=config.log_term)


def _nonlinear(
    config: ModelConfig, family: Family, event_shape: torch.Size, levels: int, likelihood: LikelihoodName
) -> NonlinearGaussian | NonlinearBernoulli:
    latents = family.shape.numel()
    numbers = 1 if likelihood == "bernoulli" else 2
    network = NETWORKS[config.network].decoder(latents, event_shape, _sizes(config), numbers)
    if likelihood == "bernoulli":
        return NonlinearBernoulli(network, event_shape)
    return NonlinearGaussian(network, event_shape, levels)


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
    if config.estimator == "gumbel-softmax":
        return GumbelSoftmax(temperature_schedule(config), config.hard)
    if config.estimator == "exact":
        return closed_form()
    return ESTIMATORS[config.estimator]()
