"""A fit on its way: the weights of all outputs, and how an iteration changes them and the latents of all rows."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.errors import DomainError
from silentgrad.factors.anderson import History, shares_of
from silentgrad.factors.covariates import CovariateScales
from silentgrad.factors.latents import Latents
from silentgrad.factors.outputs import LEAST
from silentgrad.factors.pieces import own_parameters
from silentgrad.factors.rows import RowSet, Totals
from silentgrad.factors.tally import base_of

RADIUS, LEAST_RADIUS = 1.0, 1e-3  # of the change of an output's u, in the mean square
SLACK = 0.25  # units in the last place by which rounding may lower the bound
MOST = 0.5  # of the change of a likelihood's own parameter
PLAIN = 3  # iterations before acceleration begins


@dataclass(frozen=True)
class Place:
    """What a fit looks for beside the latents, in double precision.

    Args:
        theta: Weights of the latents, bias and weights of covariates of every output, `(outputs, features)`.
        own: The likelihood's own parameters.
    """

    theta: Tensor
    own: list[Tensor]

    def packed(self) -> Tensor:
        """All of it in one vector."""
        return torch.cat([part.flatten() for part in (self.theta, *self.own)])

    def unpacked(self, vector: Tensor) -> "Place":
        """The place that a vector describes."""
        parts = [self.theta, *self.own]
        numbers = vector.split([part.numel() for part in parts])
        theta, *own = [found.reshape(part.shape) for found, part in zip(numbers, parts, strict=True)]
        return Place(theta, own)


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
        theta = scales.to_standard(weights_of(decoder).double(), self.dimensions)
        own = [parameter.detach().double().clone() for parameter in own_parameters(decoder)]
        self.place = Place(theta, own)
        self.plain = self.last = self.place  # where to go back to, from an accelerated place and from a plain one
        self.accelerated = self.retrying = False
        self.fall = 0.0  # by how much the latest bound was below the best
        self.best = -math.inf
        self.radius = RADIUS
        self.accepted = 0
        self.history = History()
        self._table: tuple[Tensor, Tensor] | None = None
        self._counts = hasattr(decoder.likelihood, "log_base")

    def advance(self) -> bool:
        """Makes one iteration, and returns whether it went on; if the bound in its middle fell, it goes back."""
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
        """A pass over the data from a place; once the fit is on its way, one that overflows has no bound."""
        try:
            return self._pass(start)
        except DomainError:
            if self.accepted == 0:
                raise
            return None

    def _pass(self, place: Place) -> Totals:
        """Newton's step for all latents, and what the step for the outputs needs."""
        totals = self.rows.improve(place.theta, place.own, self._counts and self._table is None)
        if totals.tally is not None:
            self._table = totals.tally.table(self.decoder.event_shape)
        if self._table is not None:
            parameters = own_parameters(self.decoder)
            for parameter, numbers in zip(parameters, place.own, strict=True):
                parameter.copy_(numbers)
            base, of_own = base_of(self.decoder.likelihood, *self._table, parameters)
            totals.elbo += base
            totals.own = [found + more for found, more in zip(totals.own, of_own, strict=True)]
        return totals

    def _move(self, start: Place, totals: Totals) -> None:
        """Newton's step for all outputs, for the likelihood's own parameters, and the expansion.

        The expansion gives the same likelihood with the least divergence: latents of mean 0 and covariance I over all
        examples. Then Anderson's method says where the end is to be expected.
        """
        theta = start.theta + totals.sums.step(start.theta, self.dimensions, self.radius)
        own = []
        for numbers, (slope, bend) in zip(start.own, totals.own, strict=True):
            step = slope / bend.abs().clamp(min=LEAST)  # which goes up even where the bound is convex
            own.append(numbers + step.clamp(-MOST * self.radius, MOST * self.radius))
        centre, factor = totals.moments.standardizing()
        w = theta[:, : self.dimensions]
        theta[:, self.dimensions] += w @ centre
        theta[:, : self.dimensions] = w @ factor
        self.plain = self.place = Place(theta, own)
        self.accelerated = False
        noted = self.accepted > PLAIN
        inverse = torch.linalg.solve_triangular(factor, torch.eye(self.dimensions).to(factor), upper=False)
        products = self.rows.move(centre, inverse, noted)
        if noted:
            self._accelerate(start, totals, products)

    def _accelerate(self, start: Place, totals: Totals, products: Tensor) -> None:
        """Moves on from the plain place to where Anderson's method expects the end."""
        parts = [totals.sums.diagonal(), *(bend.abs() for _, bend in totals.own)]
        self.history.add(start.packed(), self.plain.packed())
        metric = torch.cat([part.flatten() for part in parts])
        shares = shares_of(products.to(metric) + self.history.products(metric))
        self.accelerated = len(shares) > 0
        self.rows.extrapolate(shares)
        place = self.plain.unpacked(self.history.extrapolated(shares))
        own = []
        for numbers, plain in zip(place.own, self.plain.own, strict=True):
            own.append(plain + (numbers - plain).clamp(-MOST, MOST))
        self.place = Place(place.theta, own)

    @property
    def stuck(self) -> bool:
        """Whether even the smallest plain step lowers the bound."""
        return self.retrying and self.radius <= LEAST_RADIUS

    def finish(self) -> "Finish":
        """Writes the best weights into the decoder; returns the latents that suit them, and the sums of all rows.

        Turning z and the weights together changes nothing. The latents are turned to where their weights are
        orthogonal, those first that move u most.
        """
        self.rows.go_back(to_plain=False)
        totals = self._pass(self.last)
        latents = self.rows.finish()
        theta = self.last.theta.clone()
        axes = principal_axes(theta[:, : self.dimensions])
        theta[:, : self.dimensions] = theta[:, : self.dimensions] @ axes
        write_weights(self.decoder, self.scales.from_standard(theta, self.dimensions))
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


@dataclass(frozen=True)
class Finish:
    """The latents of all rows at the end of a fit, and the sums of the last pass."""

    latents: Latents
    totals: Totals


def principal_axes(w: Tensor) -> Tensor:
    """The directions of z, in columns, along which weights `(outputs, latents)` are orthogonal, the largest first.

    Each points to where most of its largest weights are positive.
    """
    _, directions = torch.linalg.eigh(w.T @ w)
    axes = directions.flip(1)
    signs = (w @ axes).pow(3).sum(0).sign()
    return axes * torch.where(signs == 0, 1, signs)


def weights_of(decoder: LinearLikelihood) -> Tensor:
    """Weights of the latents, bias and weights of covariates in one matrix, `(outputs, features)`."""
    parts = [decoder.affine.weight, decoder.affine.bias.unsqueeze(1)]
    if decoder.covariate_affine is not None:
        parts.append(decoder.covariate_affine.weight)
    return torch.cat(parts, 1).detach().clone()


def write_weights(decoder: LinearLikelihood, theta: Tensor) -> None:
    """Puts such a matrix into the decoder."""
    dimensions = decoder.latent_dim
    decoder.affine.weight.copy_(theta[:, :dimensions])
    decoder.affine.bias.copy_(theta[:, dimensions])
    if decoder.covariate_affine is not None:
        decoder.covariate_affine.weight.copy_(theta[:, dimensions + 1 :])
