"""From a plan to the model that it describes: the only factory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from silentgrad import estimators as est
from silentgrad.decoders.region_graphs import default_region_graph, mixtures
from silentgrad.estimators import ESTIMATORS, Estimator
from silentgrad.guided import GuidedVAE
from silentgrad.lab import networks as nets
from silentgrad.lab.data import Levels, Observations, kind_of
from silentgrad.lab.kinds import COMPONENTS, OF_COUNTS, LikelihoodName
from silentgrad.lab.settings import (
    SILENT,
    TEMPERATURE,
    ConfigError,
    EstimatorName,
    ModelConfig,
    Plan,
    Settings,
    family_named,
    has_temperature,
    resolve,
    resolve_model,
)
from silentgrad.lab.settings.tractable import LIKELIHOODS, Outputs, mixed_per, tractable_decoder
from silentgrad.latents.families import Family
from silentgrad.latents.priors import LearnedPrior, MixturePrior, Prior
from silentgrad.schedules import LinearDecay, Schedule, constant, geometric, linear_rise

PRIOR_COMPONENTS = 10


def plan_for(settings: Settings) -> Plan:
    """Return the plan of settings for the kind of data that they name, which are not read; see `resolve`."""
    return resolve(settings, kind_of(settings.data.name, settings.data.kind).likelihoods)


def seen_by(config: ModelConfig, observations: Observations) -> Observations:
    """Return observations as a plan's model takes them: whole levels for probabilities, dequantized for a density."""
    return replace(observations, whole=config.discrete) if isinstance(observations, Levels) else observations


def model_for(config: ModelConfig, observations: Observations, epochs: int = 1) -> GuidedVAE:
    """Return the VAE of a configuration for some observations and a number of epochs; see `build_model`."""
    kind, likelihoods = type(observations).__name__.lower(), observations.likelihoods
    config = resolve_model(config, likelihoods[0], "logistic" in likelihoods)
    if config.likelihood not in likelihoods:
        raise ConfigError(
            f"--model.likelihood {config.likelihood} is not for {kind} ({observations.name}): choose "
            f"{' or '.join(likelihoods)}"
        )
    if nets.NETWORKS[config.network].images_only and len(observations.event_shape) != 3:
        raise ConfigError(f"--model.network {config.network} is for images, not for {kind}: choose mlp")
    covariates = 0 if observations.covariates is None else observations.covariates.train.shape[1]
    masked = observations.mask is not None
    return _model(config, Outputs(observations.event_shape, observations.resolution, covariates, masked), epochs)


def build_model(
    config: ModelConfig,
    event_shape: torch.Size,
    levels: int,
    likelihood: LikelihoodName = "gaussian",
    epochs: int = 1,
    covariates: int = 0,
) -> GuidedVAE:
    """Build the VAE of a configuration.

    Args:
        config: The configuration.
        event_shape: Shape of one example.
        levels: Number of levels of an output.
        likelihood: Likelihood of the decoders, if the configuration has none.
        epochs: Number of epochs of the training that `guided` and `kl_warmup` are parts of.
        covariates: Number of covariates of each example.

    Raises:
        ConfigError: No model can be made of it.
        ShapeError: Its network does not take examples of this shape.
    """
    return _model(resolve_model(config, likelihood), Outputs(event_shape, levels, covariates), epochs)


def _model(config: ModelConfig, outputs: Outputs, epochs: int) -> GuidedVAE:
    if outputs.covariates and config.likelihood not in OF_COUNTS:
        raise ConfigError(
            f"--data.covariates is for counts: the likelihood {config.likelihood} has no weights for them"
        )
    if outputs.covariates and config.without_z:
        raise ConfigError("--model.without_z would take the covariates away too: leave --data.covariates out")
    family, follows_guide = build_family(config), config.decoders.estimator == "none"
    kl_weight = constant(config.kl_weight)
    if config.kl_warmup:
        kl_weight = linear_rise(config.kl_warmup * epochs, config.kl_weight)
    try:
        nonlinear = _nonlinear_decoder(config, family, outputs) if config.nonlinear else None
        tractable = tractable_decoder(config, family, outputs)
        encoder, prior = _encoder(config, family, outputs), _prior(config, family)
        # Last, so that models which differ in the estimator only start alike, with networks in it or without.
        tractable_estimator, estimator = _estimators(config, family)
        vae = GuidedVAE(
            encoder=encoder,
            tractable=tractable,
            nonlinear=nonlinear,
            tractable_estimator=tractable_estimator,
            estimator=estimator,
            # Its weight falls within epochs, from step to step; an encoder that follows it alone has it throughout.
            schedule=constant(1.0) if follows_guide else LinearDecay(config.guided * epochs),
            weighting="encoder" if follows_guide else config.weighting,
            cutoff=config.cutoff,
            kl_weight=kl_weight,
            prior=prior,
        )
    except (RuntimeError, MemoryError) as error:  # what torch says to more numbers than memory holds
        raise ConfigError(
            f"no memory for a model of --model.latent_dim {config.latent_dim}, --model.hidden {config.hidden} and "
            f"--model.channels {config.channels} on examples of shape {tuple(outputs.event_shape)}"
        ) from error
    if config.without_z:
        for weight in weights_on_z(vae):
            weight.requires_grad_(False)
    for decoder in (tractable, nonlinear):
        if outputs.masked and decoder is not None and not hasattr(decoder, "given"):
            raise ConfigError(
                f"--data.missing is for decoders whose outputs are independent given z, which those of "
                f"{type(decoder).__name__} are not: choose another --model.tractable and --model.likelihood"
            )
    return vae


