r"""Newton's step for the weights of every output, with the latents held.

An output's :math:`\theta = (w, b, c)` meets the features :math:`\varphi = (m, 1, covariates)` of every example. With
the derivatives :math:`g', g''` of the expected log-likelihood in the means of u, and the covariance S of z,

.. math:: \nabla = \sum_n g'_n \varphi_n + g''_n\, (S_n w, 0), \qquad
    H \approx -\sum_n g''_n \bigl(\varphi_n \varphi_n^T + S_n \bigr),

where what is left out of the Hessian are third and fourth derivatives. Sums over examples are all that is kept, so the
data can come in pieces.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from silentgrad.factors.latents import Latents
from silentgrad.factors.pieces import Expectation, Piece
from silentgrad.factors.symmetric import matrices, products, triangles

LEAST = 1e-9  # curvature of an output that was never seen
RIDGE = 1e-6  # of an output's mean curvature: outputs that were hardly seen have none in some directions


@dataclass
class Sums:
    """Sums over examples of what Newton's step needs.

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
        spread = theta.new_zeros(outputs, dimensions * (dimensions + 1) // 2)
        curvature = theta.new_zeros(outputs, features * (features + 1) // 2)
        return cls(torch.zeros_like(theta), spread, spread.clone(), curvature)

    def add(self, piece: Piece, latents: Latents, found: Expectation) -> None:
        """Adds a piece."""
        first, second = found.first, found.second
        if piece.weights is not None:
            first, second = first * piece.weights.unsqueeze(1), second * piece.weights.unsqueeze(1)
        features = torch.cat([latents.means, piece.features], 1)
        covariances = triangles(latents.covariances)
        spread = second.T @ covariances
        self.slope += first.T @ features
        self.spread += spread
        if (second > 0).any():
            second = second.clamp(max=0)
            spread = second.T @ covariances
        self.concave_spread += spread
        self.curvature += second.T @ products(features)

    def diagonal(self) -> Tensor:
        """The curvature of the bound in each weight, `(outputs, features)`."""
        curvature = -matrices(self.curvature, self.slope.shape[1]).diagonal(dim1=1, dim2=2)
        return curvature.clone()

    def step(self, theta: Tensor, dimensions: int, most: float) -> Tensor:
        """Newton's step, of which u's change is at most `most` in the mean square over examples."""
        slope = self.slope.clone()
        w = theta[:, :dimensions].unsqueeze(-1)
        slope[:, :dimensions] += (matrices(self.spread, dimensions) @ w).squeeze(-1)
        curvature = -matrices(self.curvature, theta.shape[1])
        curvature[:, :dimensions, :dimensions] -= matrices(self.concave_spread, dimensions)
        scale = curvature.diagonal(dim1=1, dim2=2).mean(1).clamp(min=LEAST)
        curvature += RIDGE * scale.reshape(-1, 1, 1) * torch.eye(theta.shape[1]).to(theta)
        step = torch.linalg.solve(curvature, slope)
        size = step.norm(dim=1, keepdim=True)
        return step * (most / size.clamp(min=most))
