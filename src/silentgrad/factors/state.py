"""A fit on its way: the weights of all outputs, and how an iteration changes them and the latents of all rows."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.errors import DomainError
from silentgrad.factors.anderson import History, shares_of
from silentgrad.factors.latents import Latents
from silentgrad.factors.outputs import LEAST
from silentgrad.factors.pieces import own_numbers, write_own
from silentgrad.factors.rows import RowSet, Totals
from silentgrad.factors.tally import base_of
from silentgrad.factors.weights import CovariateScales

RADIUS, LEAST_RADIUS = 1.0, 1e-3  # of the change of an output's u, in the mean square
SLACK = 0.25  # units in the last place by which rounding may lower the bound
MOST = 0.5  # of the change of a likelihood's own parameter
PLAIN = 3  # iterations before acceleration begins


@dataclass(frozen=True)
class Place:
    """What a fit looks for beside the latents, in double precision.

    Args:
        theta: Weights of the latents, bias and weights of covariates of every output, `(outputs, features)`.
        own: The numbers of the likelihood's own parameters.
    """

    theta: Tensor
    own: Tensor

    def packed(self) -> Tensor:
        """Return all of it in one vector."""
        return torch.cat([self.theta.flatten(), self.own])

    def unpacked(self, vector: Tensor) -> "Place":
        """Return the place that a vector describes."""
        theta, own = vector.split([self.theta.numel(), self.own.numel()])
        return Place(theta.view_as(self.theta), own)


class Finish(NamedTuple):
    """The latents of all rows at the end of a fit, and the sums of the last pass."""

    latents: Latents
    totals: Totals


class Climb:
    """The iteration of a fit.

    Args:
        decoder: The decoder, whose parameters are where it begins.
        rows: The rows with their latents; covariates in standard units.
        scales: The units of covariates.
    """

    def __init__(self, decoder: LinearLikelihood, rows: RowSet, scales: CovariateScales) -> None:
        self.decoder, self.rows, self.scales = decoder, rows, scales
        self.dimensions = decoder.latent_dim
        self.place = Place(scales.read(decoder), own_numbers(decoder))
        self.plain = self.last = self.place  # where to go back to, from an accelerated place and from a plain one
        self.accelerated = self.retrying = False
        self.fall = 0.0  # by how much the latest bound was below the best
        self.best = -math.inf
        self.radius = RADIUS
        self.accepted = 0
        self.history = History()
        self._table: tuple[Tensor, Tensor] | None = None

    def advance(self) -> bool:
        """Make one iteration, and return whether it went on; if the bound in its middle fell, it goes back."""
        start, retrying = self.place, self.retrying
        totals = self._improved_from(start)
        elbo = -math.inf
        if totals is not None:
            elbo = totals.elbo
        self.fall = self.best - elbo
        rounding = torch.finfo(self.decoder.affine.weight.dtype).eps * abs(self.best)
        if totals is None or not self.fall <= SLACK * rounding:
            self._go_back(elbo)
            return False
        self.best = max(self.best, elbo)
        if not retrying:
            self.radius = min(RADIUS, 2 * self.radius)
        self.retrying = False
        self.accepted += 1
        self.last = start
        self._move(start, totals)
        return not retrying

    def _improved_from(self, start: Place) -> Totals | None:
        """Pass over the data from a place; once the fit is on its way, a pass that overflows has no bound."""
        try:
            return self._pass(start)
        except DomainError:
            if self.accepted == 0:
                raise
            return None

    def _pass(self, place: Place) -> Totals:
        """Take Newton's step for all latents, and return what the step for the outputs needs."""
        counting = self._table is None and hasattr(self.decoder.likelihood, "log_base")
        totals = self.rows.improve(place.theta, place.own, counting)
        if counting:
            self._table = totals.tally.table(self.decoder.event_shape)
        if self._table is not None:
            write_own(self.decoder, place.own)
            base, of_own = base_of(self.decoder, *self._table)
            totals.elbo += base
            totals.own += of_own
        return totals

    def _move(self, start: Place, totals: Totals) -> None:
        """Take Newton's step for all outputs, and for the likelihood's own parameters, and the expansion.

        The expansion gives the same likelihood with the least divergence: latents of mean 0 and covariance I over all
        examples. Then Anderson's method says where the end is to be expected.
        """
        theta = start.theta + totals.sums.step(start.theta, self.dimensions, self.radius)
        slope, bend = totals.own
        step = slope / bend.abs().clamp(min=LEAST)  # which goes up even where the bound is convex
        center, factor = totals.moments.standardizing()
        w = theta[:, : self.dimensions]
        theta[:, self.dimensions] += w @ center
        theta[:, : self.dimensions] = w @ factor
        self.plain = self.place = Place(theta, start.own + step.clamp(-MOST * self.radius, MOST * self.radius))
        self.accelerated = False
        noted = self.accepted > PLAIN
        inverse = torch.linalg.solve_triangular(factor, torch.eye(self.dimensions).to(factor), upper=False)
        products = self.rows.move(center, inverse, noted)
        if noted:
            self.history.add(start.packed(), self.plain.packed())
            metric = torch.cat([totals.sums.diagonal().flatten(), bend.abs()])
            self._accelerate(shares_of(products.to(metric) + self.history.products(metric)))

    def _accelerate(self, shares: Tensor) -> None:
        """Move on from the plain place to where Anderson's method expects the end."""
        self.accelerated = len(shares) > 0
        self.rows.extrapolate(shares)
        place = self.plain.unpacked(self.history.extrapolated(shares))
        change = (place.own - self.plain.own).clamp(-MOST, MOST)
        self.place = Place(place.theta, self.plain.own + change)

    @property
    def stuck(self) -> bool:
        """Whether even the smallest plain step lowers the bound."""
        return self.retrying and self.radius <= LEAST_RADIUS

    def finish(self) -> Finish:
        """Write the best weights into the decoder; return the latents that suit them, and the sums of all rows.

        Turning z and the weights together changes nothing. The latents are turned to where their weights are
        orthogonal, those first that move u most.
        """
        self.rows.go_back(to_plain=False)
        totals = self._pass(self.last)
        latents = self.rows.finish()
        theta = self.last.theta.clone()
        axes = principal_axes(theta[:, : self.dimensions])
        theta[:, : self.dimensions] = theta[:, : self.dimensions] @ axes
        self.scales.write(self.decoder, theta)
        return Finish(latents.mapped(torch.zeros_like(axes[0]), axes.T), totals)

    def _go_back(self, elbo: float) -> None:
        if self.accepted == 0:
            raise DomainError(
                f"the bound is {elbo} where the fit starts: start the decoder from data, decoder.init_from_data(x)"
            )
        self.history.forget()
        self.rows.go_back(self.accelerated)
        if self.accelerated:
            self.place = self.plain
        else:
            self.place = self.last
            self.retrying = True
            self.radius = max(LEAST_RADIUS, self.radius / 4)
        self.accelerated = False


def principal_axes(w: Tensor) -> Tensor:
    """Return the directions of z, in columns, along which weights `(outputs, latents)` are orthogonal, largest first.

    Each points to where most of its largest weights are positive.
    """
    _, directions = torch.linalg.eigh(w.T @ w)
    axes = directions.flip(1)
    signs = (w @ axes).pow(3).sum(0).sign()
    return axes * torch.where(signs == 0, 1, signs)
