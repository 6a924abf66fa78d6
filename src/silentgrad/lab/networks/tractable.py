"""Tractable decoders by name, and the likelihoods of one parameter per output by theirs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import nn

from silentgrad.decoders import (
    CausalContext,
    Circuit,
    ConstantCategorical,
    DiscretizedLogistic,
    LinearDecoder,
    LinearGaussian,
    LinearLikelihood,
    LinearPrecisionGaussian,
    Mixture,
    StandardizedGaussian,
)
from silentgrad.decoders.circuit import Gates
from silentgrad.decoders.precision import LogTerm
from silentgrad.likelihoods import (
    Bernoulli,
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

TractableKind = Literal["none", "fixed", "constant", "linear", "exp", "mixture", "circuit"]
LeafKind = Literal["exp", "constant", "logistic", "categorical"]
OF_LEVELS = ("logistic", "categorical")  # leaves that give probabilities of whole levels

COMPONENTS = {"mixture": 3, "circuit": 8}

LIKELIHOODS: Mapping[str, Callable[[Sequence[int]], nn.Module]] = {
    "bernoulli": lambda event_shape: Bernoulli(),
    "negative-binomial": NegativeBinomial,
    "poisson": lambda event_shape: Poisson(),
    "zero-inflated-poisson": ZeroInflatedPoisson,
    "zero-inflated-negative-binomial": ZeroInflatedNegativeBinomial,
}


class Form(NamedTuple):
    """Everything that a tractable decoder is built from; options that it does not have are left aside."""

    latents: int
    event_shape: torch.Size
    likelihood: str  # those that are not in `LIKELIHOODS` have a location linear in z
    levels: int = 256
    covariates: int = 0
    components: int | None = None
    leaves: LeafKind = "constant"  # their kind
    gates: Gates = "leaves"  # sums whose weights are linear in z
    log_term: LogTerm = "auto"  # how the logarithm of a linear precision is evaluated
    variance: float = 0.01  # the fixed one
    radius: int | None = None  # how far the context sees; None without one
    context_hidden: int = 48  # features of the context
    exact: bool = False  # whether logistic leaves have their exact expectation, if there is one, not a faster bound

    @property
    def expectation(self) -> Literal["auto", "bound"]:
        """How a logistic leaf finds its expectation."""
        return "auto" if self.exact else "bound"

    @property
    def context(self) -> CausalContext | None:
        """The context of the outputs, if there is one."""
        return None if self.radius is None else CausalContext(self.event_shape, self.radius, self.context_hidden)


def mixed_per(event_shape: torch.Size) -> Literal["pixel", "output"]:
    """Return the unit of a mixture: the colours of a pixel are mixed together."""
    return "pixel" if len(event_shape) == 3 else "output"


def _linear(form: Form) -> LinearDecoder:
    if form.likelihood == "logistic":
        return DiscretizedLogistic(form.latents, form.event_shape, form.levels, form.expectation, form.context)
    if form.likelihood not in LIKELIHOODS:
        return LinearPrecisionGaussian(form.latents, form.event_shape, link="linear", log_term=form.log_term)
    likelihood = LIKELIHOODS[form.likelihood](form.event_shape)
    return LinearLikelihood(form.latents, form.event_shape, likelihood, covariates=form.covariates)


def _mixture(form: Form) -> Mixture:
    shape, components = form.event_shape, form.components or COMPONENTS["mixture"]
    return Mixture(form.latents, shape, components, mixed_per(shape), leaves=_leaves(form, components))


def _circuit(form: Form) -> Circuit:
    components = form.components or COMPONENTS["circuit"]
    return Circuit(form.latents, form.event_shape, components, gates=form.gates, leaves=_leaves(form, components))


def _leaves(form: Form, components: int) -> LinearDecoder | ConstantCategorical:
    """Return the leaves of a circuit, whose locations are linear in z, and log-precisions too if they are "exp"."""
    shape = (*form.event_shape, components)
    if form.likelihood in LIKELIHOODS:
        return LinearLikelihood(form.latents, shape, LIKELIHOODS[form.likelihood](shape))
    if form.leaves == "exp":
        return LinearPrecisionGaussian(form.latents, shape, link="exp")
    if form.leaves == "logistic":
        return DiscretizedLogistic(form.latents, shape, form.levels, form.expectation, form.context)
    if form.leaves == "categorical":
        return ConstantCategorical(form.latents, shape, form.levels)
    return StandardizedGaussian(form.latents, shape, context=form.context)


TRACTABLE: dict[str, Callable[[Form], LinearDecoder | Circuit]] = {
    "fixed": lambda form: LinearGaussian(form.latents, form.event_shape, form.variance),
    "constant": lambda form: StandardizedGaussian(form.latents, form.event_shape, context=form.context),
    "linear": _linear,
    "exp": lambda form: LinearPrecisionGaussian(form.latents, form.event_shape, link="exp"),
    "mixture": _mixture,
    "circuit": _circuit,
}
