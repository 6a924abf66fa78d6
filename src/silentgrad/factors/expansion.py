r"""The affine map of z that leaves the likelihood as it is and brings the latents nearest to their prior.

z can be replaced by :math:`A (z - c)`, if the weights follow. With full covariances the divergence from N(0, I) is
least where the latents of all examples together have mean 0 and covariance I, and any A that gives this will do.

Diagonal covariances do not stay diagonal: of a map, each example keeps the best diagonal. With precisions whose
diagonals are those of :math:`I + P_n`, the bound's slope in A at A = I is

.. math:: G = \sum_n P_n S_n - m_n m_n^T, \qquad S_n^{-1} = I + \mathrm{diag}(P_n),

whose diagonal vanishes where every latent has second moment 1. For the rest a step of Newton's is made. Where P is
diagonal on the average, :math:`A_{jk}` is coupled with :math:`A_{kj}` alone, as in joint diagonalization (Pham
2001): with sums over examples, and with :math:`\sum_n m_{nk}^2 = \sum_n (P_n S_n)_{kk}`, minus the Hessian is

.. math:: \begin{pmatrix}
    P_{jj} S_{kk} + P_{kk} S_{kk} & P_{jj} S_{jj} + P_{kk} S_{kk} \\
    P_{jj} S_{jj} + P_{kk} S_{kk} & P_{kk} S_{jj} + P_{jj} S_{jj} \end{pmatrix}.

It is singular where two latents are equally certain in all examples, so that to turn them changes nothing.

References:
    Liu, Rubin and Wu (1998), Parameter expansion to accelerate EM: the PX-EM algorithm, Biometrika 85.
    Pham (2001), Joint approximate diagonalization of positive definite Hermitian matrices, SIAM Journal on Matrix
    Analysis and Applications 22.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from silentgrad.factors.latents import Latents
from silentgrad.factors.outputs import Additive
from silentgrad.factors.symmetric import matrices, products

LARGEST = 0.5  # norm of A - I
COUPLED = 0.999  # largest coupling, in units at which the Hessian is singular
LEAST = 1e-6  # of an entry of its diagonal


@dataclass
class Moments(Additive):
    """Sums over examples of what tells the map, in double precision.

    Args:
        count: Number of examples, as they count.
        first: Means.
        second: Upper triangles of their products.
        spread: Upper triangles of covariances, or their diagonals.
        slope: P S, of diagonal covariances; empty for others.
        bend: The products of an entry of P's diagonal and one of S's, likewise.
    """

    count: Tensor
    first: Tensor
    second: Tensor
    spread: Tensor
    slope: Tensor
    bend: Tensor

    @classmethod
    def of(cls, latents: Latents, curvature: Tensor, weights: Tensor | None) -> "Moments":
        """Sum over latents, each as it counts, with the upper triangles of I + P."""

        def total(part: Tensor) -> Tensor:
            if weights is not None:
                part = part * weights.reshape(-1, *[1] * (part.dim() - 1))
            return part.sum(0, dtype=torch.float64)

        means, spread, ones = latents.means, latents.covariances, torch.ones_like(latents.log_dets)
        slope = bend = means.new_zeros(0, dtype=torch.float64)
        if latents.diagonal:
            p = matrices(curvature, latents.dimensions) - torch.eye(latents.dimensions).to(means)
            slope = total(p * spread.unsqueeze(1))
            bend = total(p.diagonal(dim1=1, dim2=2).unsqueeze(2) * spread.unsqueeze(1))
        return cls(total(ones), total(means), total(products(means)), total(spread), slope, bend)

    def map(self, radius: float) -> tuple[Tensor, Tensor]:
        """Return c, and the inverse of A, whose step is shorter for a radius below 1."""
        center = self.first / self.count
        size = len(center)
        covariance = matrices(self.second / self.count, size) + matrices(self.spread / self.count, size)
        covariance -= torch.outer(center, center)
        if len(self.slope) == 0:
            return center, torch.linalg.cholesky(covariance)
        scale = covariance.diagonal().sqrt()
        slope = self.slope / self.count - covariance / torch.outer(scale, scale)
        explained = slope.diagonal() + 1
        bend = (self.bend / self.count + explained).clamp(min=LEAST)
        most = COUPLED * (bend * bend.T).sqrt()
        cross = (explained + explained.unsqueeze(1)).clamp(-most, most)
        turn = ((bend.T * slope - cross * slope.T) / (bend * bend.T - cross.square())).fill_diagonal_(0)
        turn *= radius * LARGEST / turn.norm().clamp(min=LARGEST)
        return center, torch.linalg.inv((torch.eye(size).to(turn) + turn) / scale)
