"""From settings to a plan: what was left open is chosen by the data, and what does not go together is refused.

Images and real numbers have a nonlinear decoder that a linear one guides. Counts have a linear decoder alone, which is
trained by its exact gradient, unless a nonlinear one is asked for. An option that was given is never changed.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import torch

from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators import ESTIMATORS, Estimator
from silentgrad.lab.kinds import OF_COUNTS, OF_LEVELS, LeafKind, LikelihoodName, TractableKind
from silentgrad.lab.networks import NETWORKS
from silentgrad.lab.settings.fields import ConfigError
from silentgrad.lab.settings.options import (
    PARTED,
    SILENT,
    TEMPERATURE,
    EstimatorName,
    ModelConfig,
    Settings,
    Start,
    TrainConfig,
)
from silentgrad.lab.settings.tractable import Outputs, tractable_decoder
from silentgrad.latents.families import FAMILIES, Family
from silentgrad.registry import did_you_mean

RATE_OF_COUNTS, RATE_OF_COUNT_NETWORKS = 1e-2, 2e-3


class Plan(Settings):
    """Settings that go together, with nothing left open: made by `resolve` only."""

    __slots__ = ()

    @property
    def weight_left(self) -> float:
        """The weight that a guide still has when training ends, though it is meant to give way to the other decoder."""
        return max(0.0, 1 - 1 / self.model.guided) if self.model.decoders.fading else 0.0


def resolve(settings: Settings, likelihoods: Sequence[LikelihoodName]) -> Plan:
    """Return the plan of a run: called once, where settings come in.

    Args:
        settings: All settings of the run.
        likelihoods: Those that suit its data, the default first.

    Raises:
        ConfigError: No run can be made with these settings; the message names the option.
    """
    if not likelihoods:
        raise ConfigError(f"no likelihood suits {settings.data.name}: choose another --data.kind")
    model = resolve_model(settings.model, likelihoods[0], "logistic" in likelihoods)
    _refuse(_objections_to_training(settings, model))
    return Plan(settings.data, model, _rates(settings.train, model))


def resolve_model(model: ModelConfig, likelihood: LikelihoodName, levels: bool = False) -> ModelConfig:
    """Return a model with nothing left open, for data of a likelihood if it does not have one itself, or in levels.

    Raises:
        ConfigError: No model can be made with these settings; the message names the option.

    Example:
        >>> resolve_model(ModelConfig(), "gaussian").decoders
        Decoders(tractable='constant', nonlinear=True, estimator='reparameterized')
        >>> resolve_model(ModelConfig(), "poisson").decoders
        Decoders(tractable='linear', nonlinear=False, estimator='exact')
        >>> resolve_model(ModelConfig(nonlinear=True), "poisson").decoders
        Decoders(tractable='linear', nonlinear=True, estimator='reparameterized')
        >>> resolve_model(ModelConfig(latent="bernoulli"), "gaussian").decoders
        Decoders(tractable='constant', nonlinear=True, estimator='gumbel-softmax')
        >>> resolve_model(ModelConfig(latent="bernoulli", network="conv"), "gaussian").decoders
        Decoders(tractable='none', nonlinear=True, estimator='gumbel-softmax')
    """
    family = family_named(model.latent)
    model = replace(model, likelihood=model.likelihood or likelihood)
    model = replace(model, tractable=model.tractable or _tractable(model))
    if model.nonlinear is None:
        model = replace(model, nonlinear=model.likelihood not in OF_COUNTS or model.tractable == "none")
    model = replace(model, estimator=model.estimator or _estimator(model), start=model.start or _start(model))
    model = replace(model, leaves=model.leaves or _leaves(model, levels))
    require_decoders(model)
    _refuse(_objections_to_options(model))
    _require_closed_form(model, family)
    return model


def require_decoders(model: ModelConfig) -> None:
    """Refuse decoders, or estimators of their gradients, that do not go together, or not with the latents."""
    family = family_named(model.latent)
    _refuse(_objections_to_decoders(model, family))
    _refuse(_objections_to_estimators(model, family))


def _refuse(objections: Iterator[str]) -> None:
    for first in objections:
        raise ConfigError(first)


# What was left open


def _tractable(model: ModelConfig) -> TractableKind:
    """Return the tractable decoder: bits and counts have no variance of their own, which the others name.

    A guide was found to hurt beside the paper's convolutions with Bernoulli latents: on MNIST, with 8 channels and
    three seeds, one that stays as it starts costs 0.25 BPD, one that learns 0.32.
    """
    if model.likelihood in ("bernoulli", "logistic", *OF_COUNTS):
        return "linear"
    would_guide = model.nonlinear is not False and model.estimator != "none"
    return "none" if would_guide and model.latent == "bernoulli" and model.network == "conv" else "constant"


def _estimator(model: ModelConfig) -> EstimatorName:
    """Return the estimator: the paper's of a sampled decoder where the latents allow it, else RLOO."""
    if model.likelihood in OF_COUNTS and not model.nonlinear:
        return "exact"
    of_the_paper, family = ("reparameterized", "gumbel-softmax"), family_named(model.latent)
    return next((name for name in of_the_paper if ESTIMATORS[name].suits(family)), "rloo")


