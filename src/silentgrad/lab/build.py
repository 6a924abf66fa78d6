"""From a plan to the model that it describes: the only factory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from silentgrad import estimators as est
from silentgrad.decoders import Circuit, LinearDecoder
from silentgrad.decoders.circuit import default_region_graph, mixtures
from silentgrad.estimators import ESTIMATORS, Estimator
from silentgrad.guided import GuidedVAE
from silentgrad.lab import networks as nets
from silentgrad.lab.data import Levels, Observations, kind_of
from silentgrad.lab.kinds import OF_COUNTS, LikelihoodName
from silentgrad.lab.networks.tractable import COMPONENTS, LIKELIHOODS, TRACTABLE, Form, mixed_per
from silentgrad.lab.settings import (
    SILENT,
    ConfigError,
    EstimatorName,
    ModelConfig,
    Plan,
    Settings,
    family_named,
    resolve,
    resolve_model,
)
from silentgrad.latents.families import Family
from silentgrad.latents.priors import LearnedPrior, MixturePrior, Prior
from silentgrad.schedules import LinearDecay, Schedule, constant, geometric, linear_rise

PRIOR_COMPONENTS = 10


class Outputs(NamedTuple):
    """Shape of an example, levels of an output, and number of covariates: all that decoders have to fit."""

    event_shape: torch.Size
    levels: int
    covariates: int = 0


def plan_for(settings: Settings) -> Plan:
    """The plan that settings come to with the kind of data that they name, which are not read; see `resolve`."""
    return resolve(settings, kind_of(settings.data.name, settings.data.kind).likelihoods)


def model_for(config: ModelConfig, observations: Observations, epochs: int = 1) -> GuidedVAE:
    """The VAE that a configuration describes, for some observations and a number of epochs; see `build_model`.

    Raises:
        ConfigError: No model can be made of it, or its likelihood is not one for these observations.
        ShapeError: Its network does not take examples of this shape.
    """
    kind = type(observations).__name__.lower()
    if not observations.likelihoods:
        raise ConfigError(f"{kind} cannot be trained on from the command line yet: choose another --data.kind")
    levels = "logistic" in observations.likelihoods
    return planned_model(resolve_model(config, observations.likelihoods[0], levels), observations, epochs)


def seen_by(config: ModelConfig, observations: Observations) -> Observations:
    """The observations as a plan's model takes them: levels are whole for probabilities, dequantized for a density."""
    return replace(observations, whole=config.discrete) if isinstance(observations, Levels) else observations


def planned_model(config: ModelConfig, observations: Observations, epochs: int) -> GuidedVAE:
    """The VAE of a plan, as `model_for`: its configuration has nothing left open."""
    kind = type(observations).__name__.lower()
    if config.likelihood not in observations.likelihoods:
        suitable = " or ".join(observations.likelihoods)
        raise ConfigError(
            f"--model.likelihood {config.likelihood} is not for {kind} ({observations.name}): choose {suitable}"
        )
    if nets.NETWORKS[config.network].images_only and len(observations.event_shape) != 3:
        raise ConfigError(f"--model.network {config.network} is for images, not for {kind}: choose mlp")
    covariates = 0 if observations.covariates is None else observations.covariates.train.shape[1]
    vae = _model(config, Outputs(observations.event_shape, observations.resolution, covariates), epochs)
    if observations.mask is not None:
        _require_given(vae)
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
            f"--data.covariates is for counts: a decoder with the likelihood {config.likelihood} has no weights for "
            "them"
        )
    if outputs.covariates and config.without_z:
        raise ConfigError("--model.without_z would take the covariates away too: leave --data.covariates out")
    try:
        return _assembled(config, outputs, epochs)
    except (RuntimeError, MemoryError) as error:  # what torch says to more numbers than memory holds
        raise ConfigError(
            f"no memory for a model of --model.latent_dim {config.latent_dim}, --model.hidden {config.hidden} and "
            f"--model.channels {config.channels} on examples of shape {tuple(outputs.event_shape)}"
        ) from error


def _assembled(config: ModelConfig, outputs: Outputs, epochs: int) -> GuidedVAE:
    family = build_family(config)
    nonlinear = _nonlinear_decoder(config, family, outputs) if config.nonlinear else None
    tractable = _tractable_decoder(config, family, outputs)
    tractable_estimator, estimator = _estimators(config, family)
    follows_guide = config.decoders.estimator == "none"  # the encoder learns from the tractable decoder alone
    vae = GuidedVAE(
        encoder=_encoder(config, family, outputs),
        tractable=tractable,
        nonlinear=nonlinear,
        tractable_estimator=tractable_estimator,
        estimator=estimator,
        # Its weight falls within epochs, from step to step.
        schedule=constant(1.0) if follows_guide else LinearDecay(config.guided * epochs),
        weighting="encoder" if follows_guide else config.weighting,
        cutoff=config.cutoff,
        kl_weight=_kl_weight(config, epochs),
        prior=_prior(config, family),
    )
    if config.without_z:
        for weight in weights_on_z(vae):
            weight.requires_grad_(False)
    return vae


