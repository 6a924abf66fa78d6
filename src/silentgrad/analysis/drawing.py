r"""One draw after another of an estimator's gradient, up to the latent's parameters and no further.

The encoder's part of a gradient is linear: with J the Jacobian of the latent's parameters in the encoder's, a draw's
gradient is :math:`g_s = J^T c_s`, where the cotangent :math:`c_s` is the gradient in the latent's parameters. The
cotangent is small, and costs the decoder's evaluation only.

A linear decoder takes several draws at a time. With a fixed variance it is evaluated through its sufficient statistics,

.. math:: \log p(x|z) = \log p(x|0) + h \cdot z - \tfrac12 z \cdot G z,\quad
          h = W^T \Sigma^{-1} (x - b),\; G = W^T \Sigma^{-1} W,

whose products are latents x latents instead of latents x outputs, and which has its gradient h - G z on the way.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.decoders import LinearDecoder, LinearGaussian
from silentgrad.errors import DomainError, ShapeError, UnregisteredLatentError
from silentgrad.estimators import DecoderIntegrand, Estimator, Integrand, integrand_of, value_with_gradient_of
from silentgrad.latents.families import Family, family_of
from silentgrad.latents.independent import base_of, independent
from silentgrad.latents.priors import Prior
from silentgrad.objective import Decoder, Term

Cotangent = list[Tensor]
AT_ONCE = 2**18  # numbers per evaluation: few calls, and what they work on stays in a processor's cache


class Parts(NamedTuple):
    """The parameters of a latent, `(batch, ...)` each, the function from parameters to a latent, and their names."""

    tensors: tuple[Tensor, ...]
    rebuild: Callable[[Sequence[Tensor]], td.Distribution]
    names: tuple[str, ...]

    @classmethod
    def of(cls, q: td.Distribution, family: Family) -> Self:
        """Take a latent of a family apart."""
        return cls(family.parameters(q), partial(family.rebuild, q), family.arguments)

    @classmethod
    def of_any(cls, q: td.Distribution) -> Self:
        """Take a latent apart; one of no family by the arguments of its class, which it has as attributes."""
        try:
            return cls.of(q, family_of(q))
        except UnregisteredLatentError:
            tensors, constants = _arguments(base_of(q))
        build: Callable[..., td.Distribution] = type(base_of(q))

        def rebuild(others: Sequence[Tensor]) -> td.Distribution:
            named = dict(zip(tensors, others, strict=True))
            return independent(build(**named, **constants, validate_args=False), len(q.event_shape))

        return cls(tuple(tensors.values()), rebuild, tuple(tensors))


def _arguments(base: td.Distribution) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the arguments that a distribution was made with: real tensors, and all others."""
    names = list(inspect.signature(type(base)).parameters)
    names.remove("validate_args")
    if "logits" in names and "probs" in names:
        names.remove("probs")  # either of both says all
    tensors: dict[str, Tensor] = {}
    constants: dict[str, Any] = {}
    for name in names:
        value = getattr(base, name)
        if isinstance(value, Tensor) and value.is_floating_point():
            tensors[name] = value
        else:
            constants[name] = value
    return tensors, constants


class SeveralDraws(DecoderIntegrand):
    """log p(x|z) of a linear decoder, of which one evaluation may take several draws."""

    def __init__(self, decoder: LinearDecoder, x: Tensor) -> None:
        super().__init__(decoder, x)
        self.linear = decoder
        self.at_once = max(1, AT_ONCE // x.numel())  # draws that one evaluation should take

    def times(self, draws: int) -> DecoderIntegrand:
        """Return the same for latents `(draws * batch, ...)`, draw after draw: x is repeated."""
        return DecoderIntegrand(self.linear, _repeated(self.x, draws))


class QuadraticIntegrand(SeveralDraws):
    """Integrand of a fixed variance, through the sufficient statistics; may be differentiated once."""

    @torch.no_grad()
    def __init__(self, decoder: LinearGaussian, x: Tensor) -> None:
        super().__init__(decoder, x)
        weight, residual = decoder.affine.weight, x.flatten(-len(decoder.event_shape)) - decoder.affine.bias
        scaled = weight / decoder.variance.reshape(-1, 1)
        self.h, self.G = residual @ scaled, weight.T @ scaled
        self.at_zero = decoder.log_prob(x, torch.zeros_like(self.h))
        self.at_once = max(1, AT_ONCE // self.h.numel())

    def times(self, draws: int) -> DecoderIntegrand:
        return self

    def __call__(self, z: Tensor) -> Tensor:
        z = self.linear.flatten_latent(z).unflatten(0, (-1, len(self.h)))
        fixed = z.detach()
        along_gradient = (z * (self.h - fixed @ self.G)).sum(-1)
        value = self.at_zero + ((fixed * self.h).sum(-1) + along_gradient) / 2
        return value_with_gradient_of(value, along_gradient).flatten(0, 1)


def quick_integrand_of(decoder: Decoder, x: Tensor) -> Integrand:
    """Make log p(x|z) as `integrand_of` does; a linear decoder's takes several draws at a time."""
    if not isinstance(decoder, LinearDecoder):
        return integrand_of(decoder, x)
    require_batch(decoder.examples_of(x), x)
    return QuadraticIntegrand(decoder, x) if isinstance(decoder, LinearGaussian) else SeveralDraws(decoder, x)


def require_batch(examples: torch.Size, x: Tensor) -> None:
    """Refuse x without a batch, or with none in it: a mean over examples has to have some."""
    if len(examples) == 0 or examples.numel() == 0:
        raise ShapeError(f"gradients are measured over a batch of examples, got x of shape {tuple(x.shape)}")


def _repeated(batch: Tensor, count: int) -> Tensor:
    """Copy a batch, one copy after the other; a single one may have no batch."""
    return batch if count == 1 else batch.repeat(count, *[1] * (batch.dim() - 1))


def require_gradient(value: Tensor, estimator: Estimator) -> None:
    """Raise if what an estimator returned cannot be differentiated."""
    if not value.requires_grad:
        raise DomainError(f"{type(estimator).__name__} returns a value without a gradient in the latent's parameters")


def cotangents(
    term: Term, integrand: Integrand, parts: Parts, draws: int, prior: Prior | None = None
) -> Iterator[Cotangent]:
    """Differentiate in the latent's parameters a term with its weight, averaged over the examples.

    Args:
        term: A decoder's term of the objective.
        integrand: log p(x|z) of its decoder, however it is evaluated.
        parts: The latent.
        draws: How often the term's estimator is asked.
        prior: The prior of the latents, for an estimator that weighs samples by it.

    Yields:
        One draw or several, `(count, batch, ...)` for each parameter. An exact estimator owes the same bits to every
        draw, and a matrix product may round its rows differently: its draws are evaluated one by one.
    """
    at_once = 1
    if isinstance(integrand, SeveralDraws) and not term.estimator.exact:
        at_once = integrand.at_once
    for start in range(0, draws, at_once):
        count = min(at_once, draws - start)
        leaves = [_repeated(tensor.detach(), count).requires_grad_() for tensor in parts.tensors]
        several = integrand.times(count) if isinstance(integrand, SeveralDraws) else integrand
        losses = term.loss_of(several, parts.rebuild(leaves), prior)
        require_gradient(losses, term.estimator)
        loss = term.weight * losses.sum() / (losses.numel() // count)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        yield [g.reshape(count, *tensor.shape) for g, tensor in zip(gradients, parts.tensors, strict=True)]
