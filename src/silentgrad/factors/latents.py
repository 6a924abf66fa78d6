r"""A free Gaussian q(z|x) for every example, and Newton's step for all of them at once.

With the derivatives :math:`g', g''` of the expected log-likelihood in the means of u, an example's bound
:math:`\sum_o g_o - D_\mathrm{KL}(N(m, S) \,\|\, N(0, I))` is stationary where

.. math:: W^T g' = m, \qquad S^{-1} = I - W^T \mathrm{diag}(g'')\, W =: H,

and H is minus its Hessian in m too. A step of size t is :math:`m + t H^{-1} (W^T g' - m)` with the precision
:math:`(1 - t) S^{-1} + t H`, the natural gradient of both (Khan and Rue 2023); t is quartered for the examples whose
bound does not rise by a share of what the step promises. That is, to second order,

.. math:: \tfrac12 (W^T g' - m)^T H^{-1} (W^T g' - m) + \tfrac14 \mathrm{tr}\, E^2, \qquad E = S H - I,

and less where E is large. It also tells an example that has converged from one whose steps were refused. If S is to be
diagonal, the diagonal of H stands for H in all that concerns S; the mean's step needs H itself, for a block at a time.

References:
    Khan and Rue (2023), The Bayesian learning rule, Journal of Machine Learning Research 24.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.factors.chunks import row_products
from silentgrad.factors.symmetric import congruence, diagonals, forms, matrices, products, triangles

if TYPE_CHECKING:
    from silentgrad.factors.pieces import Expectation, Piece

Posterior = Literal["full", "diagonal"]
BLOCK = 2**12  # examples whose covariances are whole matrices at a time
LEAST_SHARE = 4.0**-30  # of a step, after which another would change nothing
KEPT = 0.1  # share of the promised gain that a step has to make
SLACK = 32.0  # units in the last place by which rounding may lower a bound


@dataclass(frozen=True)
class Latents:
    """Gaussians N(mean, covariance), one for each example.

    Args:
        means: `(examples, dimensions)`.
        covariances: Upper triangles of the covariances, `(examples, dimensions (dimensions + 1) / 2)`, or their
            diagonals, `(examples, dimensions)`.
        log_dets: Logarithms of the determinants of their inverses, `(examples,)`.
        diagonal: Whether the covariances are diagonal.
    """

    means: Tensor
    covariances: Tensor
    log_dets: Tensor
    diagonal: bool = False

    @classmethod
    def of(cls, means: Tensor, precisions: Tensor, diagonal: bool = False) -> "Latents":
        """From means and inverse covariances, as they are stored; of one without a root, only the diagonal is taken."""
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
        return cls(means, triangles(torch.cholesky_inverse(factors), diagonal), log_dets, diagonal)

    @property
    def dimensions(self) -> int:
        """Number of latents of an example."""
        return self.means.shape[-1]

    def __len__(self) -> int:
        return len(self.means)

    def __getitem__(self, rows: slice | Tensor) -> "Latents":
        return Latents(self.means[rows], self.covariances[rows], self.log_dets[rows], self.diagonal)

    def write(self, rows: slice | Tensor, others: "Latents") -> None:
        """Put others in place of some."""
        self.means[rows] = others.means
        self.covariances[rows] = others.covariances
        self.log_dets[rows] = others.log_dets

    def distribution(self, dtype: torch.dtype | None = None) -> td.MultivariateNormal | td.Independent:
        """Return the same as `torch.distributions` has it, in a precision that may be lower."""
        means = self.means.to(dtype)
        if self.diagonal:
            return td.Independent(td.Normal(means, self.covariances.sqrt().to(dtype)), 1)
        root = means.new_empty(*means.shape, self.dimensions)
        for some, covariances in zip(root.split(BLOCK), self.covariances.split(BLOCK), strict=True):
            some.copy_(torch.linalg.cholesky(matrices(covariances, self.dimensions)))  # which rounding could take
        return td.MultivariateNormal(means, scale_tril=root)

    def variances(self, w: Tensor) -> Tensor:
        """Return the variance of w z for each example and each w, `(examples, outputs)`."""
        return row_products(self.covariances, forms(w, self.diagonal).T).clamp_(min=0)  # which rounding may leave below

    def precisions(self) -> Tensor:
        """Return the upper triangles of the inverse covariances, or their diagonals."""
        return triangles(torch.linalg.inv(matrices(self.covariances, self.dimensions)), self.diagonal)

    def where(self, condition: Tensor, others: "Latents") -> "Latents":
        """Return these examples where a condition `(examples,)` holds, and others elsewhere."""
        chosen = others.copy()
        chosen.write(condition, self[condition])
        return chosen

    def copy(self) -> "Latents":
        """Return the same numbers in memory of their own."""
        return Latents(self.means.clone(), self.covariances.clone(), self.log_dets.clone(), self.diagonal)

    def times(self, vectors: Tensor) -> Tensor:
        """Each covariance times a vector, `(examples, dimensions)`."""
        return (matrices(self.covariances, self.dimensions) @ vectors.unsqueeze(-1)).squeeze(-1)

    def mapped(self, center: Tensor, inverse: Tensor) -> "Latents":
        """Return the Gaussians of A (z - center), for an invertible matrix A."""
        center, inverse = center.to(self.means), inverse.to(self.means)
        log_dets = self.log_dets - 2 * torch.linalg.slogdet(inverse).logabsdet
        covariances = self.covariances @ congruence(inverse, self.diagonal)
        if self.diagonal:
            log_dets = -covariances.log().sum(-1)
        return Latents((self.means - center) @ inverse.T, covariances, log_dets, self.diagonal)

    def divergence(self) -> Tensor:
        """Return the KL divergence of each from N(0, I)."""
        traces = diagonals(self.covariances, self.dimensions).sum(-1)
        return (self.means.square().sum(-1) + traces - self.dimensions + self.log_dets) / 2


def first_latents(w: Tensor, examples: int, diagonal: bool = False) -> Latents:
    """Gaussians around 0 for some number of examples, under which no u of weights `(outputs, latents)` varies beyond 1.

    That of a precision I + W^T W is below 1 for every output, so that no exponential of u overflows at once; that of
    its diagonal is below the number of latents.
    """
    precision = torch.eye(w.shape[1]).to(w) + w.T @ w
    if diagonal:
        precision *= len(precision)
    one = Latents.of(torch.zeros_like(w[:1]), triangles(precision.unsqueeze(0), diagonal), diagonal)
    return one[torch.zeros(examples, dtype=torch.long, device=w.device)]


def started(piece: "Piece", theta: Tensor, dimensions: int, diagonal: bool = False) -> Latents | None:
    """Newton's step from where every u suits its own entry, for likelihoods that know a rough u.

    It finds a count far above its rate at z = 0, of which the slope and curvature at z = 0 tell nothing.
    """
    rough_u = getattr(piece.decoder.likelihood, "rough_u", None)
    if rough_u is None:
        return None
    u = rough_u(piece.x.unflatten(1, piece.decoder.event_shape)).flatten(1)
    found = piece.of_u(u, torch.zeros_like(u))
    w, zero = theta[:, :dimensions], theta.new_zeros(len(u), dimensions)
    pull = row_products(found.first - found.second.clamp(max=0) * (u - piece.means(theta, zero)), w)
    step, start = _newton(zero, _curvature(found, w), pull, diagonal)
    return replace(start, means=step)


def _newton(means: Tensor, curvature: Tensor, slope: Tensor, diagonal: bool) -> tuple[Tensor, Latents]:
    """Return Newton's step for means, and Gaussians before it whose precisions are the curvature or its diagonal."""
    full = Latents.of(means, curvature)
    step = full.times(slope)
    if diagonal:
        full = Latents.of(means, diagonals(curvature, means.shape[1]), diagonal)
    return step, full


