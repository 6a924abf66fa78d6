"""What --model options name, and which estimators and tractable decoders go with a family of latents."""

from typing import Literal

import torch

from silentgrad.decoders import (
    LinearDecoder,
    LinearGaussian,
    LinearLikelihood,
    LinearPrecisionGaussian,
    Mixture,
    StandardizedGaussian,
    Tractable,
)
from silentgrad.decoders.circuit import Gates
from silentgrad.decoders.precision import LogTerm
from silentgrad.errors import IntractableError
from silentgrad.estimators import (
    Arm,
    Arms,
    DisArm,
    DoubleCV,
    Dreg,
    Estimator,
    Exact,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmax,
    Imle,
    IndeCateR,
    MuProp,
    Nvil,
    Rebar,
    Reinforce,
    ReinMax,
    Relax,
    Reparameterized,
    Rloo,
    Simple,
    Stl,
    StraightThrough,
    Vimco,
)
from silentgrad.lab.hints import did_you_mean
from silentgrad.lab.kinds import LikelihoodName
from silentgrad.lab.networks import NETWORKS
from silentgrad.lab.training.counting import count_likelihood
from silentgrad.lab.training.ranges import ConfigError
from silentgrad.latents.families import FAMILIES, Family

TractableKind = Literal["none", "fixed", "constant", "linear", "exp", "mixture", "circuit"]
LeafKind = Literal["exp", "constant"]
EstimatorName = Literal[
    "exact",
    "reparameterized",
    "gumbel-softmax",
    "straight-through",
    "reinforce",
    "rloo",
    "disarm",
    "arm",
    "arms",
    "double-cv",
    "rebar",
    "relax",
    "muprop",
    "nvil",
    "indecater",
    "reinmax",
    "gumbel-rao",
    "gapped-straight-through",
    "simple",
    "imle",
    "vimco",
    "dreg",
    "stl",
    "none",
]
ESTIMATORS: dict[EstimatorName, type[Estimator]] = {
    "exact": Exact,
    "reparameterized": Reparameterized,
    "gumbel-softmax": GumbelSoftmax,
    "straight-through": StraightThrough,
    "reinforce": Reinforce,
    "rloo": Rloo,
    "disarm": DisArm,
    "arm": Arm,
    "arms": Arms,
    "double-cv": DoubleCV,
    "rebar": Rebar,
    "relax": Relax,
    "muprop": MuProp,
    "nvil": Nvil,
    "indecater": IndeCateR,
    "reinmax": ReinMax,
    "gumbel-rao": GumbelRao,
    "gapped-straight-through": GappedStraightThrough,
    "simple": Simple,
    "imle": Imle,
    "vimco": Vimco,
    "dreg": Dreg,
    "stl": Stl,
}


def family_named(name: str) -> type[Family]:
    """The family that --model.latent names."""
    if name not in FAMILIES:
        raise ConfigError(
            f"--model.latent {name} is no family of latents: choose among {', '.join(FAMILIES)}."
            f"{did_you_mean(name, FAMILIES)}"
        )
    return FAMILIES[name]


def require_network(name: str) -> None:
    """Refuses a name that no network has."""
    if name not in NETWORKS:
        raise ConfigError(
            f"--model.network {name} is no network: choose among {', '.join(NETWORKS)}.{did_you_mean(name, NETWORKS)}"
        )


def suitable_estimators(family: type[Family]) -> list[EstimatorName]:
    """The names of all estimators that take latents of a family; none is one of them."""
    suitable: list[EstimatorName] = [name for name, estimator in ESTIMATORS.items() if estimator.suits(family)]
    return [*suitable, "none"]


def require_estimator(option: str, name: EstimatorName, family: type[Family], none: bool = True) -> None:
    """Refuses an estimator that does not take latents of a family, or is none where there has to be one."""
    suitable = suitable_estimators(family)
    if not none:
        suitable.remove("none")
    if name not in suitable:
        raise ConfigError(
            f"--model.{option} {name} is not for --model.latent {family.name}: choose among {', '.join(suitable)}"
        )


