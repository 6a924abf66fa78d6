"""Variational autoencoders trained with gradients that have no sampling noise."""

import importlib
from typing import TYPE_CHECKING, Any

from silentgrad import likelihoods
from silentgrad.baselines import baselines, bits_per_dim
from silentgrad.decoders import (
    CausalContext,
    Circuit,
    DiscretizedLogistic,
    LinearDecoder,
    LinearGaussian,
    LinearLikelihood,
    LinearPrecisionGaussian,
    Mixture,
    RegionGraph,
    StandardizedGaussian,
)
from silentgrad.errors import DomainError, IntractableError, ShapeError, SilentgradError
from silentgrad.estimators import (
    ARM,
    ARMS,
    CARMS,
    EAT,
    IMLE,
    NVIL,
    REBAR,
    RELAX,
    RLOO,
    RODEO,
    SIMPLE,
    STL,
    VIMCO,
    Averaged,
    DecoupledStraightThrough,
    DisARM,
    DisARMTree,
    DoubleCV,
    DReG,
    Enumerate,
    Estimator,
    Exact,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmax,
    IndeCateR,
    MuProp,
    Reinforce,
    ReinMax,
    ReinMaxCV,
    ReinMaxRao,
    Reparameterized,
    SilentControlVariate,
    StraightThrough,
    integrand_of,
)
from silentgrad.exactness import Exactness
from silentgrad.guide import Guide, SilentGuide
from silentgrad.guided import GuidedVAE
from silentgrad.latents import families
from silentgrad.latents.priors import LearnedPrior, MixturePrior
from silentgrad.latents.subsets import KSubset
from silentgrad.objective import Objective, Term
from silentgrad.ppca import ppca_bound
from silentgrad.schedules import linear_decay
from silentgrad.side_info import SideInfo

if TYPE_CHECKING:
    from silentgrad.analysis import gradient_bias, gradient_variance, ranked, recommend
    from silentgrad.checkup import CheckUp, Tracker, active_units, check_loss, check_up
    from silentgrad.checkup.callback import CheckUpCallback as CheckUpCallback
    from silentgrad.factors import FactorFit, fit_factors, infer_factors
    from silentgrad.factors.count_factors import CountFactors as CountFactors

__version__ = "0.3.0"
__all__ = [
    "ARM",
    "ARMS",
    "CARMS",
    "EAT",
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
    "CausalContext",
    "CheckUp",
    "Circuit",
    "DReG",
    "DecoupledStraightThrough",
    "DisARM",
    "DisARMTree",
    "DiscretizedLogistic",
    "DomainError",
    "DoubleCV",
    "Enumerate",
    "Estimator",
    "Exact",
    "Exactness",
    "FactorFit",
    "GappedStraightThrough",
    "Guide",
    "GuidedVAE",
    "GumbelRao",
    "GumbelSoftmax",
    "IndeCateR",
    "IntractableError",
    "KSubset",
    "LearnedPrior",
    "LinearDecoder",
    "LinearGaussian",
    "LinearLikelihood",
    "LinearPrecisionGaussian",
    "Mixture",
    "MixturePrior",
    "MuProp",
    "Objective",
    "RegionGraph",
    "ReinMax",
    "ReinMaxCV",
    "ReinMaxRao",
    "Reinforce",
    "Reparameterized",
    "ShapeError",
    "SideInfo",
    "SilentControlVariate",
    "SilentGuide",
    "SilentgradError",
    "StandardizedGaussian",
    "StraightThrough",
    "Term",
    "Tracker",
    "active_units",
    "baselines",
    "bits_per_dim",
    "check_loss",
    "check_up",
    "families",
    "fit_factors",
    "gradient_bias",
    "gradient_variance",
    "infer_factors",
    "integrand_of",
    "likelihoods",
    "linear_decay",
    "ppca_bound",
    "ranked",
    "recommend",
]


_ON_DEMAND = {  # where names are that training does without, or that need more packages than the library does
    "CountFactors": "factors.count_factors",
    "CheckUpCallback": "checkup.callback",
    **dict.fromkeys(("CheckUp", "Tracker", "active_units", "check_loss", "check_up"), "checkup"),
    **dict.fromkeys(("FactorFit", "fit_factors", "infer_factors"), "factors"),
    **dict.fromkeys(("gradient_bias", "gradient_variance", "ranked", "recommend"), "analysis"),
}


def __getattr__(name: str) -> Any:
    """Import what is in `_ON_DEMAND`, one of five modules, or the functions for AnnData, when it is asked for."""
    if name in ("analysis", "checkup", "factors", "lab", "testing"):
        return importlib.import_module(f"silentgrad.{name}")
    if name not in (*_ON_DEMAND, "pl", "tl"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"silentgrad.{_ON_DEMAND.get(name, name)}")
    except ModuleNotFoundError as error:
        extra = {"CountFactors": "counts", "pl": "counts", "tl": "counts", "CheckUpCallback": "lab"}.get(name)
        if extra is None:
            raise
        package = (error.name or "").partition(".")[0]
        advice = f"{name} needs {package}: pip install 'silentgrad[{extra}]'"
        raise ModuleNotFoundError(advice, name=error.name) from error
    if name in ("pl", "tl"):
        return module
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
