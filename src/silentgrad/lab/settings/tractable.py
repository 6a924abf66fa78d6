"""Tractable decoders of models, and the likelihoods of one parameter per output by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import nn

from silentgrad import decoders as dec
from silentgrad import likelihoods as lik
from silentgrad.lab.kinds import COMPONENTS
from silentgrad.lab.settings.options import SILENT, ModelConfig
from silentgrad.latents.families import Family

LIKELIHOODS: Mapping[str, Callable[[Sequence[int]], nn.Module]] = {
    "bernoulli": lambda event_shape: lik.Bernoulli(),
    "negative-binomial": lik.NegativeBinomial,
    "poisson": lambda event_shape: lik.Poisson(),
    "zero-inflated-poisson": lik.ZeroInflatedPoisson,
    "zero-inflated-negative-binomial": lik.ZeroInflatedNegativeBinomial,
}


class Outputs(NamedTuple):
    """What decoders have to fit: the shape of an example, levels of an output, number of covariates, and gaps."""

    event_shape: torch.Size
    levels: int = 256
    covariates: int = 0
    masked: bool = False  # whether entries are missing


def mixed_per(event_shape: torch.Size) -> Literal["pixel", "output"]:
    """Return the unit of a mixture: the colors of a pixel are mixed together."""
    return "pixel" if len(event_shape) == 3 else "output"


def tractable_decoder(config: ModelConfig, family: Family, outputs: Outputs) -> dec.LinearDecoder | dec.Circuit | None:
    """Return the tractable decoder of a configuration that has nothing left open, if there is one."""
    kind, latents, shape = config.decoders.tractable, family.shape.numel(), outputs.event_shape
    if kind == "none":
        return None
    likelihood = str(config.likelihood)
    if kind not in COMPONENTS:
        named = kind == "linear" and likelihood in (*LIKELIHOODS, "logistic")
        return _linear(likelihood if named else kind, config, latents, shape, outputs)
    components = config.components or COMPONENTS[kind]
    own = likelihood if likelihood in LIKELIHOODS else config.leaves or "constant"
    each = (*shape, components)
    leaves: dec.LinearDecoder | dec.ConstantCategorical
    if own == "categorical":
        leaves = dec.ConstantCategorical(latents, each, outputs.levels)
    else:
        leaves = _linear(own, config, latents, each, outputs)
    if kind == "mixture":
        return dec.Mixture(latents, shape, components, mixed_per(shape), leaves=leaves)
    return dec.Circuit(latents, shape, components, gates=config.gates, leaves=leaves)


def _linear(kind: str, config: ModelConfig, latents: int, shape: Sequence[int], outputs: Outputs) -> dec.LinearDecoder:
    """Return a decoder, or the leaves of one, whose locations are linear in z."""
    context = None
    if config.context is not None:
        context = dec.CausalContext(outputs.event_shape, config.context, config.context_hidden)
    if kind == "fixed":
        return dec.LinearGaussian(latents, shape, config.variance_start or config.variance)
    if kind == "exp":
        return dec.LinearPrecisionGaussian(latents, shape, link="exp")
    if kind == "linear":
        return dec.LinearPrecisionGaussian(latents, shape, link="linear", log_term=config.log_term)
    if kind == "constant":
        return dec.StandardizedGaussian(latents, shape, context=context)
    if kind == "logistic":  # a silent estimator needs the exact expectation, if there is one, else a bound is faster
        expectation: Literal["auto", "bound"] = "auto" if config.decoders.estimator.startswith(SILENT) else "bound"
        return dec.DiscretizedLogistic(latents, shape, outputs.levels, expectation, context)
    return dec.LinearLikelihood(latents, shape, LIKELIHOODS[kind](shape), covariates=outputs.covariates)
