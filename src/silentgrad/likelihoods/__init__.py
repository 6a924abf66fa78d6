r"""Likelihoods p(x|u) with one parameter u per output that is linear in z, and their expected logarithm.

With m and V the mean and variance of u, :math:`t = (x - u) / s` and the expectations of
:mod:`silentgrad.mathematics.quadrature`,

====================  ==================================================================================
Bernoulli, logits u   :math:`x m - E \log(1 + e^u)`
Poisson, log rate u   :math:`x m - e^{m + V/2} - \log x!`
Normal, scale s       :math:`-\tfrac12 ((x - m)^2 + V) / s^2 - \log s - \tfrac12 \log 2 \pi`
Laplace, scale s      :math:`-E|t| - \log 2 s`
Logistic, scale s     :math:`(x - m) / s - 2 E \log(1 + e^t) - \log s`
in levels             :math:`\log(1 - e^{-(a - b)}) - E \log(1 + e^{-a}) - E \log(1 + e^b)`, a and b the level's borders
Student's t           :math:`-\tfrac{\nu + 1}{2} E \log(1 + t^2 / \nu) - \log s` and a constant
====================  ==================================================================================

The Normal one needs the moments of u, the Poisson one its generating function, the others a Gaussian u: see
:class:`~silentgrad.likelihoods.base.Needs`.
"""

from silentgrad.likelihoods.base import Needs, exactness_of, expected_log_prob, needs_of
from silentgrad.likelihoods.continuous import Laplace, LocationScale, Logistic, Normal, StudentT
from silentgrad.likelihoods.discrete import Bernoulli, DiscretisedLogistic, Poisson

__all__ = [
    "Bernoulli",
    "DiscretisedLogistic",
    "Laplace",
    "LocationScale",
    "Logistic",
    "Needs",
    "Normal",
    "Poisson",
    "StudentT",
    "exactness_of",
    "expected_log_prob",
    "needs_of",
]
