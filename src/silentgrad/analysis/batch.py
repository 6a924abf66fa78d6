"""One batch under measurement: its latent from a single run of the encoder, and its gradient over draws."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.analysis.drawing import Cotangent, Parts, cotangents, require_batch
from silentgrad.analysis.products import Gradient, OverDraws, Pullback, SquaresMethod, added, over_draws
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.estimators import (
    Estimator,
    Exact,
    Integrand,
    Reparameterized,
    StatisticalIntegrand,
    TractableIntegrand,
    per_example,
)
from silentgrad.exactness import Exactness
from silentgrad.guided import GuidedVAE
from silentgrad.latents.families import family_of, require_one_latent, standard_prior
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


class AtTheMean(Estimator):
    """The integrand at the latents' mean, without a gradient: what is differentiated then is all the rest."""

    @torch.no_grad()
    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        return per_example(integrand(q.mean), q)


HELD = AtTheMean()


@dataclass(frozen=True)
class MeasuredBatch:
    """An integrand and a latent, its encoder's graph kept for as many products as are asked for.

    Args:
        integrand: The function of z under measurement, log p(x|z) of a model's decoder.
        term: The term of the objective that it belongs to; its estimator is replaced.
        parts: The latent.
        pullback: From cotangents of the latent's parameters to the gradient that is measured.
        names: Names of the parameters that this gradient is taken in.
        fixed: The cotangent of what is the same for every draw.
        prior: The prior of the latents, for an estimator that weighs samples by it.
    """

    integrand: Integrand
    term: Term
    parts: Parts
    pullback: Pullback
    names: Sequence[str]
    fixed: Cotangent
    prior: Prior | None = None

    @classmethod
    def of_model(cls, model: MeasurableModel, x: Tensor, integrand: Integrand, epoch: int | None = None) -> Self:
        """Encode a batch.

        Args:
            model: The model, measured as it stands: in evaluation mode batch normalization uses its running statistics.
            x: Examples as the model sees them.
            integrand: log p(x|z) of the model's decoder, however it is evaluated.
            epoch: Epoch of the guided objective, in which part of the gradient is the linear decoder's and does not
                vary; None leaves the guide out.
        """
        parameters = encoder_parameters(model)
        q = model.encoder(x)
        require_one_latent(q)
        require_batch(HELD(q, integrand).shape, x)
        term, objective = measured(model, q, epoch)
        parts = Parts.of(q, objective.family_of(q))
        pullback = Pullback(parts.tensors, list(parameters.values()))
        fixed = _fixed_cotangent(objective, x, parts)
        return cls(integrand, term, parts, pullback, list(parameters), fixed, objective.prior)

    @classmethod
    def of_function(cls, q: td.Distribution, integrand: Integrand) -> Self:
        """Take a plain function of z under a latent, in whose own parameters the gradient is taken.

        Raises:
            ShapeError: It has not one number per example at a draw.
        """
        _require_sum(q, integrand)
        parts = Parts.of_any(q)
        leaves = [tensor.detach().clone().requires_grad_() for tensor in parts.tensors]
        fixed = [torch.zeros_like(leaf) for leaf in leaves]
        parts = parts._replace(tensors=tuple(leaves))
        term = Term(_no_decoder, Reparameterized())
        return cls(integrand, term, parts, Pullback(leaves, leaves), parts.names, fixed)

    def learn(self, estimator: Estimator) -> int:
        """Show the batch to an estimator once in training mode, hold it from then on, and count its evaluations."""
        if isinstance(estimator, Exact):
            return 0
        counted = _Counted(self.integrand)
        estimator.train()
        with torch.no_grad():
            self.term._replace(estimator=estimator).loss_of(counted, self.latent(), self.prior)
        estimator.eval()
        return counted.calls

    def over_draws(self, estimator: Estimator, method: SquaresMethod, draws: int) -> OverDraws:
        """Return the estimator's mean cotangent of the whole loss, and the variance of its gradient."""
        found = over_draws(self._cotangents(estimator, self.integrand, draws), method, draws)
        return found._replace(mean=added(found.mean, self.fixed))

    def exact_cotangent(self, estimator: Estimator, integrand: Integrand) -> Cotangent:
        """Return the cotangent of the whole loss under an exact estimator."""
        (chunk,) = self._cotangents(estimator, integrand, draws=1)
        return added([c[0] for c in chunk], self.fixed)

    def exact_gradient(self) -> Gradient:
        """Return the closed form's gradient, or an empty one where the integrand has no closed form."""
        try:
            return self.pullback(self.exact_cotangent(Exact(allow_approximation=True), self.integrand))
        except IntractableError:
            return []

    @property
    def knows_truth(self) -> bool:
        """Return whether the closed form is the true gradient."""
        integrand = self.integrand
        return isinstance(integrand, TractableIntegrand) and integrand.exactness(self.latent()) is Exactness.EXACT

    def latent(self) -> td.Distribution:
        """Rebuild the batch's latent."""
        return self.parts.rebuild(self.parts.tensors)

    @property
    def device(self) -> torch.device:
        """Where the latent lies."""
        return self.parts.tensors[0].device

    def _cotangents(self, estimator: Estimator, integrand: Integrand, draws: int) -> Iterator[Cotangent]:
        return cotangents(self.term._replace(estimator=estimator), integrand, self.parts, draws, self.prior)


