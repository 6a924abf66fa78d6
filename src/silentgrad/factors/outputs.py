r"""Newton's step for the weights of every output, with the latents held.

An output's :math:`\theta = (w, b, c)` meets the features :math:`\varphi = (m, 1, covariates)` of every example. With
the derivatives :math:`g', g''` of the expected log-likelihood in the means of u, and the covariance S of z,

.. math:: \nabla = \sum_n g'_n \varphi_n + g''_n\, (S_n w, 0), \qquad
    H \approx -\sum_n g''_n \bigl(\varphi_n \varphi_n^T + S_n \bigr),

where what is left out of the Hessian are third and fourth derivatives. Sums over examples are all that is kept, so the
data can come in pieces and from many machines. A penalty :math:`\tfrac12 \theta^T \Lambda \theta`, with a diagonal
:math:`\Lambda`, takes :math:`\Lambda \theta` from the slope and adds :math:`\Lambda` to H. Covariates are in standard
units, so that the steps are well conditioned.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.factors.chunks import summed_products
from silentgrad.factors.latents import Latents
from silentgrad.factors.pieces import Expectation, Piece
from silentgrad.factors.symmetric import matrices, products
from silentgrad.side_info import SideInfo

LEAST = 1e-9  # curvature of an output that was never seen
RIDGE = 1e-6  # of an output's mean curvature: outputs that were hardly seen have none in some directions


class Additive:
    """Dataclass whose fields are added one by one."""

    def __add__(self, other: Self) -> Self:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(one + another for one, another in pairs))


@dataclass
class Sums(Additive):
    """Sums over examples of what Newton's step needs, in double precision.

    Args:
        slope: `(outputs, features)`.
        spread: Sum of g'' S, as upper triangles or diagonals, `(outputs, ...)`.
        concave_spread: The same over entries whose g'' is negative, which alone make a Hessian to rely on.
        curvature: Sum of g'' times the products of features over those entries, as upper triangles.
    """

    slope: Tensor
    spread: Tensor
    concave_spread: Tensor
    curvature: Tensor

    @classmethod
    def of(cls, piece: Piece, latents: Latents, found: Expectation) -> "Sums":
        """Sum over the rows of a piece."""
        first, second = found.first, found.second
        if piece.weights is not None:
            first, second = first * piece.weights.unsqueeze(1), second * piece.weights.unsqueeze(1)
        features = torch.cat([latents.means, piece.features], 1)
        squares, triangle = products(features), latents.covariances.shape[1]
        both = summed_products(second, torch.cat([latents.covariances, squares], 1))
        spread, curvature = both[:, :triangle], both[:, triangle:]
        concave_spread = spread
        if not found.concave:
            second = second.clamp(max=0)
            concave_spread = summed_products(second, latents.covariances)
            curvature = summed_products(second, squares)
        return cls(summed_products(first, features), spread, concave_spread, curvature)

    def hessian(self, dimensions: int) -> Tensor:
        """Return minus the Hessian of the bound in each output's weights, `(outputs, features, features)`."""
        hessian = -matrices(self.curvature, self.slope.shape[1])
        hessian[:, :dimensions, :dimensions] -= matrices(self.concave_spread, dimensions)
        return hessian

    def diagonal(self) -> Tensor:
        """Return the curvature of the bound in each weight, `(outputs, features)`."""
        return -matrices(self.curvature, self.slope.shape[1]).diagonal(dim1=1, dim2=2)

    def step(self, theta: Tensor, dimensions: int, most: float, penalty: Tensor) -> Tensor:
        """Return Newton's step, of which u's change is at most `most` in the mean square over examples.

        The penalty is one number per feature, the diagonal of Lambda.
        """
        slope = self.slope - penalty * theta
        w = theta[:, :dimensions].unsqueeze(-1)
        slope[:, :dimensions] += (matrices(self.spread, dimensions) @ w).squeeze(-1)
        curvature = self.hessian(dimensions)
        scale = curvature.diagonal(dim1=1, dim2=2).mean(1).clamp(min=LEAST)
        curvature += RIDGE * scale.reshape(-1, 1, 1) * torch.eye(theta.shape[1]).to(theta) + penalty.diag()
        step = torch.linalg.solve(curvature, slope)
        size = step.norm(dim=1, keepdim=True)
        return step * (most / size.clamp(min=most))


def weights_of(decoder: LinearLikelihood) -> Tensor:
    """Return weights of the latents, bias and weights of covariates in one matrix, `(outputs, features)`."""
    parts = [decoder.affine.weight, decoder.affine.bias.unsqueeze(1)]
    if decoder.covariate_affine is not None:
        parts.append(decoder.covariate_affine.weight)
    return torch.cat(parts, 1).detach().clone()


@dataclass(frozen=True)
class CovariateScales:
    """Means and standard deviations of covariates, and the weights that go with them.

    Args:
        mean: `(covariates,)`.
        deviation: `(covariates,)`; 1 for a covariate that does not vary.
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, covariates: Tensor | None, like: Tensor) -> "CovariateScales":
        """Find the scales of covariates `(examples, covariates)`, with the device and precision of a tensor."""
        if covariates is None:
            return cls(like.new_zeros(0), like.new_ones(0))
        deviation, mean = torch.std_mean(covariates.double(), dim=0, correction=0)
        return cls(mean.to(like), torch.where(deviation > 0, deviation, 1).to(like))

    def standardized(self, side_info: SideInfo) -> SideInfo:
        """Return side information with covariates in standard units."""
        if side_info.covariates is None:
            return side_info
        return replace(side_info, covariates=(side_info.covariates.to(self.mean) - self.mean) / self.deviation)

    def errors(self, hessian: Tensor, dimensions: int) -> Tensor:
        """Return standard errors of the weights for covariates as given, from the curvature for standard ones."""
        inverse = torch.linalg.pinv(hessian, hermitian=True)
        variances = inverse.diagonal(dim1=1, dim2=2)[:, dimensions + 1 :].clamp(min=0)
        return variances.sqrt() / self.deviation

    def read(self, decoder: LinearLikelihood) -> Tensor:
        """Return a decoder's weights for standardized covariates, in double precision."""
        theta, dimensions = weights_of(decoder).double(), decoder.latent_dim
        weights = theta[:, dimensions + 1 :]
        theta[:, dimensions] += weights @ self.mean
        weights *= self.deviation
        return theta

    def write(self, decoder: LinearLikelihood, theta: Tensor) -> None:
        """Put such weights into the decoder."""
        dimensions = decoder.latent_dim
        weights = theta[:, dimensions + 1 :] / self.deviation
        decoder.affine.weight.copy_(theta[:, :dimensions])
        decoder.affine.bias.copy_(theta[:, dimensions] - weights @ self.mean)
        if decoder.covariate_affine is not None:
            decoder.covariate_affine.weight.copy_(weights)
