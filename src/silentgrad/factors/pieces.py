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

from silentgrad.decoders.likelihood import IMPOSSIBLE, LinearLikelihood
from silentgrad.decoders.likelihood import own_parameters as parameters_of
from silentgrad.factors.chunks import CHUNK, row_products
from silentgrad.factors.latents import Latents
from silentgrad.likelihoods.base import expected_log_prob
from silentgrad.side_info import SideInfo

ENTRIES = 2**19  # of x in a piece: a few arrays of this size are all that is held at a time


class RowSource(Protocol):
    """Rows of data of which some are dense at a time: a tensor, or what gives one for a slice."""

    @property
    def shape(self) -> torch.Size: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class Expectation(NamedTuple):
    """The expected log-likelihood of a piece under a decoder and its latents, with derivatives.

    Args:
        value: E[log p(x|u)], `(rows,)`.
        first: Its derivative in the mean of every u, `(rows, outputs)`.
        second: The second one, as that in the variance has it.
        own: The first two derivatives in the numbers of the likelihood's own parameters, `(2, numbers)`, in double
            precision, over rows as they count; none unless asked for.
        concave: Whether no second derivative is above 0.
    """

    value: Tensor
    first: Tensor
    second: Tensor
    own: Tensor
    concave: bool = False

    def write(self, rows: Tensor, others: "Expectation", chosen: Tensor) -> None:
        """Put some rows of others in place of some of these, but for `own`."""
        self.value[rows], self.first[rows] = others.value[chosen], others.first[chosen]
        self.second[rows] = others.second[chosen]


