r"""Newton's step for the weights of every output, with the latents held.

An output's :math:`\theta = (w, b, c)` meets the features :math:`\varphi = (m, 1, covariates)` of every example. With
the derivatives :math:`g', g''` of the expected log-likelihood in the means of u, and the covariance S of z,

.. math:: \nabla = \sum_n g'_n \varphi_n + g''_n\, (S_n w, 0), \qquad
    H \approx -\sum_n g''_n \bigl(\varphi_n \varphi_n^T + S_n \bigr),

where what is left out of the Hessian are third and fourth derivatives. Sums over examples are all that is kept, so the
data can come in pieces and from many machines.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from silentgrad.factors.latents import Latents
from silentgrad.factors.pieces import Expectation, Piece
from silentgrad.factors.symmetric import matrices, products

LEAST = 1e-9  # curvature of an output that was never seen
RIDGE = 1e-6  # of an output's mean curvature: outputs that were hardly seen have none in some directions


@dataclass
class Sums:
    """Sums over examples of what Newton's step needs, in double precision.

    Args:
        slope: `(outputs, features)`.
        spread: Sum of g'' S, as upper triangles, `(outputs, ...)`.
        concave_spread: The same over entries whose g'' is negative, which alone make a Hessian to rely on.
        curvature: Sum of g'' times the products of features over those entries, as upper triangles.
    """

    slope: Tensor
    spread: Tensor
    concave_spread: Tensor
    curvature: Tensor

    @classmethod
    def none(cls, theta: Tensor, dimensions: int) -> "Sums":
        """Sums over no examples."""
        outputs, features = theta.shape
        slope = theta.new_zeros(outputs, features, dtype=torch.float64)
        spread = slope.new_zeros(outputs, dimensions * (dimensions + 1) // 2)
        curvature = slope.new_zeros(outputs, features * (features + 1) // 2)
        return cls(slope, spread, spread.clone(), curvature)

    def add(self, piece: Piece, latents: Latents, found: Expectation) -> None:
        """Adds a piece."""
        first, second = found.first, found.second
        if piece.weights is not None:
            first, second = first * piece.weights.unsqueeze(1), second * piece.weights.unsqueeze(1)
        features = torch.cat([latents.means, piece.features], 1)
        spread_and_curvature = second.T @ torch.cat([latents.covariances, products(features)], 1)
        spread, curvature = spread_and_curvature.split([self.spread.shape[1], self.curvature.shape[1]], dim=1)
        self.slope += first.T @ features
        self.spread += spread
        if not found.concave:
            second = second.clamp(max=0)
            spread, curvature = second.T @ latents.covariances, second.T @ products(features)
        self.concave_spread += spread
        self.curvature += curvature

    def __iadd__(self, other: "Sums") -> "Sums":
        self.slope += other.slope
        self.spread += other.spread
        self.concave_spread += other.concave_spread
        self.curvature += other.curvature
        return self

    def hessian(self, dimensions: int) -> Tensor:
        """Minus the Hessian of the bound in each output's weights, `(outputs, features, features)`."""
        hessian = -matrices(self.curvature, self.slope.shape[1])
        hessian[:, :dimensions, :dimensions] -= matrices(self.concave_spread, dimensions)
        return hessian

    def diagonal(self) -> Tensor:
        """The curvature of the bound in each weight, `(outputs, features)`."""
        return -matrices(self.curvature, self.slope.shape[1]).diagonal(dim1=1, dim2=2)

    def step(self, theta: Tensor, dimensions: int, most: float) -> Tensor:
        """Newton's step, of which u's change is at most `most` in the mean square over examples."""
        slope = self.slope.clone()
        w = theta[:, :dimensions].unsqueeze(-1)
        slope[:, :dimensions] += (matrices(self.spread, dimensions) @ w).squeeze(-1)
        curvature = self.hessian(dimensions)
        scale = curvature.diagonal(dim1=1, dim2=2).mean(1).clamp(min=LEAST)
        curvature += RIDGE * scale.reshape(-1, 1, 1) * torch.eye(theta.shape[1]).to(theta)
        step = torch.linalg.solve(curvature, slope)
        size = step.norm(dim=1, keepdim=True)
        return step * (most / size.clamp(min=most))


@dataclass
class Moments:
    """Sums over examples of z and of z z^T, under their latents, in double precision."""

    count: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def none(cls, dimensions: int, device: torch.device) -> "Moments":
        """Sums over no examples."""
        first = torch.zeros(dimensions, dtype=torch.float64, device=device)
        return cls(first.new_zeros(()), first, first.new_zeros(dimensions * (dimensions + 1) // 2))

    @classmethod
    def of(cls, latents: Latents, weights: Tensor | None) -> "Moments":
        """Those of latents, each as it counts."""
        second = products(latents.means) + latents.covariances
        if weights is None:
            count = torch.tensor(float(len(latents)), dtype=torch.float64, device=second.device)
            return cls(count, latents.means.sum(0, dtype=torch.float64), second.sum(0, dtype=torch.float64))
        return cls(weights.double().sum(), (weights @ latents.means).double(), (weights @ second).double())

    def __iadd__(self, other: "Moments") -> "Moments":
        self.count = self.count + other.count
        self.first = self.first + other.first
        self.second = self.second + other.second
        return self

    def standardizing(self) -> tuple[Tensor, Tensor]:
        """The mean of z, and the root of its covariance as a lower triangle."""
        centre = self.first / self.count
        covariance = matrices(self.second / self.count, len(centre)) - torch.outer(centre, centre)
        return centre, torch.linalg.cholesky(covariance)