def weights_on_z(vae: GuidedVAE) -> Iterator[Tensor]:
    """The decoders' weights on z; where these are zero, decoders are blind to it."""
    decoders: list[Any] = [decoder for decoder in (vae.tractable, vae.nonlinear) if decoder is not None]
    for decoder in decoders:
        layers = [
            layer
            for name, layer in decoder.named_modules()
            if isinstance(layer, nn.Linear) and not name.endswith(("context.mix", "shifts"))
        ]
        yield from (layer.weight for layer in (layers if decoder is vae.tractable else layers[:1]))


def _require_given(vae: GuidedVAE) -> None:
    """Refuses a model one of whose decoders cannot leave out entries that were not observed."""
    for decoder in (vae.tractable, vae.nonlinear):
        if decoder is not None and not hasattr(decoder, "given"):
            raise ConfigError(
                f"--data.missing is for decoders whose outputs are independent given z, which those of "
                f"{type(decoder).__name__} are not: choose another --model.tractable and --model.likelihood"
            )


# Decoders


def _of_counts(network: nn.Module, config: ModelConfig, outputs: Outputs) -> nets.NonlinearLikelihood:
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
    "bernoulli": (1, lambda network, _, outputs: nets.NonlinearBernoulli(network, outputs.event_shape)),
    "mixture": (3, _of_components),
    "circuit": (3, _of_components),
    **dict.fromkeys(OF_COUNTS, (1, _of_counts)),
}


def _components(config: ModelConfig) -> int:
    if config.likelihood not in COMPONENTS:
        return 1
    return config.components or COMPONENTS[config.likelihood]


def _nonlinear_decoder(config: ModelConfig, family: Family, outputs: Outputs) -> nn.Module:
    numbers, head = HEADS[str(config.likelihood)]
    inputs, sizes = family.shape.numel() + outputs.covariates, nets.Sizes(config.hidden, config.channels)
    build = nets.NETWORKS[config.network].decoder
    return head(build(inputs, outputs.event_shape, sizes, numbers * _components(config)), config, outputs)


def _tractable_decoder(config: ModelConfig, family: Family, outputs: Outputs) -> LinearDecoder | Circuit | None:
    if config.decoders.tractable == "none":
        return None
    form = Form(
        family.shape.numel(),
        outputs.event_shape,
        str(config.likelihood),
        outputs.levels,
        covariates=outputs.covariates,
        components=config.components,
        leaves=config.leaves or "constant",
        gates=config.gates,
        log_term=config.log_term,
        variance=variance_schedule(config)(1),
        radius=config.context,
        context_hidden=config.context_hidden,
        exact=config.decoders.estimator.startswith(SILENT),
    )
    return TRACTABLE[config.decoders.tractable](form)


def variance_schedule(config: ModelConfig) -> Schedule:
    """The fixed variance over epochs."""
    return _shrinking(config.variance_start, config.variance_factor, config.variance)


def _shrinking(start: float | None, factor: float, end: float) -> Schedule:
    """A value over epochs: from a start down to an end by a factor each, or always the end."""
    return constant(end) if start is None else geometric(start, factor, end)


# Latents and the encoder


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
    if config.without_z:
        body: nn.Module = nets.Blind(family.numbers)
    else:
        sizes = nets.Sizes(config.hidden, config.channels)
        body = nets.NETWORKS[config.network].body(shape, family.numbers, sizes)
    return kind(nets.InLevels(body, outputs.levels) if config.discrete else body, family)


# Estimators and their weights


def _estimators(config: ModelConfig, family: Family) -> tuple[Estimator, Estimator | None]:
    """The estimators of the tractable decoder's expectation, and of the nonlinear one's if there is one."""
    if not config.nonlinear:
        return build_estimator(config), None
    guide = _estimator_named(config.guide_estimator, config)
    if config.guide_draws > 1:
        guide = est.Averaged(guide, config.guide_draws)
    return guide, _sampler(family) if config.decoders.estimator == "none" else build_estimator(config)


def _kl_weight(config: ModelConfig, epochs: int) -> Schedule:
    if config.kl_warmup == 0:
        return constant(config.kl_weight)
    return linear_rise(config.kl_warmup * epochs, config.kl_weight)


def _sampler(family: Family) -> Estimator:
    """Estimator that feeds the nonlinear decoder samples when no gradient goes back through them."""
    samplers: tuple[type[Estimator], ...] = (est.Reparameterized, est.StraightThrough)
    for sampler in samplers:
        if sampler.suits(type(family)):
            return sampler()
    return est.RLOO()


def build_estimator(config: ModelConfig) -> Estimator:
    """The estimator of a configuration that has nothing left open."""
    return _estimator_named(config.decoders.estimator, config)


def _estimator_named(name: EstimatorName, config: ModelConfig) -> Estimator:
    if name == "gumbel-softmax":
        temperature = _shrinking(config.temperature_start, config.temperature_factor, config.temperature)
        return est.GumbelSoftmax(temperature, config.hard)
    if name == "exact":
        return est.Exact(allow_approximation=True)  # the log term is its user's choice
    if name.startswith(SILENT):
        return est.SilentControlVariate(_estimator_named(name.removeprefix(SILENT), config))
    return ESTIMATORS.resolve(name).sized(build_family(config).shape.numel())
