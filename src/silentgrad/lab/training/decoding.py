"""From a configuration to the decoders it describes."""

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
from silentgrad.guided import GuidedVAE
from silentgrad.lab.kinds import OF_COUNTS, LikelihoodName
from silentgrad.lab.networks import (
    NETWORKS,
    NonlinearBernoulli,
    NonlinearCircuit,
    NonlinearGaussian,
    NonlinearLikelihood,
    Sizes,
)
from silentgrad.lab.training.annealing import variance_schedule
from silentgrad.lab.training.config import ModelConfig
from silentgrad.lab.training.counting import count_likelihood
from silentgrad.lab.training.ranges import ConfigError
from silentgrad.lab.training.suitable import family_named, gaussian_leaves
from silentgrad.latents.families import Family
from silentgrad.likelihoods import Bernoulli

COMPONENTS = {"mixture": 3, "circuit": 8}
NUMBERS = {"gaussian": 2, "mixture": 3, "circuit": 3}  # of the network, per output and component; else one u


class Outputs(NamedTuple):
    """What decoders have to give.

    Args:
        event_shape: Shape of one example.
        levels: Number of levels of an output.
        likelihood: Likelihood of the outputs.
        covariates: Number of covariates of each example.
    """

    event_shape: torch.Size
    levels: int
    likelihood: LikelihoodName
    covariates: int = 0


def require_decoders_of(outputs: Outputs, config: ModelConfig) -> None:
    """Refuses what a likelihood does not have: a variance where there is none, weights for covariates."""
    tractable, likelihood = config.decoders.tractable, outputs.likelihood
    if likelihood == "bernoulli":
        _require_no_variance("bits", config)
        if tractable != "none" and not family_named(config.latent).gaussian:
            raise ConfigError(
                f"a linear decoder of bits has a closed form for Gaussian latents only, not for --model.latent "
                f"{config.latent}: choose --model.tractable none"
            )
    if likelihood in OF_COUNTS:
        _require_no_variance("counts", config)
        if tractable in ("mixture", "circuit"):
            raise ConfigError(
                f"--model.tractable {tractable} is not for counts: choose --model.tractable linear, or none"
            )
    elif outputs.covariates:
        raise ConfigError(
            f"--data.covariates is for counts: a decoder with the likelihood {likelihood} has no weights for them"
        )


def _require_no_variance(what: str, config: ModelConfig) -> None:
    if config.leaves != "constant":
        raise ConfigError(f"--model.leaves {config.leaves} is a Gaussian leaf's precision, and {what} have none")
    if config.decoders.tractable in ("fixed", "constant", "exp"):
        raise ConfigError(
            f"--model.tractable {config.tractable} is a Gaussian decoder's variance, and {what} have none: "
            "choose --model.tractable linear, or none"
        )


def require_given(vae: GuidedVAE) -> None:
    """Refuses a model one of whose decoders cannot leave out entries that were not observed."""
    for decoder in (vae.tractable, vae.nonlinear):
        if decoder is not None and not hasattr(decoder, "given"):
            raise ConfigError(
                f"--data.missing is for decoders whose outputs are independent given z, which those of "
                f"{type(decoder).__name__} are not: choose another --model.tractable and --model.likelihood"
            )


def sizes_of(config: ModelConfig) -> Sizes:
    """How large the networks are."""
    return Sizes(config.hidden, config.channels)


def tractable_decoder(config: ModelConfig, family: Family, outputs: Outputs) -> LinearDecoder | Circuit | None:
    """The tractable decoder; None if there is none."""
    latents, event_shape = family.shape.numel(), outputs.event_shape
    kind = config.decoders.tractable
    if kind == "none":
        return None
    if kind == "mixture" or kind == "circuit":
        return _circuit(config, latents, outputs)
    likelihood = _likelihood(outputs)
    if likelihood is not None:
        return LinearLikelihood(latents, event_shape, likelihood, covariates=outputs.covariates)
    if kind == "fixed":
        return LinearGaussian(latents, event_shape, variance_schedule(config)(1))
    if kind == "constant":
        return StandardizedGaussian(latents, event_shape)
    return LinearPrecisionGaussian(latents, event_shape, link=kind, log_term=config.log_term)


def _likelihood(outputs: Outputs) -> nn.Module | None:
    """A likelihood of one u per output; None for those that are Gaussian or made of Gaussians."""
    if outputs.likelihood == "bernoulli":
        return Bernoulli()
    return count_likelihood(outputs.likelihood, outputs.event_shape)


def _circuit(config: ModelConfig, latents: int, outputs: Outputs) -> Circuit:
    event_shape, kind = outputs.event_shape, config.decoders.tractable
    components = _components(config, kind)
    leaves = gaussian_leaves(latents, event_shape, components, config.leaves)
    if outputs.likelihood == "bernoulli":
        leaves = LinearLikelihood(latents, (*event_shape, components), Bernoulli())
    if kind == "mixture":
        return Mixture(latents, event_shape, components, _mixed_per(event_shape), leaves=leaves)
    return Circuit(latents, event_shape, components, gates=config.gates, leaves=leaves)


def _components(config: ModelConfig, kind: str) -> int:
    return config.components or COMPONENTS[kind]


def _mixed_per(event_shape: torch.Size) -> Literal["pixel", "output"]:
    """The colours of a pixel are mixed together."""
    if len(event_shape) == 3:
        return "pixel"
    return "output"


def nonlinear_decoder(config: ModelConfig, family: Family, outputs: Outputs) -> nn.Module:
    """The nonlinear decoder."""
    event_shape, likelihood = outputs.event_shape, outputs.likelihood
    components = 1
    if likelihood == "mixture" or likelihood == "circuit":
        components = _components(config, likelihood)
    numbers = NUMBERS.get(likelihood, 1) * components
    inputs = family.shape.numel() + outputs.covariates
    network = NETWORKS[config.network].decoder(inputs, event_shape, sizes_of(config), numbers)
    if likelihood == "bernoulli":
        return NonlinearBernoulli(network, event_shape)
    if likelihood == "gaussian":
        return NonlinearGaussian(network, event_shape, outputs.levels)
    counts = count_likelihood(likelihood, event_shape)
    if counts is not None:
        return NonlinearLikelihood(network, event_shape, counts, outputs.covariates)
    structure = default_structure(event_shape)
    if likelihood == "mixture":
        structure = mixtures(event_shape, _mixed_per(event_shape))
    return NonlinearCircuit(network, event_shape, components, structure, outputs.levels)
