r"""The data in pieces, and the expected log-likelihood of a piece with its derivatives.

For Gaussian u of mean m and variance V, :math:`g(m, V) = E[\log p(x|u)]` has :math:`2\, \partial g / \partial V =
\partial^2 g / \partial m^2` (Price 1958): the first derivatives of a likelihood's rule are all that Newton's method
needs. Where the rule is a bound, the left-hand side is what the stationary point of a Gaussian q needs, and the
right-hand side is replaced by it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from silentgrad.beside import Beside
from silentgrad.decoders.likelihood import IMPOSSIBLE, LinearLikelihood
from silentgrad.factors.latents import Latents
from silentgrad.factors.symmetric import forms, products
from silentgrad.likelihoods.base import expected_log_prob

ENTRIES = 2**21  # of x in a piece: a few arrays of this size are all that is held at a time


class Table(Protocol):
    """Rows of data of which some are dense at a time: a tensor, or what gives one for a slice."""

    @property
    def shape(self) -> torch.Size: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class Expectation(NamedTuple):
    """What a piece comes to under a decoder and its latents.

    Args:
        value: E[log p(x|u)], `(rows,)`.
        first: Its derivative in the mean of every u, `(rows, outputs)`.
        second: The second one, as that in the variance has it.
        own: The gradients of the likelihood's own parameters, over rows as they count; none unless asked for.
    """

    value: Tensor
    first: Tensor
    second: Tensor
    own: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Piece:
    """Some rows, flattened, with all that stands beside them.

    Args:
        decoder: The decoder; in place of its own weights, `at` takes those that are tried.
        rows: Which rows these are.
        x: Examples `(rows, outputs)`, with the likelihood's neutral number where an entry is missing.
        features: What stands beside the latents in u: 1, then the covariates, `(rows, 1 + covariates)`.
        offset: Known part of u.
        mask: Which entries were observed.
        weights: How much each row counts; all the same if absent.
    """

    decoder: LinearLikelihood
    rows: slice
    x: Tensor
    features: Tensor
    offset: Tensor | None
    mask: Tensor | None
    weights: Tensor | None

    def at(self, theta: Tensor, latents: Latents, own: bool = False) -> Expectation:
        """The piece's expectation for a decoder's weights `(outputs, latents + features)`, and its derivatives.

        Args:
            theta: The weights.
            latents: The rows' latents.
            own: Whether to find the gradients of the likelihood's own parameters too.
        """
        mean, variance = self.moments(theta, latents)
        derivatives = getattr(self.decoder.likelihood, "derivatives", None)
        if derivatives is not None:
            return self._expectation(*derivatives(*self._shaped(mean, variance)))
        return self._by_autograd(mean, variance, own)

    def moments(self, theta: Tensor, latents: Latents) -> tuple[Tensor, Tensor]:
        """Mean and variance of every u, `(rows, outputs)`."""
        w = theta[:, : latents.dimensions]
        mean = torch.cat([latents.means, self.features], 1) @ theta.T
        if self.offset is not None:
            mean = mean + self.offset
        variance = (forms(latents.covariances) @ products(w).T).clamp(min=0)  # which rounding may leave below
        if self.mask is not None and self.decoder.joint:
            return torch.where(self.mask, mean, IMPOSSIBLE), torch.where(self.mask, variance, 0)
        return mean, variance

    def subset(self, rows: Tensor) -> "Piece":
        """Some of the rows, by their places in the piece."""

        def chosen(part: Tensor | None) -> Tensor | None:
            if part is None:
                return None
            return part[rows]

        return replace(
            self,
            x=self.x[rows],
            features=self.features[rows],
            offset=chosen(self.offset),
            mask=chosen(self.mask),
            weights=chosen(self.weights),
        )

    def _by_autograd(self, mean: Tensor, variance: Tensor, own: bool) -> Expectation:
        with torch.enable_grad():
            mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
            likelihood, nodes = self.decoder.likelihood, self.decoder.nodes
            entries = expected_log_prob(likelihood, *self._shaped(mean, variance), nodes)
            parameters: list[nn.Parameter] = []
            if own:
                parameters = own_parameters(self.decoder)
            first, in_variance = torch.autograd.grad(entries.sum(), [mean, variance], retain_graph=bool(parameters))
            gradients: Sequence[Tensor] = ()
            if parameters:
                gradients = torch.autograd.grad(self._counted(entries), parameters)
        return self._expectation(entries.detach(), first, 2 * in_variance, gradients)

    def _expectation(self, entries: Tensor, first: Tensor, second: Tensor, own: Sequence[Tensor] = ()) -> Expectation:
        """Sums over the observed entries, whose derivatives are those of all entries where the others' are zero."""
        parts = []
        for part in (entries, first, second):
            flat = part.reshape(len(self.x), -1)
            if self.mask is not None and not self.decoder.joint:
                flat = torch.where(self.mask, flat, 0)
            parts.append(flat)
        entries, first, second = parts
        return Expectation(entries.sum(1), first, second, own)

    def _shaped(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.decoder.event_shape
        return self.x.unflatten(1, shape), mean.unflatten(1, shape), variance.unflatten(1, shape)

    def total(self, rows: Tensor) -> float:
        """The sum of one number per row, as the rows count, in double precision."""
        if self.weights is not None:
            rows = rows * self.weights
        return float(rows.double().sum())

    def base(self) -> Tensor:
        """The part of each row's log-likelihood that depends on x alone, where the derivatives leave it out."""
        log_base = getattr(self.decoder.likelihood, "log_base", None)
        if log_base is None:
            return torch.zeros_like(self.x[:, 0], dtype=torch.float64)
        return self._per_row(log_base(self.x.double()))

    def _per_row(self, entries: Tensor) -> Tensor:
        """The sum over the observed entries of each row."""
        entries = entries.reshape(len(self.x), -1)
        if self.mask is not None and not self.decoder.joint:
            entries = torch.where(self.mask, entries, 0)
        return entries.sum(1)

    def _counted(self, entries: Tensor) -> Tensor:
        """The sum over observed entries, in rows as they count."""
        rows = self._per_row(entries)
        if self.weights is not None:
            rows = rows * self.weights
        return rows.sum()


def own_parameters(decoder: LinearLikelihood) -> list[nn.Parameter]:
    """The parameters of a decoder's likelihood that are to be learned."""
    if not isinstance(decoder.likelihood, nn.Module):
        return []
    return [parameter for parameter in decoder.likelihood.parameters() if parameter.requires_grad]


def pieces_of(decoder: LinearLikelihood, x: Table, beside: Beside, weights: Tensor | None) -> Iterator[Piece]:
    """The data in pieces of some number of entries, dense one at a time."""
    outputs = decoder.event_shape.numel()
    size = max(1, ENTRIES // outputs)
    like = decoder.affine.weight
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        known = beside.between(rows).to(like).flattened(torch.Size([rows.stop - start]), decoder.event_shape)
        stored = known.observed(x[rows].to(like).flatten(1), decoder.neutral)
        features = torch.ones_like(stored[:, :1])
        if known.covariates is not None:
            features = torch.cat([features, known.covariates], 1)
        counted = None
        if weights is not None:
            counted = weights[rows].to(like)
        yield Piece(decoder, rows, stored, features, known.offset, known.mask, counted)
