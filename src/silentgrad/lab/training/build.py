"""From a configuration to the model it describes."""

from collections.abc import Callable

import torch
from torch import nn

from silentgrad.decoders import LinearDecoder, LinearGaussian, LinearPrecisionGaussian
from silentgrad.estimators import Estimator, Exact, GumbelSoftmax, Reparameterized, Rloo, StraightThrough
from silentgrad.guided import GuidedVAE
from silentgrad.lab.networks import (
    Encoder,
    NonlinearGaussian,
    conv_body,
    conv_network,
    mlp_body,
    mlp_network,
    strided_body,
    strided_network,
)
from silentgrad.lab.training.config import ModelConfig
from silentgrad.lab.training.ranges import ConfigError
from silentgrad.lab.training.suitable import ESTIMATORS, family_named
from silentgrad.latents.families import Family
from silentgrad.latents.priors import LearnedPrior, MixturePrior, Prior
from silentgrad.schedules import Schedule, constant, geometric, linear_decay

COMPONENTS = 10  # of a mixture prior, unless told otherwise


def build_model(config: ModelConfig, event_shape: torch.Size, levels: int) -> GuidedVAE:
    """The VAE that a configuration describes, for images of a shape and a number of levels.

    Raises:
        ConfigError: No model can be made of it.
        ShapeError: Its network does not take images of this shape.
    """
    config.validate()
    try:
        return _model(config, event_shape, levels)
    except (RuntimeError, MemoryError) as error:  # what torch says to more numbers than memory holds
        raise ConfigError(
            f"no memory for a model of --model.latent_dim {config.latent_dim}, --model.hidden {config.hidden} and "
            f"--model.channels {config.channels} on images of shape {tuple(event_shape)}"
        ) from error


def _model(config: ModelConfig, event_shape: torch.Size, levels: int) -> GuidedVAE:
    family = build_family(config)
    nonlinear = _nonlinear(config, family, event_shape, levels) if config.nonlinear else None
    linear = _linear(config, family, event_shape)
    alone = config.estimator == "none"
    estimator = _sampler(family) if alone else build_estimator(config)
    return GuidedVAE(
        encoder=_encoder(config, family, event_shape),
        linear=linear,
        nonlinear=nonlinear,
        linear_estimator=estimator if nonlinear is None else closed_form(),
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
    outputs = family.numbers
    bodies: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: mlp_body(event_shape, outputs, config.hidden),
        "conv": lambda: conv_body(event_shape, outputs, config.channels),
        "strided": lambda: strided_body(event_shape, outputs, config.channels),
    }
    return Encoder(bodies[config.network](), family)


def _linear(config: ModelConfig, family: Family, event_shape: torch.Size) -> LinearDecoder | None:
    latents = family.shape.numel()
    if config.linear == "none":
        return None
    if config.linear == "fixed":
        return LinearGaussian(latents, event_shape, variance_schedule(config)(1))
    return LinearPrecisionGaussian(latents, event_shape, link=config.linear, log_term=config.log_term)


def _nonlinear(config: ModelConfig, family: Family, event_shape: torch.Size, levels: int) -> NonlinearGaussian:
    latents = family.shape.numel()
    networks: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: mlp_network(latents, event_shape, config.hidden[::-1]),
        "conv": lambda: conv_network(latents, event_shape, config.channels),
        "strided": lambda: strided_network(latents, event_shape, config.channels),
    }
    return NonlinearGaussian(networks[config.network](), event_shape, levels)


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
