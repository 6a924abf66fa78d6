"""Tractable decoders p(x|z): those that know the expectation of their log-probability."""

from silentgrad.decoders.gaussian import LinearGaussian
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.precision import LinearPrecisionGaussian
from silentgrad.decoders.protocol import Tractable, is_tractable

__all__ = [
    "LinearDecoder",
    "LinearGaussian",
    "LinearLikelihood",
    "LinearPrecisionGaussian",
    "Tractable",
    "is_tractable",
]
