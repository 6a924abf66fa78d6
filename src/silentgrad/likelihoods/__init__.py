r"""Likelihoods p(x|u) with one parameter u per output that is linear in z, and their expected logarithm.

With m and V the mean and variance of u, :math:`t = (x - u) / s` and the expectations of
:mod:`silentgrad.mathematics.quadrature`,

====================  ==================================================================================
Bernoulli, logits u   :math:`x m - E \log(1 + e^u)`
Poisson, log rate u   :math:`x m - e^{m + V/2} - \log x!`
negative binomial     :math:`\log \frac{\Gamma(x + r)}{\Gamma(r) x!} - r E \log(1 + e^v) - x E \log(1 + e^{-v})`
binomial, n trials    :math:`\log \binom{n}{x} - (n - x) E \log(1 + e^u) - x E \log(1 + e^{-u})`
ordinal               :math:`\log(1 - e^{-(a - b)}) - E \log(1 + e^{-a}) - E \log(1 + e^b)`, thresholds a > b
multinomial           :math:`\ge \log \frac{n!}{\prod x_c!} + \sum x_c m_c - n \log \sum e^{m_c + V_c/2}`
more zeros            :math:`\ge \log(\pi + (1 - \pi) e^{E \log p(0|u)})` at a zero
log-normal            as Normal, of log x, less log x
Gamma, log mean u     :math:`\alpha \log \alpha x - \log x \Gamma(\alpha) - \alpha (m + x e^{-m + V/2})`
Normal, scale s       :math:`-\tfrac12 ((x - m)^2 + V) / s^2 - \log s - \tfrac12 \log 2 \pi`
Laplace, scale s      :math:`-E|t| - \log 2 s`
Logistic, scale s     :math:`(x - m) / s - 2 E \log(1 + e^t) - \log s`
Student's t           :math:`-\tfrac{\nu + 1}{2} E \log(1 + t^2 / \nu) - \log s` and a constant
====================  ==================================================================================

The Normal and log-normal ones need the moments of u; Poisson, with more zeros or not, multinomial and Gamma its
generating function; the others a Gaussian u: see
:class:`~silentgrad.likelihoods.base.Needs`.
"""

from silentgrad.likelihoods.base import Needs, exactness_of, expected_log_prob, needs_of
from silentgrad.likelihoods.categories import Bernoulli, Categorical, Multinomial, Ordinal
from silentgrad.likelihoods.continuous import Gamma, Laplace, LocationScale, Logistic, LogNormal, Normal, StudentT
from silentgrad.likelihoods.counts import (
    Binomial,
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

__all__ = [
    "Bernoulli",
    "Binomial",
    "Categorical",
    "Gamma",
    "Laplace",
    "LocationScale",
    "LogNormal",
    "Logistic",
    "Multinomial",
    "Needs",
    "NegativeBinomial",
    "Normal",
    "Ordinal",
    "Poisson",
    "StudentT",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "exactness_of",
    "expected_log_prob",
    "needs_of",
]
