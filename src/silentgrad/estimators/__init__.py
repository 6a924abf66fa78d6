"""Estimators of E_q[log p(x|z)] and its gradient, all with one signature."""

from silentgrad.estimators.arm import Arm
from silentgrad.estimators.arms import Arms
from silentgrad.estimators.averaged import Averaged
from silentgrad.estimators.base import (
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
from silentgrad.estimators.deterministic import Enumerate, Exact
from silentgrad.estimators.double_cv import DoubleCV
from silentgrad.estimators.dreg import Dreg
from silentgrad.estimators.gapped import GappedStraightThrough
from silentgrad.estimators.gumbel_rao import GumbelRao
from silentgrad.estimators.imle import Imle
from silentgrad.estimators.indecater import IndeCateR
from silentgrad.estimators.integrand import DecoderIntegrand, PriorIntegrand, TractableIntegrand, integrand_of
from silentgrad.estimators.learning import Learning
from silentgrad.estimators.muprop import MuProp
from silentgrad.estimators.nvil import Nvil
from silentgrad.estimators.pathwise import GumbelSoftmax, Reparameterized, StraightThrough
from silentgrad.estimators.rebar import Rebar
from silentgrad.estimators.reinmax import ReinMax
from silentgrad.estimators.relax import ControlVariate, Relax, RelaxedIntegrand
from silentgrad.estimators.score import DisArm, Reinforce, Rloo
from silentgrad.estimators.simple import Simple
from silentgrad.estimators.stl import Stl
from silentgrad.estimators.vimco import Vimco
from silentgrad.latents.independent import base_of, sum_over_latents

__all__ = [
    "Arm",
    "Arms",
    "Averaged",
    "ControlVariate",
    "DecoderIntegrand",
    "DisArm",
    "DoubleCV",
    "Dreg",
    "Enumerate",
    "Estimator",
    "Exact",
    "GappedStraightThrough",
    "GumbelRao",
    "GumbelSoftmax",
    "Imle",
    "IndeCateR",
    "Integrand",
    "Learning",
    "MuProp",
    "Nvil",
    "PriorIntegrand",
    "Rebar",
    "ReinMax",
    "Reinforce",
    "Relax",
    "RelaxedIntegrand",
    "Reparameterized",
    "Rloo",
    "Simple",
    "Stl",
    "StraightThrough",
    "TractableIntegrand",
    "Vimco",
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
