"""Latents q(z|x): what a closed form has to know about them, and their priors."""

from silentgrad.latents.generating import Cumulants, GeneratingFunction, generating_function
from silentgrad.latents.moments import JointMoments, Moments, central_moments
from silentgrad.latents.priors import GivenPrior, LearnedPrior, MixturePrior, Prior, StandardPrior

__all__ = [
    "Cumulants",
    "GeneratingFunction",
    "GivenPrior",
    "JointMoments",
    "LearnedPrior",
    "MixturePrior",
    "Moments",
    "Prior",
    "StandardPrior",
    "central_moments",
    "generating_function",
]
