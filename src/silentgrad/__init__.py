"""Variational autoencoders trained with gradients that have no sampling noise."""

import importlib
from typing import TYPE_CHECKING, Any

from silentgrad import likelihoods as likelihoods
from silentgrad.baselines import baselines as baselines
from silentgrad.baselines import bits_per_dim as bits_per_dim
from silentgrad.decoders import CausalContext as CausalContext
from silentgrad.decoders import Circuit as Circuit
from silentgrad.decoders import DiscretizedLogistic as DiscretizedLogistic
from silentgrad.decoders import LinearDecoder as LinearDecoder
from silentgrad.decoders import LinearGaussian as LinearGaussian
from silentgrad.decoders import LinearLikelihood as LinearLikelihood
from silentgrad.decoders import LinearPrecisionGaussian as LinearPrecisionGaussian
from silentgrad.decoders import Mixture as Mixture
from silentgrad.decoders import RegionGraph as RegionGraph
from silentgrad.decoders import StandardizedGaussian as StandardizedGaussian
from silentgrad.errors import DomainError as DomainError
from silentgrad.errors import IntractableError as IntractableError
from silentgrad.errors import ShapeError as ShapeError
from silentgrad.errors import SilentgradError as SilentgradError
from silentgrad.estimators import RLOO as RLOO
from silentgrad.estimators import Averaged as Averaged
from silentgrad.estimators import DisARM as DisARM
from silentgrad.estimators import Enumerate as Enumerate
from silentgrad.estimators import Estimator as Estimator
from silentgrad.estimators import Exact as Exact
from silentgrad.estimators import GumbelSoftmax as GumbelSoftmax
from silentgrad.estimators import Reinforce as Reinforce
from silentgrad.estimators import ReinMax as ReinMax
from silentgrad.estimators import Reparameterized as Reparameterized
from silentgrad.estimators import SilentControlVariate as SilentControlVariate
from silentgrad.estimators import StraightThrough as StraightThrough
from silentgrad.estimators import integrand_of as integrand_of
from silentgrad.exactness import Exactness as Exactness
from silentgrad.guide import Guide as Guide
from silentgrad.guide import SilentGuide as SilentGuide
from silentgrad.guided import GuidedVAE as GuidedVAE
from silentgrad.latents import families as families
from silentgrad.latents.priors import GivenPrior as GivenPrior
from silentgrad.latents.priors import LearnedPrior as LearnedPrior
from silentgrad.latents.priors import MixturePrior as MixturePrior
from silentgrad.latents.subsets import KSubset as KSubset
from silentgrad.objective import Objective as Objective
from silentgrad.objective import Term as Term
from silentgrad.ppca import ppca_bound as ppca_bound
from silentgrad.schedules import linear_decay as linear_decay
from silentgrad.side_info import SideInfo as SideInfo

if TYPE_CHECKING:
    from silentgrad.analysis import active_units as active_units
    from silentgrad.analysis import gradient_bias as gradient_bias
    from silentgrad.analysis import gradient_variance as gradient_variance
    from silentgrad.analysis import ranked as ranked
    from silentgrad.analysis import recommend as recommend
    from silentgrad.checkup import CheckUp as CheckUp
    from silentgrad.checkup import Tracker as Tracker
    from silentgrad.checkup import check_loss as check_loss
    from silentgrad.checkup import check_up as check_up
    from silentgrad.checkup.callback import CheckUpCallback as CheckUpCallback
    from silentgrad.factors import FactorFit as FactorFit
    from silentgrad.factors import fit_factors as fit_factors
    from silentgrad.factors import infer_factors as infer_factors
    from silentgrad.factors.count_factors import CountFactors as CountFactors

__version__ = "0.3.0"

_EXTRAS = {"CountFactors": "counts", "pl": "counts", "tl": "counts", "CheckUpCallback": "lab"}
_ON_DEMAND = {  # where names are that training does without, or that need more packages than the library does
    "CountFactors": "factors.count_factors",
    "CheckUpCallback": "checkup.callback",
    **dict.fromkeys(("CheckUp", "Tracker", "check_loss", "check_up"), "checkup"),
    **dict.fromkeys(("FactorFit", "fit_factors", "infer_factors"), "factors"),
    **dict.fromkeys(("active_units", "gradient_bias", "gradient_variance", "ranked", "recommend"), "analysis"),
}
# Public are the classes and functions imported above, which their aliases re-export to type checkers, and these
__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith("silentgrad.")]
__all__ += ["families", "likelihoods", *sorted(_ON_DEMAND.keys() - _EXTRAS.keys())]


def __getattr__(name: str) -> Any:
    """Import what is in `_ON_DEMAND`, one of five modules, or the functions for AnnData, when it is asked for."""
    if name in ("analysis", "checkup", "factors", "lab", "testing"):
        return importlib.import_module(f"silentgrad.{name}")
    if name not in (*_ON_DEMAND, "pl", "tl"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"silentgrad.{_ON_DEMAND.get(name, name)}")
    except ModuleNotFoundError as error:
        if name not in _EXTRAS:
            raise
        package = (error.name or "").partition(".")[0]
        advice = f"{name} needs {package}: pip install 'silentgrad[{_EXTRAS[name]}]'"
        raise ModuleNotFoundError(advice, name=error.name) from error
    return module if name in ("pl", "tl") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
