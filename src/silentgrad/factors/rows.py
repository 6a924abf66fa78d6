"""Rows in one place with their latents, and what a fit asks of them: sums over rows, whose sizes do not grow with them.

A fit calls `improve`, then `move`, `extrapolate` or `go_back`. Rows may be in several places at a time, since all that
is exchanged are weights one way and sums the other.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.factors.anderson import History
from silentgrad.factors.expansion import PooledMoments
from silentgrad.factors.latents import Latents, first_latents, improved
from silentgrad.factors.outputs import Additive, Sums
from silentgrad.factors.pieces import RowSource, pieces_of, write_own
from silentgrad.factors.symmetric import diagonals
from silentgrad.factors.tally import RowTally
from silentgrad.side_info import SideInfo


@dataclass
class Totals(Additive):
    """Sums of a pass over rows.

    Args:
        elbo: The bound, without what the likelihood's `log_base` adds.
        sums: What the step for the outputs needs.
        own: The first two derivatives in the likelihood's own parameters, without those of its `log_base`.
        moments: Of the latents.
        tally: Numbers of entries by output and count; of no entries, unless they were asked for.
    """

    elbo: float
    sums: Sums
    own: Tensor
    moments: PooledMoments
    tally: RowTally


class RowSet(Protocol):
    """Rows as a fit asks for them, wherever they are."""

    def improve(self, theta: Tensor, own: Tensor, tally: bool) -> Totals:
        """Newton's step for all latents, from where they are; the sums for the next step of the outputs."""

    def move(self, center: Tensor, inverse: Tensor, noted: bool) -> Tensor:
        """Accept the step, and go on to the improved latents, mapped; products of residuals, if steps are noted."""

    def extrapolate(self, shares: Tensor) -> None:
        """Go on to where the steps that were noted lead."""

    def go_back(self, to_plain: bool) -> None:
        """Return to before the extrapolation, or else to before the latest move, and forget the steps."""

    def finish(self) -> Latents:
        """Return the improved latents as they are."""


class FactorRows(RowSet):
    """Rows on this machine.

    Args:
        decoder: The decoder, whose likelihood gets the parameters that are tried.
        x: Examples.
        side_info: Their side information.
        weights: How much each example counts.
        w: Weights of the latents with which the fit starts, `(outputs, latents)`.
        diagonal: Whether the latents have diagonal covariances.
    """

    def __init__(
        self,
        decoder: LinearLikelihood,
        x: RowSource,
        side_info: SideInfo,
        weights: Tensor | None,
        w: Tensor,
        diagonal: bool = False,
    ) -> None:
        self.decoder = decoder
        self._data = x, side_info, weights
        self.latents = self.plain = self.improved = first_latents(w.to(decoder.affine.weight), len(x), diagonal)
        self.last = self.latents
        self.curvature = torch.empty_like(self.latents.means)
        self.history = History()

    def improve(self, theta: Tensor, own: Tensor, tally: bool) -> Totals:
        theta = theta.to(self.decoder.affine.weight)
        write_own(self.decoder, own)
        self.improved = self.latents.copy()
        self.curvature = torch.empty_like(self.latents.means)
        totals: Totals | None = None
        for piece in pieces_of(self.decoder, *self._data):
            counted = RowTally.of(piece) if tally else RowTally.none(piece)  # first, because it looks at x
            better = improved(piece, theta, self.latents[piece.rows], own=len(own) > 0)
            self.improved.write(piece.rows, better.latents)
            self.curvature[piece.rows] = diagonals(better.curvature, better.latents.dimensions)
            sums = Sums.of(piece, better.latents, better.found)
            moments = PooledMoments.of(better.latents, better.curvature, piece.weights)
            more = Totals(piece.total(better.bounds()), sums, better.found.own, moments, counted)
            totals = more if totals is None else totals + more
        assert totals is not None  # a fit has rows
        return totals

    def move(self, center: Tensor, inverse: Tensor, noted: bool) -> Tensor:
        start = self.latents.means
        self.latents = self.plain = self.last = self.improved  # whose place the mapped ones take: memory is scarce here
        self.latents = self.plain = self.improved.mapped(center, inverse)
        if not noted:
            return torch.zeros(0, 1, dtype=torch.float64)
        self.history.add(start, self.plain.means)
        return self.history.products(self.curvature)

    def extrapolate(self, shares: Tensor) -> None:
        self.latents = replace(self.plain, means=self.history.extrapolated(shares))

    def go_back(self, to_plain: bool) -> None:
        self.history = History()
        self.latents = self.plain if to_plain else self.last

    def finish(self) -> Latents:
        return self.improved
