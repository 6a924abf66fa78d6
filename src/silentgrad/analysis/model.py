"""Models that can be measured: those with an encoder and a decoder, and the objective around that decoder."""

from typing import Protocol

from torch import Tensor, nn
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators import Estimator, Integrand
from silentgrad.guided import GuidedVAE
from silentgrad.latents.families import family_of, standard_prior
from silentgrad.latents.priors import Prior
from silentgrad.objective import Decoder, Objective, Term, family_of_encoder


class MeasurableModel(Protocol):
    """A model whose gradients can be measured. It need not inherit from anything.

    It may have a third attribute, `prior`: a `silentgrad.latents.Prior`, or None. Without one, the standard prior of
    the latents' family stands against them.
    """

    @property
    def encoder(self) -> nn.Module:
        """From examples to their latent q(z|x), one distribution of a registered family."""

    @property
    def decoder(self) -> Decoder:
        """From latents to p(x|z), whose event is one example."""


class Held(Estimator):
    """Given values in place of an expectation, without a gradient: what is differentiated then is all the rest.

    Args:
        values: One number per example.
    """

    unbiased = False

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        return self.values


def measured(model: MeasurableModel, q: td.Distribution, values: Tensor, epoch: int | None) -> tuple[Term, Objective]:
    """Return the term under measurement, and an objective with it whose gradient is the same for every draw.

    Args:
        model: The model.
        q: A batch's latents, from its encoder.
        values: Values of log p(x|z) to hold, one per example.
        epoch: The epoch of a guided objective; with None no other decoder takes part.
    """
    held = Term(model.decoder, Held(values))
    if isinstance(model, GuidedVAE):
        return _guided(model.objective(q, epoch), held)
    if epoch is not None:
        raise DomainError(f"epoch=... is for a GuidedVAE: the objective of {type(model).__name__} has no schedule")
    family = family_of_encoder(model.encoder)
    prior = _prior(model) or standard_prior(q, family or family_of(q))
    return held, Objective({"measured": held}, prior, family)


def encoder_parameters(model: MeasurableModel) -> dict[str, Tensor]:
    """Return the encoder's parameters that take a gradient, by name."""
    if not isinstance(model.encoder, nn.Module):
        raise DomainError(f"the encoder has to be a torch.nn.Module, got {type(model.encoder).__name__}")
    named = model.encoder.named_parameters()
    found: dict[str, Tensor] = {name: parameter for name, parameter in named if parameter.requires_grad}
    if not found:
        raise DomainError("the encoder is frozen: none of its parameters takes a gradient")
    return found


def _guided(objective: Objective, held: Term) -> tuple[Term, Objective]:
    """Replace an objective's term of the held decoder; without such a term its weight is 0."""
    weight = 0.0
    terms: dict[str, Term] = {}
    for name, term in objective.terms.items():
        if term.decoder is held.decoder:
            weight = term.weight
        else:
            if not term.estimator.exact:
                raise DomainError(
                    f"{type(term.estimator).__name__} of another decoder draws too: only one estimator is measured at "
                    "a time"
                )
            terms[name] = term
    terms["measured"] = held._replace(weight=weight)
    return terms["measured"], objective._replace(terms=terms)


def _prior(model: MeasurableModel) -> Prior | None:
    prior = getattr(model, "prior", None)
    if prior is None or isinstance(prior, Prior):
        return prior
    raise DomainError(
        "the model's prior has to be a silentgrad.latents.Prior, which knows its divergence, "
        f"got {type(prior).__name__}"
    )