class Improvement(NamedTuple):
    """Newton's step for the latents of a piece.

    Args:
        latents: The latents after it.
        found: The expectation there.
        promised: The gain of each example's bound that the step promised, to second order.
        curvature: Of each example's bound, as the upper triangle of a matrix.
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
    slope = row_products(found.first, w) - latents.means
    curvature = _curvature(found, w)
    precisions = diagonals(curvature, dimensions) if latents.diagonal else curvature
    step, full = _newton(latents.means, curvature, slope, latents.diagonal)
    change = matrices(latents.covariances, dimensions) @ matrices(precisions, dimensions)
    change.diagonal(dim1=-2, dim2=-1).sub_(1)
    square = (change * change.mT).sum((-2, -1)).clamp(min=0)
    promised = (slope * step).sum(-1) / 2 + square / (4 * (1 + square.sqrt()))
    best = replace(full, means=latents.means + step)
    start, found = found, piece.at(theta, best, own)
    short = (~(found.value - best.divergence() - before >= KEPT * promised - slack)).nonzero().squeeze(1)  # or NaN
    if len(short) == 0:
        return Improvement(best, found, promised, curvature)
    best = replace(best, means=best.means.clone())
    best.write(short, latents[short])
    found.write(short, start, short)
    held = latents[short].precisions()
    bend = precisions[short] - held
    places = torch.arange(len(short), device=short.device)
    concave = found.concave and start.concave
    share = 0.25
    while len(places) and share > LEAST_SHARE:
        rows = short[places]
        mean, precision = latents.means[rows] + share * step[rows], held[places] + share * bend[places]
        tried = Latents.of(mean, precision, latents.diagonal)
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
    curvature = unit - row_products(found.second, squares)
    if not found.concave:
        convex = torch.linalg.cholesky_ex(matrices(curvature, w.shape[1])).info > 0
        curvature[convex] = unit - row_products(found.second[convex].clamp(max=0), squares)
    return curvature
