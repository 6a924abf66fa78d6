"""Decoders p(x|z) that know the expectation of their log-probability in closed form."""

from silentgrad.decoders.gaussian import LinearGaussian
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.precision import LinearPrecisionGaussian

__all__ = ["LinearDecoder", "LinearGaussian", "LinearLikelihood", "LinearPrecisionGaussian"]
