r"""A free Gaussian q(z|x) for every example, and Newton's step for all of them at once.

With the derivatives :math:`g', g''` of the expected log-likelihood in the means of u, an example's bound
:math:`\sum_o g_o - D_\mathrm{KL}(N(m, S) \,\|\, N(0, I))` is stationary where

.. math:: W^T g' = m, \qquad S^{-1} = I - W^T \mathrm{diag}(g'')\, W =: H,

and H is minus its Hessian in m too. A step of size t is :math:`m + t H^{-1} (W^T g' - m)` with the precision
:math:`(1 - t) S^{-1} + t H`, the natural gradient of both (Khan and Rue 2023); t is quartered for the examples whose
bound does not rise by a share of what the step promises. That is, to second order,

.. math:: \tfrac12 (W^T g' - m)^T H^{-1} (W^T g' - m) + \tfrac14 \mathrm{tr}\, E^2, \qquad E = S H - I,

and less where E is large. It also tells an example that has converged from one whose steps were refused.

References:
    Khan and Rue (2023), The Bayesian learning rule, Journal of Machine Learning Research 24.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.factors.symmetric import congruence, diagonals, matrices, products, triangles

if TYPE_CHECKING:
    from silentgrad.factors.pieces import Expectation, Piece

LEAST_SHARE = 4.0**-30  # of a step, after which another would change nothing
KEPT = 0.1  # share of the promised gain that a step has to make
SLACK = 32.0  # units in the last place by which rounding may lower a bound


@dataclass(frozen=True)
class Latents:
    """Gaussians N(mean, covariance), one for each example.

    Args:
        means: `(examples, dimensions)`.
        covariances: Upper triangles of the covariances, `(examples, dimensions (dimensions + 1) / 2)`.
        log_dets: Logarithms of the determinants of their inverses, `(examples,)`.
    """

    means: Tensor
    covariances: Tensor
    log_dets: Tensor

    @classmethod
    def of(cls, means: Tensor, precisions: Tensor) -> "Latents":
        """From means and upper triangles of inverse covariances; of one without a root, only the diagonal is taken."""
        whole = matrices(precisions, means.shape[1])
        factors, failures = torch.linalg.cholesky_ex(whole)
        if failures.any():
            failed = failures > 0
            whole[failed] = whole[failed].diagonal(dim1=-2, dim2=-1).diag_embed()
            factors, failures = torch.linalg.cholesky_ex(whole)
        if failures.any():
            raise DomainError(
                f"a rate or square is beyond the largest number of {means.dtype}: start the decoder from data, "
                "decoder.init_from_data(x), or fit it in double precision, decoder.double()"
            )
        log_dets = 2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return cls(means, triangles(torch.cholesky_inverse(factors)), log_dets)

    @property
    def dimensions(self) -> int:
        """Number of latents of an example."""
        return self.means.shape[-1]

    def __len__(self) -> int:
        return len(self.means)

    def __getitem__(self, rows: slice | Tensor) -> "Latents":
        return Latents(self.means[rows], self.covariances[rows], self.log_dets[rows])

    def write(self, rows: slice | Tensor, others: "Latents") -> None:
        """Put others in place of some."""
        self.means[rows] = others.means
        self.covariances[rows] = others.covariances
        self.log_dets[rows] = others.log_dets

    def distribution(self) -> td.MultivariateNormal:
        """Return the same as `torch.distributions` has it."""
        return td.MultivariateNormal(self.means, covariance_matrix=matrices(self.covariances, self.dimensions))

    def where(self, condition: Tensor, others: "Latents") -> "Latents":
        """Return these examples where a condition `(examples,)` holds, and others elsewhere."""
        chosen = others.copy()
        chosen.write(condition, self[condition])
        return chosen

    def copy(self) -> "Latents":
        """Return the same numbers in memory of their own."""
        return Latents(self.means.clone(), self.covariances.clone(), self.log_dets.clone())

    def times(self, vectors: Tensor) -> Tensor:
        """Each covariance times a vector, `(examples, dimensions)`."""
        return (matrices(self.covariances, self.dimensions) @ vectors.unsqueeze(-1)).squeeze(-1)

    def mapped(self, center: Tensor, inverse: Tensor) -> "Latents":
        """Return the Gaussians of A (z - center), for an invertible matrix A."""
        center, inverse = center.to(self.means), inverse.to(self.means)
        log_dets = self.log_dets - 2 * torch.linalg.slogdet(inverse).logabsdet
        return Latents((self.means - center) @ inverse.T, self.covariances @ congruence(inverse), log_dets)

    def divergence(self) -> Tensor:
        """Return the KL divergence of each from N(0, I)."""
        traces = diagonals(self.covariances, self.dimensions).sum(-1)
        return (self.means.square().sum(-1) + traces - self.dimensions + self.log_dets) / 2


def first_latents(w: Tensor, examples: int) -> Latents:
    """Gaussians around 0 for some number of examples, under which no u of weights `(outputs, latents)` varies beyond 1.

    That of a precision I + W^T W is below 1 for every output, so that no exponential of u overflows at once.
    """
    precision = torch.eye(w.shape[1]).to(w) + w.T @ w
    one = Latents.of(torch.zeros_like(w[:1]), triangles(precision.unsqueeze(0)))
    return one[torch.zeros(examples, dtype=torch.long, device=w.device)]


def started(piece: "Piece", theta: Tensor, dimensions: int) -> Latents | None:
    """Newton's step from where every u suits its own entry, for likelihoods that know a rough u.

    It finds a count far above its rate at z = 0, of which the slope and curvature at z = 0 tell nothing.
    """
    rough_u = getattr(piece.decoder.likelihood, "rough_u", None)
    if rough_u is None:
        return None
    u = rough_u(piece.x.unflatten(1, piece.decoder.event_shape)).flatten(1)
    found = piece.of_u(u, torch.zeros_like(u))
    w, zero = theta[:, :dimensions], theta.new_zeros(len(u), dimensions)
    start = Latents.of(zero, _curvature(found, w))
    pull = (found.first - found.second.clamp(max=0) * (u - piece.means(theta, zero))) @ w
    return replace(start, means=start.times(pull))


class Improvement(NamedTuple):
    """Newton's step for the latents of a piece.

    Args:
        latents: The latents after it.
        found: The expectation there.
        promised: The gain of each example's bound that the step promised, to second order.
        curvature: Of each example's bound along each latent, `(examples, dimensions)`.
    """

    latents: Latents
    found: "Expectation"
    promised: Tensor
    curvature: Tensor

    def bounds(self) -> Tensor:
        """Return the bound of each example."""
        return self.found.value - self.latents.divergence()


def improved(piece: "Piece", theta: Tensor, latents: Latents, own: bool = False) -> Improvement:
    """Take Newton's step for the latents of a piece, in which no example's bound falls; `own` as in `Piece.at`."""
    found = piece.at(theta, latents)
    before = found.value - latents.divergence()
    slack = SLACK * torch.finfo(before.dtype).eps * (1 + before.abs())
    dimensions = latents.dimensions
    w = theta[:, :dimensions]
    slope = found.first @ w - latents.means
    precisions = _curvature(found, w)
    full = Latents.of(latents.means, precisions)
    step = full.times(slope)
    change = matrices(latents.covariances, dimensions) @ matrices(precisions, dimensions)
    change.diagonal(dim1=-2, dim2=-1).sub_(1)
    square = (change * change.mT).sum((-2, -1)).clamp(min=0)
    promised = (slope * step).sum(-1) / 2 + square / (4 * (1 + square.sqrt()))
    best = replace(full, means=latents.means + step)
    curvature = diagonals(precisions, dimensions)
    start, found = found, piece.at(theta, best, own)
    short = (~(found.value - best.divergence() - before >= KEPT * promised - slack)).nonzero().squeeze(1)  # or NaN
    if len(short) == 0:
        return Improvement(best, found, promised, curvature)
    best = replace(best, means=best.means.clone())
    best.write(short, latents[short])
    found.write(short, start, short)
    held = triangles(torch.linalg.inv(matrices(latents.covariances[short], dimensions)))
    bend = precisions[short] - held
    places = torch.arange(len(short), device=short.device)
    concave = found.concave and start.concave
    share = 0.25
    while len(places) and share > LEAST_SHARE:
        rows = short[places]
        tried = Latents.of(latents.means[rows] + share * step[rows], held[places] + share * bend[places])
        better = piece.subset(rows).at(theta, tried)
        concave = concave and better.concave
        wanted = share * promised[rows]
        enough = better.value - tried.divergence() - before[rows] >= KEPT * wanted - slack[rows]
        best.write(rows[enough], tried[enough])
        found.write(rows[enough], better, enough)
        places = places[~enough & (wanted > slack[rows])]  # below which rounding decides
        share /= 4
    found = piece.at(theta, best, own) if own else found._replace(concave=concave)
    return Improvement(best, found, promised, curvature)


def _curvature(found: "Expectation", w: Tensor) -> Tensor:
    """Return minus the Hessian of each bound in m, or where that is not positive definite, an upper bound of it."""
    squares, unit = products(w), triangles(torch.eye(w.shape[1]).to(w))
    curvature = torch.addmm(unit, found.second, squares, alpha=-1)
    if not found.concave:
        convex = torch.linalg.cholesky_ex(matrices(curvature, w.shape[1])).info > 0
        curvature[convex] = unit - found.second[convex].clamp(max=0) @ squares
    return curvature