@torch.no_grad()
def _require_sum(q: td.Distribution, function: Integrand) -> None:
    """Raise for a function with a number for each latent of a batch, whose sum is forgotten, or none per example."""
    examples = per_example(function(q.sample()), q).shape
    if len(examples) > 1 and examples == q.batch_shape + q.event_shape:
        raise ShapeError(
            f"the function has shape {tuple(examples)}, a number for each latent: sum over those of an example, "
            "f(z).sum(-1). Latents that are examples of their own have one dimension, logits.flatten()"
        )


class _Counted:
    """An integrand whose evaluations are counted; one with statistics keeps them, for a control variate of them."""

    def __init__(self, integrand: Integrand) -> None:
        self.integrand, self.calls = integrand, 0
        if isinstance(integrand, StatisticalIntegrand):
            self.statistics, self.expected_statistics = integrand.statistics, integrand.expected_statistics
            self.from_statistics = partial(self._count, integrand.from_statistics)

    def __call__(self, z: Tensor) -> Tensor:
        return self._count(self.integrand, z)

    def _count(self, function: Callable[[Any], Tensor], argument: object) -> Tensor:
        self.calls += 1
        return function(argument)


def _fixed_cotangent(objective: Objective, x: Tensor, parts: Parts) -> Cotangent:
    """Return the cotangent of what is the same for every draw: the KL divergence and the other decoders' terms."""
    leaves = [t.detach().requires_grad_() for t in parts.tensors]
    loss = objective(x, parts.rebuild(leaves)).total
    return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))


def _no_decoder(z: Tensor) -> td.Distribution:
    raise IntractableError("a plain function of z has no decoder")


def measured(model: MeasurableModel, q: td.Distribution, epoch: int | None) -> tuple[Term, Objective]:
    """Return the term under measurement, and an objective with it whose gradient is the same for every draw.

    Args:
        model: The model.
        q: A batch's latents, from its encoder.
        epoch: The epoch of a guided objective; with None no other decoder takes part.
    """
    held = Term(model.decoder, HELD)
    if isinstance(model, GuidedVAE):
        return _guided(model.objective(q, epoch), held)
    if epoch is not None:
        raise DomainError(f"epoch=... is for a GuidedVAE: the objective of {type(model).__name__} has no schedule")
    family = family_of_encoder(model.encoder)
    return held, Objective({"measured": held}, prior_of(model, q), family)


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


def prior_of(model: MeasurableModel, q: td.Distribution) -> Prior:
    """Return a model's prior; the standard one of the latents' family if it has none."""
    prior = getattr(model, "prior", None)
    if prior is None:
        return standard_prior(q, family_of_encoder(model.encoder) or family_of(q))
    if isinstance(prior, Prior):
        return prior
    raise DomainError(
        "the model's prior has to be a silentgrad.latents.Prior, which knows its divergence, "
        f"got {type(prior).__name__}"
    )
