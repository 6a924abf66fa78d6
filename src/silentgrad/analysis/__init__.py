"""Measurements of gradients: their variance and its sources, their bias against the true gradient."""

from silentgrad.analysis.bias import Bias, gradient_bias, log_term_bias
from silentgrad.analysis.model import Model
from silentgrad.analysis.tally import Decomposition, Figures, Group, ranked
from silentgrad.analysis.training import training_variance
from silentgrad.analysis.variance import MethodName, gradient_variance

__all__ = [
    "Bias",
    "Decomposition",
    "Figures",
    "Group",
    "MethodName",
    "Model",
    "gradient_bias",
    "gradient_variance",
    "log_term_bias",
    "ranked",
    "training_variance",
]