def weights_on_z(vae: GuidedVAE) -> Iterator[Tensor]:
    """Yield the decoders' weights on z; where these are zero, decoders are blind to it."""
    decoders: list[Any] = [decoder for decoder in (vae.tractable, vae.nonlinear) if decoder is not None]
    for decoder in decoders:
        named = [(name, layer) for name, layer in decoder.named_modules() if isinstance(layer, nn.Linear)]
        layers = [layer for name, layer in named if not name.endswith(("context.mix", "shifts"))]
        yield from (layer.weight for layer in (layers if decoder is vae.tractable else layers[:1]))


# Decoders


def _of_likelihood(network: nn.Module, config: ModelConfig, outputs: Outputs) -> nets.NonlinearLikelihood:
    likelihood = LIKELIHOODS[str(config.likelihood)](outputs.event_shape)
    return nets.NonlinearLikelihood(network, outputs.event_shape, likelihood, outputs.covariates)


def _of_components(network: nn.Module, config: ModelConfig, outputs: Outputs) -> nets.NonlinearCircuit:
    region_graph = default_region_graph(outputs.event_shape)
    if config.likelihood == "mixture":
        region_graph = mixtures(outputs.event_shape, mixed_per(outputs.event_shape))
    shape, components = outputs.event_shape, _components(config)
    return nets.NonlinearCircuit(network, shape, components, region_graph, outputs.levels, config.discrete)


# How many numbers a network gives for each output and component, and what makes a nonlinear decoder of it.
HEADS: Mapping[str, tuple[int, Callable[[nn.Module, ModelConfig, Outputs], nn.Module]]] = {
    "gaussian": (2, lambda network, _, outputs: nets.NonlinearGaussian(network, outputs.event_shape, outputs.levels)),
    "logistic": (2, lambda network, _, outputs: nets.NonlinearLogistic(network, outputs.event_shape, outputs.levels)),
    "constant": (1, lambda network, _, outputs: nets.NonlinearStandardized(network, outputs.event_shape)),
    "mixture": (3, _of_components),
    "circuit": (3, _of_components),
    **dict.fromkeys(("bernoulli", *OF_COUNTS), (1, _of_likelihood)),
}


def _components(config: ModelConfig) -> int:
    return (config.components or COMPONENTS[config.likelihood]) if config.likelihood in COMPONENTS else 1


def _nonlinear_decoder(config: ModelConfig, family: Family, outputs: Outputs) -> nn.Module:
    numbers, head = HEADS[str(config.likelihood)]
    network, inputs = nets.NETWORKS[config.network], family.shape.numel() + outputs.covariates
    sizes = {name: getattr(config, name) for name in network.sizes}
    made = network.decoder(inputs, outputs.event_shape, numbers * _components(config), **sizes)
    return head(made, config, outputs)


def annealed(config: ModelConfig, name: Literal["variance", "temperature"]) -> Schedule:
    """Return a setting over epochs: from its start down to its end by a factor each, or always its end."""
    start, factor, end = (getattr(config, f"{name}{suffix}") for suffix in ("_start", "_factor", ""))
    return constant(end or TEMPERATURE) if start is None else geometric(start, factor, end or TEMPERATURE)


# Latents, the encoder and estimators


def build_family(config: ModelConfig) -> Family:
    family = family_named(config.latent)
    given = {name: getattr(config, name) for name in family.options}
    return family(config.latent_dim, **{name: value for name, value in given.items() if value is not None})


def _prior(config: ModelConfig, family: Family) -> Prior:
    if config.prior == "learned":
        return LearnedPrior(family)
    if config.prior == "mixture":
        return MixturePrior(family, config.prior_components or PRIOR_COMPONENTS)
    return family.prior()


def _encoder(config: ModelConfig, family: Family, outputs: Outputs) -> nets.Encoder:
    shape, kind = outputs.event_shape, nets.Encoder
    if config.likelihood in OF_COUNTS:
        shape, kind = torch.Size([shape.numel() + outputs.covariates]), nets.CountEncoder
    body: nn.Module = nets.Blind(family.numbers)
    if not config.without_z:
        network = nets.NETWORKS[config.network]
        body = network.body(shape, family.numbers, **{name: getattr(config, name) for name in network.sizes})
    return kind(nets.InLevels(body, outputs.levels) if config.discrete else body, family)


def _estimators(config: ModelConfig, family: Family) -> tuple[Estimator, Estimator | None]:
    """Return the estimators of the tractable decoder's expectation, and of the nonlinear one's if there is one."""
    if not config.nonlinear:
        return build_estimator(config), None
    guide = build_estimator(config, config.guide_estimator)
    if config.decoders.estimator != "none":
        return guide, build_estimator(config)
    # The nonlinear decoder is fed samples, through which no gradient goes back.
    samplers: tuple[type[Estimator], ...] = (est.Reparameterized, est.StraightThrough, est.RLOO)
    return guide, next(sampler for sampler in samplers if sampler.suits(type(family)))()


def build_estimator(config: ModelConfig, name: EstimatorName | None = None) -> Estimator:
    """Return an estimator by name, or that of a configuration that has nothing left open."""
    name = name or config.decoders.estimator
    if name == "gumbel-softmax":
        return est.GumbelSoftmax(annealed(config, "temperature"), config.hard)
    if name == "exact":
        return est.Exact(allow_approximation=True)  # the log term is its user's choice
    if name.startswith(SILENT):
        return est.SilentControlVariate(build_estimator(config, name.removeprefix(SILENT)))
    chosen: Any = ESTIMATORS.resolve(name)
    if config.temperature is not None and has_temperature(name):
        return chosen(temperature=config.temperature)
    return chosen.sized(build_family(config).shape.numel())
