"""A decoder's weights as one matrix, with covariates in standard units: Newton's steps are then well conditioned."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.side_info import SideInfo


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