@dataclass(frozen=True)
class Piece:
    """Some rows, flattened, with their side information.

    Args:
        decoder: The decoder; in place of its own weights, `at` takes those that are tried.
        rows: Which rows these are.
        x: Examples `(rows, outputs)`, with the likelihood's neutral number where an entry is missing.
        features: The other terms of u: 1, then the covariates, `(rows, 1 + covariates)`.
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
        """Return the piece's expectation for a decoder's weights `(outputs, latents + features)`, and its derivatives.

        Those in the likelihood's own parameters are found if `own`.
        """
        return self.of_u(self.means(theta, latents.means), latents.variances(theta[:, : latents.dimensions]), own)

    def of_u(self, means: Tensor, variances: Tensor, own: bool = False) -> Expectation:
        """Return the same for means and variances of every u, `(rows, outputs)`."""
        if self.mask is not None and self.decoder.joint:
            means, variances = torch.where(self.mask, means, IMPOSSIBLE), torch.where(self.mask, variances, 0)
        derivatives = getattr(self.decoder.likelihood, "derivatives", None)
        if derivatives is not None:
            x, mean, variance = self._shaped(means, variances)
            value, first, second = derivatives(x, mean, variance)
            of_own = derivatives_in([], value)
            for parameter in own_parameters(self.decoder) if own else []:
                pair = self.decoder.likelihood.own_derivatives(x, mean, value, first, second)  # type: ignore[attr-defined]
                sums = [self.counted(entries).sum(0, dtype=torch.float64).unflatten(0, x.shape[1:]) for entries in pair]
                of_own = torch.stack([one.sum_to_size(parameter.shape).flatten() for one in sums])
            return self._expectation(value, first, second, of_own)
        return self._by_autograd(means, variances, own)

    def means(self, theta: Tensor, latents: Tensor) -> Tensor:
        """Return the mean of every u for means of the latents, `(rows, outputs)`."""
        means = row_products(torch.cat([latents, self.features], 1), theta.T)
        if self.offset is not None:
            means += self.offset
        return means

    def subset(self, rows: Tensor) -> "Piece":
        """Return some of the rows, by their places in the piece."""
        parts = {name: getattr(self, name) for name in ("x", "features", "offset", "mask", "weights")}
        return replace(self, **{name: part[rows] for name, part in parts.items() if part is not None})

    def _by_autograd(self, mean: Tensor, variance: Tensor, own: bool) -> Expectation:
        with torch.enable_grad():
            mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
            likelihood, nodes = self.decoder.likelihood, self.decoder.nodes
            entries = expected_log_prob(likelihood, *self._shaped(mean, variance), nodes)
            first, in_variance = torch.autograd.grad(entries.sum(), [mean, variance], retain_graph=own)
            of_own = derivatives_in(own_parameters(self.decoder) if own else [], self.counted(entries).sum())
        return self._expectation(entries.detach(), first, 2 * in_variance, of_own)

    def _expectation(self, entries: Tensor, first: Tensor, second: Tensor, own: Tensor) -> Expectation:
        """Sum over the observed entries, whose derivatives are those of all entries where the others' are zero."""
        entries, first, second = self._observed(entries), self._observed(first), self._observed(second)
        concave = getattr(self.decoder.likelihood, "concave", False) or not bool(second.max() > 0)
        return Expectation(entries.sum(1), first, second, own, concave)

    def _shaped(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.decoder.event_shape
        return self.x.unflatten(1, shape), mean.unflatten(1, shape), variance.unflatten(1, shape)

    def total(self, rows: Tensor) -> float:
        """Sum one number per row, as the rows count, in double precision."""
        if self.weights is not None:
            rows = rows * self.weights
        return float(rows.double().sum())

    def base(self) -> Tensor:
        """Return the part of each row's log-likelihood that depends on x alone, where the derivatives leave it out."""
        log_base = getattr(self.decoder.likelihood, "log_base", None)
        if log_base is None:
            return torch.zeros_like(self.x[:, 0], dtype=torch.float64)
        return self._observed(log_base(self.x.double())).sum(1)

    def _observed(self, entries: Tensor) -> Tensor:
        """Flatten entries to `(rows, entries)`, with 0 for those that were not observed."""
        entries = entries.reshape(len(self.x), -1)
        if self.mask is not None and not self.decoder.joint:
            entries = entries.masked_fill(~self.mask, 0)
        return entries

    def counted(self, entries: Tensor) -> Tensor:
        """Flatten them likewise, in rows as they count."""
        entries = self._observed(entries)
        return entries if self.weights is None else entries * self.weights.unsqueeze(1)


def own_parameters(decoder: LinearLikelihood) -> list[nn.Parameter]:
    """Return the parameters of a decoder's likelihood that are to be learned."""
    return [parameter for parameter in parameters_of(decoder.likelihood) if parameter.requires_grad]


def own_numbers(decoder: LinearLikelihood) -> Tensor:
    """Return these parameters in one vector, in double precision."""
    numbers = [parameter.detach().double().flatten() for parameter in own_parameters(decoder)]
    return torch.cat([decoder.affine.weight.new_zeros(0, dtype=torch.float64), *numbers])


def write_own(decoder: LinearLikelihood, numbers: Tensor) -> None:
    """Put such a vector into the decoder."""
    parameters = own_parameters(decoder)
    for parameter, part in zip(parameters, numbers.split([one.numel() for one in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))


def derivatives_in(parameters: Sequence[Tensor], value: Tensor) -> Tensor:
    """Return the first two derivatives of a value in each number of parameters, of which none acts upon another's.

    They are `(2, numbers)`, in double precision.
    """
    found = [value.new_zeros(2, 0, dtype=torch.float64)]
    for parameter in parameters:
        if not value.requires_grad:
            found.append(found[0].new_zeros(2, parameter.numel()))
            continue
        (slope,) = torch.autograd.grad(value, parameter, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), parameter, retain_graph=True)
        found.append(torch.stack([slope.detach().flatten(), bend.flatten()]).double())
    return torch.cat(found, 1)


def pieces_of(decoder: LinearLikelihood, x: RowSource, side_info: SideInfo, weights: Tensor | None) -> Iterator[Piece]:
    """Return the data in pieces of some number of entries, dense one at a time."""
    outputs = decoder.event_shape.numel()
    size = max(1, ENTRIES // outputs)
    if size > CHUNK:
        size -= size % CHUNK  # so that chunks are full
    like = decoder.affine.weight
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        known = side_info.between(rows).to(like).flattened(torch.Size([rows.stop - start]), decoder.event_shape)
        stored = known.observed(x[rows].to(like).flatten(1), decoder.neutral)
        if stored.is_inference():
            stored = stored.clone()  # which autograd may keep
        features = torch.ones_like(stored[:, :1])
        if known.covariates is not None:
            features = torch.cat([features, known.covariates], 1)
        counted = None
        if weights is not None:
            counted = weights[rows].to(like)
        yield Piece(decoder, rows, stored, features, known.offset, known.mask, counted)
