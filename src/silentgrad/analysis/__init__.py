"""Measurements of gradients: their variance and its sources, their bias against the true gradient."""

from silentgrad.analysis.batch import MeasurableModel as MeasurableModel
from silentgrad.analysis.bias import Bias as Bias
from silentgrad.analysis.bias import gradient_bias as gradient_bias
from silentgrad.analysis.choosing import Recommendation as Recommendation
from silentgrad.analysis.choosing import recommend as recommend
from silentgrad.analysis.tally import DRAWS as DRAWS
from silentgrad.analysis.tally import Decomposition as Decomposition
from silentgrad.analysis.tally import Figures as Figures
from silentgrad.analysis.tally import LayerVariance as LayerVariance
from silentgrad.analysis.tally import Ranking as Ranking
from silentgrad.analysis.tally import ranked as ranked
from silentgrad.analysis.variance import MethodName as MethodName
from silentgrad.analysis.variance import gradient_variance as gradient_variance
