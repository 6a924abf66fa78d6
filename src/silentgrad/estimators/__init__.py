"""Estimators of E_q[log p(x|z)] and its gradient, all with one signature."""

from silentgrad.estimators.antithetic import ARM, ARMS, CARMS, DisARM, DisARMTree
from silentgrad.estimators.base import (
    ESTIMATORS,
    Estimator,
    Integrand,
    bernoulli_of,
    coin_like,
    discrete_of,
    for_each_latent,
    gumbel_like,
    joint_log_prob,
    logistic_like,
    per_example,
    slope_of,
    straight_through,
    uniform_like,
    value_with_gradient_of,
    value_with_slope,
)
from silentgrad.estimators.bounds import STL, VIMCO, DReG
from silentgrad.estimators.combined import Averaged, SilentControlVariate
from silentgrad.estimators.counting import EAT
from silentgrad.estimators.deterministic import Enumerate, Exact, IndeCateR
from silentgrad.estimators.heun import ReinMax, ReinMaxCV, ReinMaxRao
from silentgrad.estimators.integrand import (
    DecoderIntegrand,
    PriorIntegrand,
    StatisticalIntegrand,
    TractableIntegrand,
    integrand_of,
)
from silentgrad.estimators.learning import Learning
from silentgrad.estimators.pathwise import (
    DecoupledStraightThrough,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmax,
    Reparameterized,
    StraightThrough,
)
from silentgrad.estimators.relax import REBAR, RELAX, ControlVariate, RelaxedIntegrand
from silentgrad.estimators.score import NVIL, RLOO, Reinforce
from silentgrad.estimators.slopes import DoubleCV, MuProp
from silentgrad.estimators.stein import RODEO
from silentgrad.estimators.subsets import IMLE, SIMPLE
from silentgrad.latents.independent import base_of, sum_over_latents

__all__ = [
    "ARM",
    "ARMS",
    "CARMS",
    "EAT",
    "ESTIMATORS",
    "IMLE",
    "NVIL",
    "REBAR",
    "RELAX",
    "RLOO",
    "RODEO",
    "SIMPLE",
    "STL",
    "VIMCO",
    "Averaged",
    "ControlVariate",
    "DReG",
    "DecoderIntegrand",
    "DecoupledStraightThrough",
    "DisARM",
    "DisARMTree",
    "DoubleCV",
    "Enumerate",
    "Estimator",
    "Exact",
    "GappedStraightThrough",
    "GumbelRao",
    "GumbelSoftmax",
    "IndeCateR",
    "Integrand",
    "Learning",
    "MuProp",
    "PriorIntegrand",
    "ReinMax",
    "ReinMaxCV",
    "ReinMaxRao",
    "Reinforce",
    "RelaxedIntegrand",
    "Reparameterized",
    "SilentControlVariate",
    "StatisticalIntegrand",
    "StraightThrough",
    "TractableIntegrand",
    "base_of",
    "bernoulli_of",
    "coin_like",
    "discrete_of",
    "for_each_latent",
    "gumbel_like",
    "integrand_of",
    "joint_log_prob",
    "logistic_like",
    "per_example",
    "slope_of",
    "straight_through",
    "sum_over_latents",
    "uniform_like",
    "value_with_gradient_of",
    "value_with_slope",
]
