"""Families of latents, one module each: all modules of this folder are imported, and their families in `FAMILIES`."""

import importlib
import pkgutil

from silentgrad.latents.families.base import FAMILIES, Family, family_of, positive
from silentgrad.latents.families.bernoulli import Bernoulli
from silentgrad.latents.families.categorical import Categorical
from silentgrad.latents.families.full_gaussian import FullGaussian
from silentgrad.latents.families.gaussian import Gaussian
from silentgrad.latents.families.laplace import Laplace
from silentgrad.latents.families.poisson import Poisson

__all__ = [
    "FAMILIES",
    "Bernoulli",
    "Categorical",
    "Family",
    "FullGaussian",
    "Gaussian",
    "Laplace",
    "Poisson",
    "family_of",
    "positive",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
