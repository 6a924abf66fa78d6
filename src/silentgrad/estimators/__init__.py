"""Estimators of E_q[log p(x|z)] and its gradient, all with one signature."""

from silentgrad.estimators.antithetic import ARM as ARM
from silentgrad.estimators.antithetic import ARMS as ARMS
from silentgrad.estimators.antithetic import CARMS as CARMS
from silentgrad.estimators.antithetic import DisARM as DisARM
from silentgrad.estimators.antithetic import DisARMTree as DisARMTree
from silentgrad.estimators.base import ESTIMATORS as ESTIMATORS
from silentgrad.estimators.base import Estimator as Estimator
from silentgrad.estimators.base import Integrand as Integrand
from silentgrad.estimators.base import bernoulli_of as bernoulli_of
from silentgrad.estimators.base import coin_like as coin_like
from silentgrad.estimators.base import discrete_of as discrete_of
from silentgrad.estimators.base import for_each_latent as for_each_latent
from silentgrad.estimators.base import gumbel_like as gumbel_like
from silentgrad.estimators.base import joint_log_prob as joint_log_prob
from silentgrad.estimators.base import logistic_like as logistic_like
from silentgrad.estimators.base import per_example as per_example
from silentgrad.estimators.base import slope_of as slope_of
from silentgrad.estimators.base import straight_through as straight_through
from silentgrad.estimators.base import uniform_like as uniform_like
from silentgrad.estimators.base import value_with_gradient_of as value_with_gradient_of
from silentgrad.estimators.base import value_with_slope as value_with_slope
from silentgrad.estimators.bounds import STL as STL
from silentgrad.estimators.bounds import VIMCO as VIMCO
from silentgrad.estimators.bounds import DReG as DReG
from silentgrad.estimators.combined import Averaged as Averaged
from silentgrad.estimators.combined import SilentControlVariate as SilentControlVariate
from silentgrad.estimators.counting import EAT as EAT
from silentgrad.estimators.deterministic import Enumerate as Enumerate
from silentgrad.estimators.deterministic import Exact as Exact
from silentgrad.estimators.deterministic import IndeCateR as IndeCateR
from silentgrad.estimators.heun import ReinMax as ReinMax
from silentgrad.estimators.heun import ReinMaxCV as ReinMaxCV
from silentgrad.estimators.heun import ReinMaxRao as ReinMaxRao
from silentgrad.estimators.integrand import DecoderIntegrand as DecoderIntegrand
from silentgrad.estimators.integrand import PriorIntegrand as PriorIntegrand
from silentgrad.estimators.integrand import StatisticalIntegrand as StatisticalIntegrand
from silentgrad.estimators.integrand import TractableIntegrand as TractableIntegrand
from silentgrad.estimators.integrand import integrand_of as integrand_of
from silentgrad.estimators.learning import Learning as Learning
from silentgrad.estimators.pathwise import DecoupledStraightThrough as DecoupledStraightThrough
from silentgrad.estimators.pathwise import GappedStraightThrough as GappedStraightThrough
from silentgrad.estimators.pathwise import GumbelRao as GumbelRao
from silentgrad.estimators.pathwise import GumbelSoftmax as GumbelSoftmax
from silentgrad.estimators.pathwise import Reparameterized as Reparameterized
from silentgrad.estimators.pathwise import StraightThrough as StraightThrough
from silentgrad.estimators.relax import REBAR as REBAR
from silentgrad.estimators.relax import RELAX as RELAX
from silentgrad.estimators.relax import ControlVariate as ControlVariate
from silentgrad.estimators.relax import RelaxedIntegrand as RelaxedIntegrand
from silentgrad.estimators.score import NVIL as NVIL
from silentgrad.estimators.score import RLOO as RLOO
from silentgrad.estimators.score import Reinforce as Reinforce
from silentgrad.estimators.slopes import DoubleCV as DoubleCV
from silentgrad.estimators.slopes import MuProp as MuProp
from silentgrad.estimators.stein import RODEO as RODEO
from silentgrad.estimators.subsets import IMLE as IMLE
from silentgrad.estimators.subsets import SIMPLE as SIMPLE
from silentgrad.latents.independent import base_of as base_of
from silentgrad.latents.independent import sum_over_latents as sum_over_latents

# Public are the classes and functions imported above, which their aliases re-export to type checkers
__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith("silentgrad.")]
__all__ += ["Integrand"]
