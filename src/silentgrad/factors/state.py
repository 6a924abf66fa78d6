"""A fit on its way: the weights of all outputs, and how an iteration changes them and the latents of all rows."""

import math
from contextlib import nullcontext, suppress

import torch
from torch import Tensor

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.errors import DomainError
from silentgrad.factors.anderson import History, shares_of
from silentgrad.factors.latents import Latents
from silentgrad.factors.outputs import LEAST, CovariateScales
from silentgrad.factors.pieces import own_numbers, write_own
from silentgrad.factors.rows import RowSet, Totals
from silentgrad.factors.tally import base_of

RADIUS, LEAST_RADIUS = 1.0, 1e-3  # of the change of an output's u, in the mean square
SLACK = 0.25  # units in the last place by which rounding may lower the bound
MOST = 0.5  # of the change of a likelihood's own parameter
PLAIN = 3  # iterations before acceleration begins


class Climb:
    """The iteration of a fit.

    A place holds what it looks for beside the latents, in one vector in double precision: the weights of all outputs,
    `(outputs, features)`, and the numbers of the likelihood's own parameters.

    Args:
        decoder: The decoder, whose parameters are where it begins.
        rows: The rows with their latents; covariates in standard units.
        scales: The units of covariates.
        ridge: Shrinks the weights of the latents.
    """

    def __init__(self, decoder: LinearLikelihood, rows: RowSet, scales: CovariateScales, ridge: float) -> None:
        self.decoder, self.rows, self.scales = decoder, rows, scales
        self.dimensions = decoder.latent_dim
        theta = scales.read(decoder)
        self.shape = theta.shape
        self.penalty = torch.zeros_like(theta[0])  # twice that of a weight of 1, for every feature
        self.penalty[: self.dimensions] = ridge
        self.place = torch.cat([theta.flatten(), own_numbers(decoder)])
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
        totals: Totals | None = None
        with (
            suppress(DomainError) if self.accepted else nullcontext()
        ):  # on its way, a pass that overflows has no bound
            totals = self._pass(start)
        theta = self._parts(start)[0]
        bound = -math.inf if totals is None else totals.elbo - float((theta.square() @ self.penalty).sum()) / 2
        self.fall = self.best - bound
        rounding = torch.finfo(self.decoder.affine.weight.dtype).eps * abs(self.best)
        if totals is None or not self.fall <= SLACK * rounding:
            self._go_back(bound)
            return False
        self.best = max(self.best, bound)
        if not retrying:
            self.radius = min(RADIUS, 2 * self.radius)
        self.retrying = False
        self.accepted += 1
        self.last = start
        self._move(start, totals)
        return not retrying

    def _pass(self, place: Tensor) -> Totals:
        """Take Newton's step for all latents, and return what the step for the outputs needs."""
        counting = self._table is None and hasattr(self.decoder.likelihood, "log_base")
        theta, own = self._parts(place)
        totals = self.rows.improve(theta, own, counting)
        if counting:
            self._table = totals.tally.table(self.decoder.event_shape)
        if self._table is not None:
            write_own(self.decoder, own)
            base, of_own = base_of(self.decoder, *self._table)
            totals.elbo += base
            totals.own += of_own
        return totals

    def _move(self, start: Tensor, totals: Totals) -> None:
        """Take Newton's step for all outputs, and for the likelihood's own parameters, and the expansion.

        The expansion gives the same likelihood with less divergence and penalty. Then Anderson's method says where the
        end is to be expected.
        """
        theta, own = self._parts(start)
        theta = theta + totals.sums.step(theta, self.dimensions, self.radius, self.penalty)
        slope, bend = totals.own
        step = slope / bend.abs().clamp(min=LEAST)  # which goes up even where the bound is convex
        w = theta[:, : self.dimensions]
        center, factor = totals.moments.map(self.radius, w.T @ w * self.penalty[: self.dimensions])
        theta[:, self.dimensions] += w @ center
        theta[:, : self.dimensions] = w @ factor
        own = own + step.clamp(-MOST * self.radius, MOST * self.radius)
        self.plain = self.place = torch.cat([theta.flatten(), own])
        self.accelerated = False
        noted = self.accepted > PLAIN
        products = self.rows.move(center, torch.linalg.inv(factor), noted)
        if noted:
            self.history.add(start, self.plain)
            metric = torch.cat([(totals.sums.diagonal() + self.penalty).flatten(), bend.abs()])
            self._accelerate(shares_of(products.to(metric) + self.history.products(metric)))

    def _accelerate(self, shares: Tensor) -> None:
        """Move on from the plain place to where Anderson's method expects the end."""
        self.accelerated = len(shares) > 0
        self.rows.extrapolate(shares)
        self.place = self.history.extrapolated(shares)
        own, plain = self._parts(self.place)[1], self._parts(self.plain)[1]
        own.clamp_(plain - MOST, plain + MOST)

    def _parts(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the own parameters of a place."""
        size = self.shape.numel()
        return place[:size].view(self.shape), place[size:]

    @property
    def stuck(self) -> bool:
        """True once even the smallest plain step lowers the bound."""
        return self.retrying and self.radius <= LEAST_RADIUS

    def finish(self) -> tuple[Latents, Totals]:
        """Write the best weights into the decoder; return the latents that suit them, and the sums of all rows.

        Turning z and the weights together changes nothing. The latents are turned to where their weights are
        orthogonal, those first that move u most.
        """
        self.rows.go_back(to_plain=False)
        totals = self._pass(self.last)
        latents = self.rows.finish()
        theta = self._parts(self.last)[0].clone()
        axes = principal_axes(theta[:, : self.dimensions], latents.diagonal)
        theta[:, : self.dimensions] = theta[:, : self.dimensions] @ axes
        self.scales.write(self.decoder, theta)
        return latents.mapped(torch.zeros_like(axes[0]), axes.T), totals

    def _go_back(self, bound: float) -> None:
        if self.accepted == 0:
            raise DomainError(
                f"the bound is {bound} where the fit starts: start the decoder from data, decoder.init_from_data(x)"
            )
        self.history = History()
        self.rows.go_back(self.accelerated)
        if self.accelerated:
            self.place = self.plain
        else:
            self.place = self.last
            self.retrying = True
            self.radius = max(LEAST_RADIUS, self.radius / 4)
        self.accelerated = False


def principal_axes(w: Tensor, unturned: bool = False) -> Tensor:
    """Return the directions of z, in columns, along which weights `(outputs, latents)` are orthogonal, largest first.

    Each points to where most of its largest weights are positive. Those that may not be turned are the old axes.
    """
    gram = w.T @ w
    axes = torch.linalg.eigh(gram).eigenvectors.flip(1)
    if unturned:
        axes = torch.eye(len(gram)).to(w)[:, gram.diagonal().argsort(descending=True)]
    signs = (w @ axes).pow(3).sum(0).sign()
    return axes * torch.where(signs == 0, 1, signs)
