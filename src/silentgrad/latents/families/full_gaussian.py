"""Gaussian latents with a full covariance."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import ShapeError
from silentgrad.latents.families.base import Family, positive
from silentgrad.latents.independent import base_of


class FullGaussian(Family):
    """N(mean, L L^T), from the mean and the lower triangle of L, row by row, its diagonal in logarithms."""

    name = "full-gaussian"
    distribution = td.MultivariateNormal
    arguments = ("loc", "scale_tril")
    gaussian = True

    def __init__(self, latents: int | Sequence[int]) -> None:
        super().__init__(latents)
        if len(self.latents) != 1:
            raise ShapeError(f"a covariance is that of one row of latents, got latents of shape {tuple(self.latents)}")
        (self.size,) = self.latents
        self.numbers = self.size + self.size * (self.size + 1) // 2

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        mean, triangle = numbers.split([self.size, self.numbers - self.size], dim=-1)
        rows, columns = torch.tril_indices(self.size, self.size, device=numbers.device)
        lower = numbers.new_zeros(*numbers.shape[:-1], self.size, self.size)
        lower[..., rows, columns] = triangle
        diagonal = positive(lower.diagonal(dim1=-2, dim2=-1))
        return mean, lower.tril(-1) + torch.diag_embed(diagonal)

    def marginals(self, q: td.Distribution) -> td.Distribution:
        base = base_of(q)
        return td.Normal(base.mean, base.stddev, validate_args=False)

    def outputs(self, q: td.Distribution) -> dict[str, Tensor]:
        mean, scale_tril = self.parameters(q)
        return {"mean": mean, "scale_tril": scale_tril}
