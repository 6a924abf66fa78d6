r"""A free Gaussian q(z|x) for every example, and Newton's step for all of them at once.

With the derivatives :math:`g', g''` of the expected log-likelihood in the means of u, an example's bound
:math:`\sum_o g_o - D_\mathrm{KL}(N(m, S) \,\|\, N(0, I))` is stationary where

.. math:: W^T g' = m, \qquad S^{-1} = I - W^T \mathrm{diag}(g'')\, W =: H,

and H is minus its Hessian in m too. A step of size t is :math:`m + t H^{-1} (W^T g' - m)` with the precision
:math:`(1 - t) S^{-1} + t H`, the natural gradient of both (Khan and Rue 2023); t is quartered for the examples whose
bound falls.

References:
    Khan and Rue (2023), The Bayesian learning rule, Journal of Machine Learning Research 24.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.factors.symmetric import matrices, products

if TYPE_CHECKING:
    from silentgrad.factors.pieces import Expectation, Piece

TRIALS = 5
SLACK = 32.0  # units in the last place by which rounding may lower a bound


@dataclass(frozen=True)
class Latents:
    """Gaussians N(mean, covariance), one for each example.

    Args:
        means: `(examples, dimensions)`.
        precisions: Inverse covariances, `(examples, dimensions, dimensions)`.
        covariances: Their inverses.
        log_dets: Logarithms of the precisions' determinants.
    """

    means: Tensor
    precisions: Tensor
    covariances: Tensor
    log_dets: Tensor

    @classmethod
    def of(cls, means: Tensor, precisions: Tensor) -> "Latents":
        """From means and precisions; of a precision that rounding left without a root, only the diagonal is taken."""
        factors, failures = torch.linalg.cholesky_ex(precisions)
        failed = failures > 0
        if failed.any():
            precisions = precisions.clone()
            precisions[failed] = precisions[failed].diagonal(dim1=-2, dim2=-1).diag_embed()
            factors, failures = torch.linalg.cholesky_ex(precisions)
        if failures.any():
            raise DomainError(
                f"a rate or square is beyond the largest number of {means.dtype}: start the decoder from data, "
                "decoder.init_from_data(x), or fit it in double precision, decoder.double()"
            )
        log_dets = 2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return cls(means, precisions, torch.cholesky_inverse(factors), log_dets)

    @property
    def dimensions(self) -> int:
        """Number of latents of an example."""
        return self.means.shape[-1]

    def __getitem__(self, rows: slice | Tensor) -> "Latents":
        return Latents(self.means[rows], self.precisions[rows], self.covariances[rows], self.log_dets[rows])

    def write(self, rows: slice | Tensor, others: "Latents") -> None:
        """Puts others in place of some."""
        self.means[rows] = others.means
        self.precisions[rows] = others.precisions
        self.covariances[rows] = others.covariances
        self.log_dets[rows] = others.log_dets

    def distribution(self) -> td.MultivariateNormal:
        """The same as `torch.distributions` has it."""
        return td.MultivariateNormal(self.means, covariance_matrix=self.covariances)

    def copy(self) -> "Latents":
        """The same numbers in memory of their own."""
        return Latents(self.means.clone(), self.precisions.clone(), self.covariances.clone(), self.log_dets.clone())

    def mapped(self, means: Tensor, factor: Tensor) -> "Latents":
        """The Gaussians of L^-1 z for a lower triangular L, from those of z and means that stand for theirs."""
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
        covariances = inverse @ self.covariances @ inverse.T
        log_dets = self.log_dets + 2 * factor.diagonal().log().sum()
        return Latents(means @ inverse.T, factor.T @ self.precisions @ factor, covariances, log_dets)

    def turned(self, axes: Tensor) -> "Latents":
        """The Gaussians of V^T z for an orthogonal V, given by its columns."""
        return Latents(
            self.means @ axes, axes.T @ self.precisions @ axes, axes.T @ self.covariances @ axes, self.log_dets
        )

    def divergence(self) -> Tensor:
        """The KL divergence of each from N(0, I)."""
        squares = self.means.square().sum(-1) + self.covariances.diagonal(dim1=-2, dim2=-1).sum(-1)
        return (squares - self.dimensions + self.log_dets) / 2


def first_latents(w: Tensor, examples: int) -> Latents:
    """Gaussians around 0 for some number of examples, under which no u of weights `(outputs, latents)` varies beyond 1.

    That of a precision I + W^T W is below 1 for every output, so that no exponential of u overflows at once.
    """
    precision = torch.eye(w.shape[1]).to(w) + w.T @ w
    one = Latents.of(torch.zeros_like(w[:1]), precision.unsqueeze(0))
    return Latents(
        one.means.repeat(examples, 1),
        one.precisions.repeat(examples, 1, 1),
        one.covariances.repeat(examples, 1, 1),
        one.log_dets.repeat(examples),
    )


def improved(piece: "Piece", theta: Tensor, latents: Latents, own: bool = False) -> tuple[Latents, "Expectation"]:
    """Newton's step for the latents of a piece, in which no example's bound falls, and the expectation after it.

    Args:
        piece: The piece.
        theta: The weights of the outputs.
        latents: The latents of its rows.
        own: Whether the expectation has the gradients of the likelihood's own parameters.
    """
    found = piece.at(theta, latents)
    before = found.value - latents.divergence()
    slope, curvature = derivatives(found, theta, latents)
    full = Latents.of(latents.means, curvature)
    step = (full.covariances @ slope.unsqueeze(-1)).squeeze(-1)
    best = replace(full, means=latents.means + step)
    found = piece.at(theta, best, own)
    worse = _worse(found, best, before)
    if len(worse) == 0:
        return best, found
    share = 1.0
    for _ in range(TRIALS):
        share /= 4
        means = latents.means[worse] + share * step[worse]
        precisions = torch.lerp(latents.precisions[worse], full.precisions[worse], share)
        best.write(worse, Latents.of(means, precisions))
        tried = piece.subset(worse).at(theta, best[worse])
        worse = worse[_worse(tried, best[worse], before[worse])]
        if len(worse) == 0:
            break
    best.write(worse, latents[worse])
    return best, piece.at(theta, best, own)


def derivatives(found: "Expectation", theta: Tensor, latents: Latents) -> tuple[Tensor, Tensor]:
    """The slope of each example's bound in m, and minus its Hessian, or an upper bound of that."""
    w = theta[:, : latents.dimensions]
    slope = found.first @ w - latents.means
    curvature = matrices(-found.second.clamp(max=0) @ products(w), latents.dimensions)
    return slope, curvature + torch.eye(latents.dimensions).to(w)


def _worse(found: "Expectation", latents: Latents, before: Tensor) -> Tensor:
    """The places of examples whose bound is lower than before, by more than rounding, or is no number."""
    after = found.value - latents.divergence()
    slack = SLACK * torch.finfo(before.dtype).eps * (1 + before.abs())
    return (~(after >= before - slack)).nonzero().squeeze(1)
