"""A fit on its way: the latents of all examples, the weights of all outputs, and how an iteration changes them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from silentgrad.beside import Beside
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.errors import DomainError
from silentgrad.factors.anderson import Anderson
from silentgrad.factors.covariates import CovariateScales
from silentgrad.factors.latents import Latents, first_latents, improved
from silentgrad.factors.outputs import Sums
from silentgrad.factors.pieces import Piece, Table, own_parameters, pieces_of
from silentgrad.factors.secant import MOST, Secant

RADIUS, LEAST_RADIUS = 1.0, 1e-3  # of the change of an output's u, in the mean square
SLACK = 0.25  # units in the last place by which rounding may lower the bound
PLAIN = 3  # iterations before acceleration begins


@dataclass(frozen=True)
class Place:
    """All that a fit looks for.

    Args:
        latents: Gaussians of all examples.
        theta: Weights of the latents, bias and weights of covariates of every output, `(outputs, features)`.
        own: The likelihood's own parameters.
    """

    latents: Latents
    theta: Tensor
    own: list[Tensor]

    def packed(self) -> Tensor:
        """Everything but the precisions in one vector, in double precision."""
        parts = [self.latents.means, self.theta, *self.own]
        return torch.cat([part.flatten().double() for part in parts])

    def unpacked(self, vector: Tensor) -> "Place":
        """The place that a vector describes, with the precisions of this one."""
        parts = [self.latents.means, self.theta, *self.own]
        found = []
        for part, numbers in zip(parts, vector.split([part.numel() for part in parts]), strict=True):
            found.append(numbers.to(part).reshape(part.shape))
        means, theta, *own = found
        return Place(replace(self.latents, means=means), theta, own)


class Climb:
    """The iteration of a fit.

    Args:
        decoder: The decoder, whose parameters are where it begins.
        x: Examples.
        beside: What stands beside them.
        weights: How much each example counts.
    """

    def __init__(self, decoder: LinearLikelihood, x: Table, beside: Beside, weights: Tensor | None) -> None:
        self.decoder = decoder
        self._held: list[Piece] | None = None
        self._bases: dict[int, float] = {}
        self.scales = CovariateScales.of(beside.covariates, weights_of(decoder))
        self._data = x, self.scales.standardized(beside), weights
        theta = self.scales.to_standard(weights_of(decoder), decoder.latent_dim)
        own = [parameter.detach().clone() for parameter in own_parameters(decoder)]
        self.place = Place(first_latents(theta[:, : decoder.latent_dim], len(x)), theta, own)
        self.plain = self.last = self.place  # where to go back to, from an accelerated place and from a plain one
        self.accelerated = self.retrying = False
        self.fall = 0.0  # by how much the latest bound was below the best
        self.best = -math.inf
        self.radius = RADIUS
        self.accepted = 0
        self.anderson = Anderson()
        self.secants = [Secant(numbers) for numbers in own]

    def advance(self) -> bool:
        """Makes one iteration, and returns whether it went on; if the bound in its middle fell, it goes back."""
        start, retrying = self.place, self.retrying
        improved = self._improved_from(start)
        self.fall = self.best - improved.elbo
        if not self.fall <= SLACK * torch.finfo(start.theta.dtype).eps * abs(self.best):
            self._go_back(improved.elbo)
            return False
        self.best = max(self.best, improved.elbo)
        if not retrying:
            self.radius = min(RADIUS, 2 * self.radius)
        self.retrying = False
        self.accepted += 1
        self.last = replace(start, latents=improved.latents)
        self.plain = self.place = self._expanded(self._improve_outputs(improved, start))
        self.accelerated = False
        if self.accepted > PLAIN:
            self._accelerate(start, improved)
        return not retrying

    def _improved_from(self, start: Place) -> "_Improved":
        """A pass over the data from a place; once the fit is on its way, one that overflows has no bound."""
        try:
            return self._improve_latents(start)
        except DomainError:
            if self.accepted == 0:
                raise
            return _Improved(-math.inf, start.latents, Sums.none(start.theta, start.latents.dimensions), [])

    def _accelerate(self, start: Place, improved: "_Improved") -> None:
        """Moves on from the plain place to where Anderson's method expects the end."""
        vector = self.anderson.next(start.packed(), self.plain.packed(), self._metric(improved))
        self.accelerated = len(self.anderson.inputs) > 1
        place = self.plain.unpacked(vector)
        own = []
        for numbers, plain in zip(place.own, self.plain.own, strict=True):
            own.append(plain + (numbers - plain).clamp(-MOST, MOST))
        self.place = replace(place, own=own)

    @property
    def stuck(self) -> bool:
        """Whether even the smallest plain step lowers the bound."""
        return self.retrying and self.radius <= LEAST_RADIUS

    def finish(self) -> tuple[Latents, float]:
        """Writes the best weights into the decoder; returns the latents that suit them, and the bound.

        Turning z and the weights together changes nothing. The latents are turned to where their weights are
        orthogonal, those first that move u most.
        """
        improved = self._improve_latents(self.last)
        theta = self.last.theta.clone()
        dimensions = improved.latents.dimensions
        axes = principal_axes(theta[:, :dimensions])
        theta[:, :dimensions] = theta[:, :dimensions] @ axes
        write_weights(self.decoder, self.scales.from_standard(theta, dimensions))
        return improved.latents.turned(axes), improved.elbo

    def _metric(self, improved: "_Improved") -> Tensor:
        """The curvature of the bound along each number of a place: what its residual matters by."""
        of_latents = improved.latents.precisions.diagonal(dim1=-2, dim2=-1)
        parts = [of_latents, improved.sums.diagonal(), *(secant.curvature for secant in self.secants)]
        return torch.cat([part.flatten().double() for part in parts])

    def _go_back(self, elbo: float) -> None:
        if self.accepted == 0:
            raise DomainError(
                f"the bound is {elbo} where the fit starts: start the decoder from data, decoder.init_from_data(x)"
            )
        self.anderson.forget()
        if self.accelerated:
            self.place = self.plain
        else:
            self.place = self.last
            self.retrying = True
            self.radius = max(LEAST_RADIUS, self.radius / 4)
        self.accelerated = False

    def _improve_latents(self, place: Place) -> "_Improved":
        """Newton's step for all latents, and what the step for the outputs needs."""
        for parameter, numbers in zip(own_parameters(self.decoder), place.own, strict=True):
            parameter.copy_(numbers)
        latents = place.latents.copy()
        sums = Sums.none(place.theta, latents.dimensions)
        slopes = [torch.zeros_like(numbers) for numbers in place.own]
        elbo = 0.0
        for piece in self._pieces():
            elbo += self._base_of(piece)  # first, because it looks at x
            better, found = improved(piece, place.theta, latents[piece.rows], own=bool(slopes))
            latents.write(piece.rows, better)
            sums.add(piece, better, found)
            for slope, more in zip(slopes, found.own, strict=True):
                slope += more
            elbo += piece.total(found.value - better.divergence())
        return _Improved(elbo, latents, sums, slopes)

    def _improve_outputs(self, improved: "_Improved", place: Place) -> Place:
        """Newton's step for all outputs, and the secant's for the likelihood's own parameters."""
        theta = place.theta + improved.sums.step(place.theta, improved.latents.dimensions, self.radius)
        own = []
        for numbers, slope, secant in zip(place.own, improved.slopes, self.secants, strict=True):
            own.append(numbers + self.radius * secant.step(numbers, slope))
        return Place(improved.latents, theta, own)

    def _expanded(self, place: Place) -> Place:
        """The same likelihood with the least divergence: latents of mean 0 and covariance I over all examples."""
        latents, theta = place.latents, place.theta.clone()
        counted = torch.ones_like(latents.log_dets)
        if self._data[2] is not None:
            counted = self._data[2].to(counted)
        shares = counted / counted.sum()
        centre = shares @ latents.means
        dimensions = latents.dimensions
        theta[:, dimensions] += theta[:, :dimensions] @ centre
        means = latents.means - centre
        covariance = means.T @ (shares.unsqueeze(1) * means) + torch.einsum("n,nij->ij", shares, latents.covariances)
        factor = torch.linalg.cholesky(covariance)
        theta[:, :dimensions] = theta[:, :dimensions] @ factor
        return Place(latents.mapped(means, factor), theta, place.own)

    def _base_of(self, piece: Piece) -> float:
        """The part of a piece's bound that no step changes, found once."""
        start = piece.rows.start
        if start not in self._bases:
            self._bases[start] = piece.total(piece.base())
        return self._bases[start]

    def _pieces(self) -> Iterable[Piece]:
        """The data in pieces; those of a tensor, which are parts of it, are kept."""
        if self._held is not None:
            return self._held
        pieces = pieces_of(self.decoder, *self._data)
        if isinstance(self._data[0], Tensor):
            self._held = list(pieces)
            return self._held
        return pieces


class _Improved(NamedTuple):
    """What a pass over the data comes to."""

    elbo: float
    latents: Latents
    sums: Sums
    slopes: list[Tensor]


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
