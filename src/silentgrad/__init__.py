"""Variational autoencoders trained with gradients that have no sampling noise."""

import importlib
from typing import Any

from silentgrad import likelihoods
from silentgrad.analysis import gradient_bias, gradient_variance
from silentgrad.beside import Beside
from silentgrad.decoders import (
    Circuit,
    CircuitDistribution,
    ConstantCategorical,
    Leaf,
    LinearDecoder,
    LinearGaussian,
    LinearLikelihood,
    LinearPrecisionGaussian,
    Mixture,
    StandardizedGaussian,
    Structure,
    Tractable,
    binary_tree,
    chow_liu,
    quad_tree,
)
from silentgrad.errors import DomainError, IntractableError, ShapeError, SilentgradError, UnregisteredLatentError
from silentgrad.estimators import (
    Arm,
    Arms,
    Averaged,
    DisArm,
    DoubleCV,
    Dreg,
    Enumerate,
    Estimator,
    Exact,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmax,
    Imle,
    IndeCateR,
    MuProp,
    Nvil,
    Rebar,
    Reinforce,
    ReinMax,
    Relax,
    Reparameterized,
    Rloo,
    Simple,
    Stl,
    StraightThrough,
    TractableIntegrand,
    Vimco,
    integrand_of,
)
from silentgrad.exactness import Exactness
from silentgrad.factors import Fit, fit_factors, infer_factors
from silentgrad.guide import Guide, SilentGuide, freeze
from silentgrad.guided import GuidedVAE
from silentgrad.latents import families
from silentgrad.latents.families import Family, family_of
from silentgrad.latents.generating import Cumulants, GeneratingFunction, generating_function
from silentgrad.latents.moments import JointMoments, Moments, central_moments
from silentgrad.latents.priors import LearnedPrior, MixturePrior, Prior, StandardPrior
from silentgrad.latents.subsets import KSubset
from silentgrad.likelihoods import expected_log_prob
from silentgrad.mathematics.special import dawson, dawson_integral, expected_log_square
from silentgrad.ppca import ppca_bound

__version__ = "0.2.0"
__all__ = [
    "Arm",
    "Arms",
    "Averaged",
    "Beside",
    "Circuit",
    "CircuitDistribution",
    "ConstantCategorical",
    "Cumulants",
    "DisArm",
    "DomainError",
    "DoubleCV",
    "Dreg",
    "Enumerate",
    "Estimator",
    "Exact",
    "Exactness",
    "Family",
    "Fit",
    "GappedStraightThrough",
    "GeneratingFunction",
    "Guide",
    "GuidedVAE",
    "GumbelRao",
    "GumbelSoftmax",
    "Imle",
    "IndeCateR",
    "IntractableError",
    "JointMoments",
    "KSubset",
    "Leaf",
    "LearnedPrior",
    "LinearDecoder",
    "LinearGaussian",
    "LinearLikelihood",
    "LinearPrecisionGaussian",
    "Mixture",
    "MixturePrior",
    "Moments",
    "MuProp",
    "Nvil",
    "Prior",
    "Rebar",
    "ReinMax",
    "Reinforce",
    "Relax",
    "Reparameterized",
    "Rloo",
    "ShapeError",
    "SilentGuide",
    "SilentgradError",
    "Simple",
    "StandardPrior",
    "StandardizedGaussian",
    "Stl",
    "StraightThrough",
    "Structure",
    "Tractable",
    "TractableIntegrand",
    "UnregisteredLatentError",
    "Vimco",
    "binary_tree",
    "central_moments",
    "chow_liu",
    "dawson",
    "dawson_integral",
    "expected_log_prob",
    "expected_log_square",
    "families",
    "family_of",
    "fit_factors",
    "freeze",
    "generating_function",
    "gradient_bias",
    "gradient_variance",
    "infer_factors",
    "integrand_of",
    "likelihoods",
    "ppca_bound",
    "quad_tree",
]


def __getattr__(name: str) -> Any:
    """The laboratory, imported when it is asked for, since it needs packages that the library does not."""
    if name == "lab":
        return importlib.import_module("silentgrad.lab")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