def _start(model: ModelConfig) -> Start:
    by_data = model.likelihood in ("logistic", *OF_COUNTS) or model.tractable in ("constant", *PARTED)
    return "ppca" if by_data else "random"


def _leaves(model: ModelConfig, levels: bool) -> LeafKind | None:
    """Return the leaves of what has components: of whole levels if data have them and every decoder takes them."""
    tractable, nonlinear, _ = model.decoders
    if tractable not in PARTED and model.likelihood not in PARTED:
        return None
    parted = tractable in ("none", *PARTED) and (not nonlinear or model.likelihood in (*PARTED, "logistic"))
    return "logistic" if levels and parted else "constant"


def _rates(train: TrainConfig, model: ModelConfig) -> TrainConfig:
    """Return the training with its learning rates.

    The logarithms of mean counts have a long way to go, and an exact gradient tolerates it: on 1,600 cells of 1,000
    genes, 60 epochs at 1e-3 for all leave 0.03 nats per entry to be gained.

    An exact guide of bits that starts as probabilistic PCA stays as it starts: one that learns lost 0.13 BPD on
    Fashion-MNIST at the one rate that was tried, where one that stays gained 0.08.
    """
    if train.lr is None and model.likelihood in OF_COUNTS:
        network = RATE_OF_COUNT_NETWORKS if train.lr_network is None else train.lr_network
        train = replace(train, lr=RATE_OF_COUNTS, lr_network=network)
    silent = model.guide_estimator == "exact" and model.start == "ppca" and model.tractable == "constant"
    of_bits = model.decoders.fading and model.latent == "bernoulli" and model.likelihood == "gaussian"
    if silent and of_bits and train.lr_mean is None and train.lr_precision is None:
        train = replace(train, lr_mean=0.0, lr_precision=0.0)
    return replace(train, lr=train.rate)


# What does not go together, in the user's words


def _objections_to_training(settings: Settings, model: ModelConfig) -> Iterator[str]:
    data, _, train = settings
    yield from _without_owner("train", train, model)
    for epoch in train.keep:
        if epoch > train.epochs:
            yield f"--train.keep {epoch} comes after the last of {train.epochs} epochs (--train.epochs)"
    if data.batch_size % train.devices:
        yield f"--data.batch_size {data.batch_size} has to be a multiple of --train.devices {train.devices}"


def _without_owner(group: str, given: ModelConfig | TrainConfig, model: ModelConfig) -> Iterator[str]:
    """Yield the options that are for a choice that was not made."""
    standard = type(given)()
    for setting in fields(given):
        owner, name = setting.metadata.get("of"), setting.name
        if owner and getattr(given, name) != getattr(standard, name) and not owner.chosen(model):
            yield f"--{group}.{name} {owner.words.format(model=model)}"


def _objections_to_options(model: ModelConfig) -> Iterator[str]:
    """Yield objections to options by themselves, or for a choice that was not made."""
    if model.network not in NETWORKS:
        near = did_you_mean(model.network, NETWORKS)
        yield f"--model.network {model.network} is no network: choose among {', '.join(NETWORKS)}.{near}"
    yield from _without_owner("model", model, model)
    for name in ("temperature", "variance"):
        start, end = getattr(model, f"{name}_start"), getattr(model, name) or TEMPERATURE
        if start is not None and start < end:
            yield f"--model.{name}_start has to be at least --model.{name}, {end}; got {start}"


def _objections_to_decoders(model: ModelConfig, family: type[Family]) -> Iterator[str]:
    tractable, nonlinear, estimator = model.decoders
    if tractable == "none" and not nonlinear:
        yield "there is no decoder: --model.tractable none needs --model.nonlinear true"
    if estimator == "none" and not model.decoders.guided:
        yield (
            "--model.estimator none (the encoder follows the linear decoder only) needs both decoders: "
            "--model.tractable other than none and --model.nonlinear true"
        )
    if estimator == "exact" and nonlinear:
        yield (
            "the nonlinear decoder has no closed form: --model.estimator exact is for a linear decoder alone, "
            "--model.nonlinear false"
        )
    if model.likelihood in ("constant", *PARTED) and not nonlinear:
        yield f"--model.likelihood {model.likelihood} is for a nonlinear decoder: --model.nonlinear true"
    if tractable == "none" and model.start != _start(model):
        yield f"--model.start {model.start} is for a tractable decoder: --model.tractable other than none"
    if tractable in PARTED and model.start == "mean":
        yield "--model.start mean is for linear decoders: choose ppca or random"
    if tractable != "constant" and model.start == "moments":
        yield "--model.start moments is for --model.tractable constant"
    if model.likelihood in OF_COUNTS:
        yield from _objections_to_variance("counts", model)
        if tractable in PARTED:
            yield f"--model.tractable {tractable} is not for counts: choose --model.tractable linear, or none"
    if model.discrete:
        yield from _objections_to_levels(model)
    if model.context is not None and (nonlinear or (tractable in ("fixed", "linear", "exp") and not model.discrete)):
        yield "--model.context is for a tractable decoder of constant or logistic leaves alone: --model.nonlinear false"
    if model.leaves in ("exp", "categorical") and model.context is not None:
        yield f"--model.context has nothing to shift in --model.leaves {model.leaves}: choose logistic or constant"
    if model.likelihood == "bernoulli":
        yield from _objections_to_variance("bits", model)
        if tractable != "none" and not family.gaussian:
            yield (
                f"a linear decoder of bits has a closed form for Gaussian latents only, not for --model.latent "
                f"{model.latent}: choose --model.tractable none"
            )


