"""Tractable decoders p(x|z): those that know the expectation of their log-probability."""

from silentgrad.decoders.circuit import Circuit, Mixture
from silentgrad.decoders.context import CausalContext, Context, set_context_weight
from silentgrad.decoders.discretized import ConstantCategorical, DiscretizedLogistic
from silentgrad.decoders.drawing import CircuitDistribution
from silentgrad.decoders.gaussian import LinearGaussian, StandardizedGaussian
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.precision import LinearPrecisionGaussian
from silentgrad.decoders.protocol import Leaf, Statistical, Tractable, is_tractable
from silentgrad.decoders.region_graphs import RegionGraph, binary_tree, chow_liu, quad_tree

__all__ = [
    "CausalContext",
    "Circuit",
    "CircuitDistribution",
    "ConstantCategorical",
    "Context",
    "DiscretizedLogistic",
    "Leaf",
    "LinearDecoder",
    "LinearGaussian",
    "LinearLikelihood",
    "LinearPrecisionGaussian",
    "Mixture",
    "RegionGraph",
    "StandardizedGaussian",
    "Statistical",
    "Tractable",
    "binary_tree",
    "chow_liu",
    "is_tractable",
    "quad_tree",
    "set_context_weight",
]