def require_guide_estimator(name: EstimatorName, draws: int, family: type[Family], both: bool) -> None:
    """Refuses an estimator of the guide that its latents do not allow, and options of a guide where there is none.

    Args:
        name: Name of the estimator.
        draws: Number of its draws.
        family: The family of the latents.
        both: Whether there is a tractable decoder beside a nonlinear one.
    """
    require_estimator("guide_estimator", name, family, none=False)
    if (name, draws) != ("exact", 1) and not both:
        raise ConfigError(
            "--model.guide_estimator and --model.guide_draws are for a tractable decoder beside a nonlinear one: "
            "one that is alone has --model.estimator"
        )
    if name == "exact" and draws != 1:
        raise ConfigError("--model.guide_draws is for a --model.guide_estimator that draws: exact draws nothing")


def require_decoders(tractable: TractableKind, nonlinear: bool, estimator: EstimatorName) -> None:
    """Refuses a model without a decoder, and an estimator that its decoders do not allow."""
    if tractable == "none" and not nonlinear:
        raise ConfigError("there is no decoder: --model.tractable none needs --model.nonlinear true")
    if estimator == "none" and (tractable == "none" or not nonlinear):
        raise ConfigError(
            "--model.estimator none (the encoder follows the linear decoder only) needs both decoders: "
            "--model.tractable other than none and --model.nonlinear true"
        )
    if estimator == "exact" and nonlinear:
        raise ConfigError(
            "the nonlinear decoder has no closed form: --model.estimator exact is for a linear decoder alone, "
            "--model.nonlinear false"
        )


def require_components(
    tractable: TractableKind,
    likelihood: LikelihoodName | None,
    components: int | None,
    leaves: LeafKind,
    gates: Gates,
    start: str | None,
) -> None:
    """Refuses options of mixtures and circuits where there is none, and what they do not have."""
    of_parts = ("mixture", "circuit")
    if components is not None and tractable not in of_parts and likelihood not in of_parts:
        raise ConfigError("--model.components is for a mixture or circuit, as --model.tractable or --model.likelihood")
    if leaves != "constant" and tractable not in of_parts:
        raise ConfigError(f"--model.leaves {leaves} is for --model.tractable mixture or circuit")
    if gates != "leaves" and tractable != "circuit":
        raise ConfigError(f"--model.gates {gates} is for --model.tractable circuit")
    if tractable in of_parts and start == "mean":
        raise ConfigError("--model.start mean is for linear decoders: choose ppca or random")


def require_options(family: type[Family], categories: int | None) -> None:
    """Refuses categories for latents that have none."""
    if categories is not None and "categories" not in family.options:
        raise ConfigError(f"--model.categories is not for --model.latent {family.name}: it has no categories")


def require_closed_form(
    family: type[Family],
    kind: TractableKind,
    log_term: LogTerm,
    leaves: LeafKind,
    likelihood: LikelihoodName | None,
) -> None:
    """Asks a small decoder of a kind whether it is tractable for a family."""
    if kind == "none":
        return
    small = family(2)
    option = f"--model.tractable {kind} with --model.log_term {log_term}"
    # The weights of the decoder are random, and have to leave the run's own random numbers as they are.
    with torch.random.fork_rng([]), torch.no_grad():
        q = small.latent(torch.zeros(1, small.numbers))
        decoder = _small_decoder(small.shape.numel(), kind, log_term, leaves)
        counts = count_likelihood(likelihood, [1])
        if counts is not None:
            option = f"--model.likelihood {likelihood} with a linear decoder"
            decoder = LinearLikelihood(small.shape.numel(), 1, counts)
        try:
            decoder.expected_log_prob(torch.zeros(1, 1), q)
        except IntractableError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"{option} is not for --model.latent {family.name}: {reason}") from None


def _small_decoder(latents: int, kind: TractableKind, log_term: LogTerm, leaves: LeafKind) -> Tractable:
    if kind == "linear" or kind == "exp":
        return LinearPrecisionGaussian(latents, 1, link=kind, log_term=log_term)
    if kind == "fixed":
        return LinearGaussian(latents, 1)
    if kind == "constant":
        return StandardizedGaussian(latents, 1)
    return Mixture(latents, 1, 2, leaves=gaussian_leaves(latents, torch.Size([1]), 2, leaves))


def gaussian_leaves(latents: int, event_shape: torch.Size, components: int, kind: LeafKind) -> LinearDecoder:
    """Gaussian leaves of a circuit, whose means are linear in z: their log-precisions too ("exp"), or constant."""
    shape = (*event_shape, components)
    if kind == "exp":
        return LinearPrecisionGaussian(latents, shape, link="exp")
    return StandardizedGaussian(latents, shape)