def _objections_to_levels(model: ModelConfig) -> Iterator[str]:
    """Yield what cannot stand beside a likelihood of whole levels: densities, whose x are dequantized."""
    tractable, nonlinear, _ = model.decoders
    if tractable in ("fixed", "constant", "exp") or (tractable == "linear" and model.likelihood != "logistic"):
        yield (
            f"--model.tractable {tractable} is a density, and whole levels have probabilities: choose a mixture or "
            "circuit, linear with --model.likelihood logistic, or none"
        )
    if nonlinear and model.likelihood not in ("logistic", *PARTED):
        yield (
            f"--model.leaves {model.leaves} are of whole levels, and --model.likelihood {model.likelihood} is a "
            "density: choose logistic, mixture or circuit"
        )
    if tractable in PARTED and model.leaves not in OF_LEVELS:
        yield f"--model.likelihood logistic is of whole levels: choose --model.leaves {' or '.join(OF_LEVELS)}"
    if nonlinear and model.leaves == "categorical":
        yield "--model.leaves categorical do not depend on z: they are for a tractable decoder alone"


def _objections_to_variance(what: str, model: ModelConfig) -> Iterator[str]:
    if model.leaves not in (None, "constant"):
        yield f"--model.leaves {model.leaves} is a Gaussian leaf's precision, and {what} have none"
    if model.tractable in ("fixed", "constant", "exp"):
        yield (
            f"--model.tractable {model.tractable} is a Gaussian decoder's variance, and {what} have none: "
            "choose --model.tractable linear, or none"
        )


def _objections_to_estimators(model: ModelConfig, family: type[Family]) -> Iterator[str]:
    estimator, suitable = model.decoders.estimator, suitable_estimators(family)
    if estimator.startswith(SILENT) and (model.nonlinear or model.tractable not in PARTED):
        yield (
            f"--model.estimator {estimator} needs statistics with known expectations, which mixtures and circuits "
            "have: --model.tractable mixture or circuit, --model.nonlinear false"
        )
    for option, name in (("--model.estimator", estimator), ("--model.guide_estimator", model.guide_estimator)):
        choices = suitable if option == "--model.estimator" else suitable[:-1]
        if name not in choices and (name == "none" or not estimator_class(option, name).suits(family)):
            yield f"{option} {name} is not for --model.latent {family.name}: choose among {', '.join(choices)}"


def _require_closed_form(model: ModelConfig, family: type[Family]) -> None:
    """Ask a small tractable decoder whether it has a closed form for a family."""
    small, components = family(2), 2 if model.tractable in PARTED else None
    # The weights of the decoder are random, and have to leave the run's own random numbers as they are.
    with torch.random.fork_rng([]), torch.no_grad():
        shape = torch.Size([2])
        decoder = tractable_decoder(replace(model, components=components, context=None), small, Outputs(shape))
        try:
            if decoder is not None:
                decoder.expected_log_prob(torch.zeros(1, *shape), small.latent(torch.zeros(1, small.numbers)))
        except IntractableError as error:
            option = f"--model.tractable {model.tractable} with --model.log_term {model.log_term}"
            if model.likelihood in OF_COUNTS:
                option = f"--model.likelihood {model.likelihood} with a linear decoder"
            reason = " ".join(str(error).split())
            raise ConfigError(f"{option} is not for --model.latent {family.name}: {reason}") from None


# Classes that options name


def family_named(name: str) -> type[Family]:
    """Return the family that --model.latent names."""
    try:
        return FAMILIES.resolve(name)
    except DomainError as error:
        raise ConfigError(f"--model.latent {error}") from error


def estimator_class(option: str, name: EstimatorName) -> type[Estimator]:
    """Return the estimator that an option names; one that is named as module:Class may be in the current folder."""
    if ":" in name and "" not in sys.path:
        sys.path.append("")  # last, so that nothing that is installed is hidden
    try:
        return ESTIMATORS.resolve(name.removeprefix(SILENT))
    except DomainError as error:
        raise ConfigError(f"{option} {error}") from error


def suitable_estimators(family: type[Family]) -> list[EstimatorName]:
    """Return the names of all estimators that take latents of a family, the exact one first; none is one of them."""
    suitable = [name for name in sorted(ESTIMATORS) if name != "exact" and ESTIMATORS[name].suits(family)]
    return ["exact", *suitable, "none"]
