"""Measurements of a model: variance and bias of its gradients, what its latents hold, what its loss weighs."""

from silentgrad.analysis.adapters import Adapted as Adapted
from silentgrad.analysis.adapters import measurable as measurable
from silentgrad.analysis.batch import MeasurableModel as MeasurableModel
from silentgrad.analysis.bias import Bias as Bias
from silentgrad.analysis.bias import gradient_bias as gradient_bias
from silentgrad.analysis.choosing import Recommendation as Recommendation
from silentgrad.analysis.choosing import recommend as recommend
from silentgrad.analysis.posterior import active_units as active_units
from silentgrad.analysis.posterior import amortization_gap as amortization_gap
from silentgrad.analysis.posterior import mutual_information as mutual_information
from silentgrad.analysis.tally import DRAWS as DRAWS
from silentgrad.analysis.tally import Decomposition as Decomposition
from silentgrad.analysis.tally import Figures as Figures
from silentgrad.analysis.tally import LayerVariance as LayerVariance
from silentgrad.analysis.tally import Ranking as Ranking
from silentgrad.analysis.tally import ranked as ranked
from silentgrad.analysis.variance import MethodName as MethodName
from silentgrad.analysis.variance import decoder_variance as decoder_variance
from silentgrad.analysis.variance import gradient_variance as gradient_variance
from silentgrad.analysis.weights import Estimate as Estimate
from silentgrad.analysis.weights import LossUnits as LossUnits
from silentgrad.analysis.weights import implied_kl_weight as implied_kl_weight
from silentgrad.analysis.weights import loss_units as loss_units
