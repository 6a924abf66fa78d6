"""Covariates in standard units, in which Newton's steps for their weights are well conditioned."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from silentgrad.side_info import SideInfo


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
        """The scales of covariates `(examples, covariates)`, with the device and precision of a tensor."""
        if covariates is None:
            return cls(like.new_zeros(0), like.new_ones(0))
        deviation, mean = torch.std_mean(covariates.double(), dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1)
        return cls(mean.to(like), deviation.to(like))

    def standardized(self, side_info: SideInfo) -> SideInfo:
        """Return side information with covariates in standard units."""
        if side_info.covariates is None:
            return side_info
        return replace(side_info, covariates=(side_info.covariates.to(self.mean) - self.mean) / self.deviation)

    def errors(self, hessian: Tensor, dimensions: int) -> Tensor:
        """Standard errors of the weights for covariates as they were given, from the curvature for standard ones."""
        inverse = torch.linalg.pinv(hessian, hermitian=True)
        variances = inverse.diagonal(dim1=1, dim2=2)[:, dimensions + 1 :].clamp(min=0)
        return variances.sqrt() / self.deviation

    def to_standard(self, theta: Tensor, dimensions: int) -> Tensor:
        """The weights `(outputs, latents + 1 + covariates)` for standardized covariates, from those for given ones."""
        theta = theta.clone()
        weights = theta[:, dimensions + 1 :]
        theta[:, dimensions] += weights @ self.mean
        theta[:, dimensions + 1 :] = weights * self.deviation
        return theta

    def from_standard(self, theta: Tensor, dimensions: int) -> Tensor:
        """The weights for covariates as they were given, from those for standardized ones."""
        theta = theta.clone()
        weights = theta[:, dimensions + 1 :] / self.deviation
        theta[:, dimensions + 1 :] = weights
        theta[:, dimensions] -= weights @ self.mean
        return theta
