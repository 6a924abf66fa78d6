"""Families of latents, one module each. A new module in this folder is found without being named anywhere."""

import importlib
import pkgutil

from silentgrad.latents.families.base import (
    FAMILIES,
    Family,
    family_of,
    positive,
    require_one_latent,
    standard_prior,
)
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
    "discover",
    "family_of",
    "positive",
    "require_one_latent",
    "standard_prior",
]


def discover() -> None:
    """Imports every module of this folder, which enters its family in `FAMILIES`."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


discover()
