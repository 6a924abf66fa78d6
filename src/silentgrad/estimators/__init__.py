"""Estimators of E_q[log p(x|z)] and its gradient, all with one signature."""

from silentgrad.estimators.averaged import Averaged
from silentgrad.estimators.base import (
    Estimator,
    Integrand,
    bernoulli_of,
    coin_like,
    discrete_of,
    gumbel_like,
    joint_log_prob,
    logistic_like,
    per_example,
    uniform_like,
    value_with_gradient_of,
)
from silentgrad.estimators.deterministic import Enumerate, Exact
from silentgrad.estimators.integrand import DecoderIntegrand, TractableIntegrand, integrand_of
from silentgrad.estimators.pathwise import GumbelSoftmax, Reparameterized, StraightThrough
from silentgrad.estimators.score import DisArm, Reinforce, Rloo
from silentgrad.latents.independent import base_of, sum_over_latents

__all__ = [
    "Averaged",
    "DecoderIntegrand",
    "DisArm",
    "Enumerate",
    "Estimator",
    "Exact",
    "GumbelSoftmax",
    "Integrand",
    "Reinforce",
    "Reparameterized",
    "Rloo",
    "StraightThrough",
    "TractableIntegrand",
    "base_of",
    "bernoulli_of",
    "coin_like",
    "discrete_of",
    "gumbel_like",
    "integrand_of",
    "joint_log_prob",
    "logistic_like",
    "per_example",
    "sum_over_latents",
    "uniform_like",
    "value_with_gradient_of",
]
