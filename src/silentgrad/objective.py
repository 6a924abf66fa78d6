r"""The objective: what a variational autoencoder descends, in nats per example.

.. math:: \sum_k w_k L_k + \beta\, D_\mathrm{KL}(q(z|x) \,\|\, p(z)), \qquad L_k = -E_{q(z|x)}[\log p_k(x|z)]

Every decoder :math:`p_k` has a term of its own: an estimator of its expectation, and a weight. With one term of weight
1 and :math:`\beta = 1` this is the negative ELBO.

A weight can also be kept from the decoder's own loss, and scale only the gradient that the term sends to the encoder.
Then :math:`L_k` is taken at a latent with the same value and :math:`w_k` times the gradient.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.decoders import is_tractable
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.estimators import Estimator, Exact, Integrand, PriorIntegrand, integrand_of
from silentgrad.exactness import weakest
from silentgrad.latents.families import Family, family_of
from silentgrad.latents.priors import Prior
from silentgrad.side_info import NOTHING, SideInfo
from silentgrad.tracing import underlying

Decoder = Callable[[Tensor], td.Distribution]
Weighting = Literal["loss", "encoder"]


class Term(NamedTuple):
    """A decoder's part of the objective.

    Args:
        decoder: p(x|z), whose event is one example.
        estimator: The estimator of the expectation of log p(x|z).
        weight: The number w that the term is weighted by.
    """

    decoder: Decoder
    estimator: Estimator
    weight: float = 1.0

    def loss(self, x: Tensor, q: td.Distribution, prior: Prior | None = None) -> Tensor:
        """Return -E_q[log p(x|z)] as the estimator has it, one number per example, without the weight.

        Args:
            x: Examples.
            q: Their latents.
            prior: The prior, for an estimator that weighs samples by it.
        """
        return self.loss_of(integrand_of(self.decoder, x), q, prior)

    def loss_of(self, integrand: Integrand, q: td.Distribution, prior: Prior | None = None) -> Tensor:
        """Return the same of an integrand that evaluates log p(x|z) in a way of its own."""
        if prior is not None and self.estimator.uses_prior:
            integrand = PriorIntegrand(integrand, prior)
        return -self.estimator(q, integrand)

    def auxiliary(self) -> list[Tensor]:
        """Return the estimator's own loss of the latest evaluation, if it has one; the weight does not apply to it."""
        loss = self.estimator.auxiliary_loss()
        return [] if loss is None else [loss]


class Value(NamedTuple):
    """Value of an objective and its parts, averaged over the examples; the terms' losses are without their weights."""

    total: Tensor
    kld: Tensor
    losses: dict[str, Tensor]


class Objective(NamedTuple):
    """The weighted terms of decoders and the weighted KL divergence to the prior.

    Args:
        terms: At least one term, by name.
        prior: The prior p(z).
        family: The family of the latents; if absent, that of their distribution.
        kl_weight: The weight of the KL divergence; 1 makes the objective of one term of weight 1 an upper bound of
            -log p(x).
        weighting: What a term's weight scales: its "loss", or the gradient that it sends to the "encoder" only.
    """

    terms: Mapping[str, Term]
    prior: Prior
    family: Family | None = None
    kl_weight: float = 1.0
    weighting: Weighting = "loss"

    def __call__(
        self, x: Tensor, q: td.Distribution, side_info: SideInfo = NOTHING, example_weights: Tensor | None = None
    ) -> Value:
        """Return the objective of examples x and their latents.

        Args:
            x: Examples.
            q: Their latents.
            side_info: Their side information.
            example_weights: How much each example counts, `(batch,)`; all the same if absent.
        """
        losses: dict[str, Tensor] = {}
        parts: list[Tensor] = []
        for name, term in self.terms.items():
            loss, weight = self._weighted(term._replace(decoder=given_decoder(term.decoder, side_info)), x, q)
            losses[name] = weighted_mean(loss, example_weights)
            parts += [_times(weight, losses[name]), *term.auxiliary()]
        if example_weights is None:
            kld = self.prior.divergence(q).sum() / loss.numel()
        else:
            kld = weighted_mean(self.prior.divergence(q), example_weights)
        return Value(sum(parts, start=_times(self.kl_weight, kld)), kld, losses)

    def exactness(self, q: td.Distribution) -> str:
        """Return what the value is without its sign to that of exact terms: exact, lower bound, ..., or sampled.

        It is the weakest word of the prior's divergence and of the decoders' expectations, for latents like q.
        """
        claims = [self.prior.exactness]
        for term in self.terms.values():
            if not term.estimator.exact:
                return "sampled"
            if isinstance(term.estimator, Exact) and is_tractable(term.decoder):
                claims.append(term.decoder.exactness(q))
        return weakest(*claims)

    def family_of(self, q: td.Distribution) -> Family:
        """Return the family of a latent."""
        return family_of(q) if self.family is None else self.family

    def _weighted(self, term: Term, x: Tensor, q: td.Distribution) -> tuple[Tensor, float]:
        """Return a term's loss, one number per example, and the weight that is left to apply to it."""
        if self.weighting == "loss":
            return term.loss(x, q, self.prior), term.weight
        return term.loss(x, scale_gradient(q, term.weight, self.family_of(q)), self.prior), 1.0


def given_decoder(decoder: Decoder, side_info: SideInfo) -> Decoder:
    """Return a decoder given side information; itself if there is none.

    Raises:
        IntractableError: The decoder has no method `given`.
    """
    if not side_info:
        return decoder
    given: Callable[..., Decoder] | None = getattr(decoder, "given", None)
    if given is None:
        raise IntractableError(
            f"{type(decoder).__name__} takes no side information, no offset, covariates or mask: it has no method "
            "`given`, as linear decoders have"
        )
    return given(side_info)


def _times(weight: float, value: Tensor) -> Tensor:
    """Return the product; the value itself by a weight of 1, so that the backward pass is shorter."""
    return value if weight == 1 else weight * value


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean over examples, each counted as much as its weight."""
    if weights is None:
        return values.mean()
    if weights.shape != values.shape:
        raise ShapeError(f"weights have shape {tuple(weights.shape)}, expected one per example, {tuple(values.shape)}")
    if not torch.compiler.is_compiling():
        given = underlying(weights)
        if not (given >= 0).all() or not given.any():
            raise DomainError("weights of examples cannot be negative or NaN, nor zero for all of them")
    return (weights * values).sum() / weights.sum()


def scale_gradient(q: td.Distribution, weight: float, family: Family) -> td.Distribution:
    """Return the same latent, through which only `weight` times the gradient passes."""

    def scaled(x: Tensor) -> Tensor:
        return weight * x + (1 - weight) * x.detach() if weight else x.detach()

    return family.rebuild(q, [scaled(parameter) for parameter in family.parameters(q)])


def family_of_encoder(encoder: object) -> Family | None:
    """Return the family that an encoder names as its `family`; None if it names none."""
    family = getattr(encoder, "family", None)
    return family if isinstance(family, Family) else None
