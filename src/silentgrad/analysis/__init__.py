"""Measurements of gradients: their variance and its sources, their bias against the true gradient."""

from silentgrad.analysis.batch import MeasurableModel
from silentgrad.analysis.bias import Bias, gradient_bias, log_term_bias
from silentgrad.analysis.choosing import Recommendation, recommend
from silentgrad.analysis.tally import DRAWS, Decomposition, Figures, LayerVariance, Ranking, ranked
from silentgrad.analysis.variance import MethodName, gradient_variance

__all__ = [
    "DRAWS",
    "Bias",
    "Decomposition",
    "Figures",
    "LayerVariance",
    "MeasurableModel",
    "MethodName",
    "Ranking",
    "Recommendation",
    "gradient_bias",
    "gradient_variance",
    "log_term_bias",
    "ranked",
    "recommend",
]
