"""Tractable decoders p(x|z): those that know the expectation of their log-probability."""

from silentgrad.decoders.chow_liu import chow_liu
from silentgrad.decoders.circuit import Circuit
from silentgrad.decoders.circuit_distribution import CircuitDistribution
from silentgrad.decoders.constants import ConstantCategorical
from silentgrad.decoders.gaussian import LinearGaussian
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.mixture import Mixture
from silentgrad.decoders.precision import LinearPrecisionGaussian
from silentgrad.decoders.protocol import Leaf, Tractable, is_tractable
from silentgrad.decoders.standardized import StandardizedGaussian
from silentgrad.decoders.structures import Structure, binary_tree, quad_tree

__all__ = [
    "Circuit",
    "CircuitDistribution",
    "ConstantCategorical",
    "Leaf",
    "LinearDecoder",
    "LinearGaussian",
    "LinearLikelihood",
    "LinearPrecisionGaussian",
    "Mixture",
    "StandardizedGaussian",
    "Structure",
    "Tractable",
    "binary_tree",
    "chow_liu",
    "is_tractable",
    "quad_tree",
]
