r"""The affine map of z that leaves the likelihood as it is and brings the latents nearest to their prior.

z can be replaced by :math:`A (z - c)`, if the weights follow, as :math:`W A^{-1}`. With full covariances the divergence
from N(0, I) is least where the latents of all examples together have mean 0 and covariance I, and any A that gives this
will do.

A ridge, the penalty :math:`\tfrac\lambda2 |W|^2`, follows too. Both depend on :math:`C = (A^T A)^{-1}` alone. With the
covariance M of all N latents together and :math:`R = \lambda W^T W / N`, the least of
:math:`\tfrac N2 (\mathrm{tr}\, C^{-1} M + \log\det C + \mathrm{tr}\, R C)` is where

.. math:: C + C R C = M, \qquad C = L Q L^T, \quad M = L L^T, \quad Q + Q (L^T R L) Q = I,

so that Q has the eigenvectors of :math:`L^T R L`, and the eigenvalue :math:`2 / (1 + \sqrt{1 + 4 k})` where that has k.

Diagonal covariances do not stay diagonal: of a map, each example keeps the best diagonal. With precisions whose
diagonals are those of :math:`I + P_n`, the slope in A at A = I of the bound less the penalty is

.. math:: G = N R + \sum_n P_n S_n - m_n m_n^T, \qquad S_n^{-1} = I + \mathrm{diag}(P_n),

whose diagonal vanishes where every latent has second moment :math:`1 + R_{kk}`. For the rest a step of Newton's is
made. Where P and R are diagonal on the average, :math:`A_{jk}` is coupled with :math:`A_{kj}` alone, as in joint
diagonalization (Pham 2001): with means over examples, and with :math:`m_k^2 = P_{kk} S_{kk} + R_{kk}`, minus the
Hessian is N times

.. math:: \begin{pmatrix}
    P_{jj} S_{kk} + P_{kk} S_{kk} & P_{jj} S_{jj} + P_{kk} S_{kk} \\
    P_{jj} S_{jj} + P_{kk} S_{kk} & P_{kk} S_{jj} + P_{jj} S_{jj} \end{pmatrix}
    + (R_{jj} + R_{kk}) \begin{pmatrix} 1 & 1 \\ 1 & 1 \end{pmatrix}.

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
class PooledMoments(Additive):
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
    def of(cls, latents: Latents, curvature: Tensor, weights: Tensor | None) -> "PooledMoments":
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

    def map(self, radius: float, pull: Tensor) -> tuple[Tensor, Tensor]:
        """Return c, and the inverse of A, whose step is shorter for a radius below 1.

        The `pull` is the ridge times W^T W.
        """
        center = self.first / self.count
        size = len(center)
        covariance = matrices(self.second / self.count, size) + matrices(self.spread / self.count, size)
        covariance -= torch.outer(center, center)
        pull = pull / self.count
        if len(self.slope) == 0:
            root = torch.linalg.cholesky(covariance)
            pulls, axes = torch.linalg.eigh(root.T @ pull @ root)
            return center, root @ torch.linalg.cholesky(axes * _shrunk(pulls) @ axes.T)
        scale = (covariance.diagonal() * _shrunk(covariance.diagonal() * pull.diagonal())).sqrt()
        pull = pull * torch.outer(scale, scale)
        slope = self.slope / self.count - covariance / torch.outer(scale, scale) + pull
        explained = slope.diagonal() + 1 + pull.diagonal()
        bend = (self.bend / self.count + explained + pull.diagonal().unsqueeze(1)).clamp(min=LEAST)
        most = COUPLED * (bend * bend.T).sqrt()
        cross = (explained + explained.unsqueeze(1)).clamp(-most, most)
        turn = ((bend.T * slope - cross * slope.T) / (bend * bend.T - cross.square())).fill_diagonal_(0)
        turn *= radius * LARGEST / turn.norm().clamp(min=LARGEST)
        return center, torch.linalg.inv((torch.eye(size).to(turn) + turn) / scale)


def _shrunk(pulls: Tensor) -> Tensor:
    """Return the positive q with q + k q^2 = 1 for each k, which rounding may have left below 0."""
    return 2 / (1 + (1 + 4 * pulls.clamp(min=0)).sqrt())
