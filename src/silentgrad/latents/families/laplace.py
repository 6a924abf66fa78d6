"""Independent Laplace latents."""

from torch import Tensor
from torch import distributions as td

from silentgrad.latents.families.base import Family, positive


class Laplace(Family):
    """Laplace(mean, scale), from means and logarithms of scales."""

    name = "laplace"
    distribution = td.Laplace
    arguments = ("loc", "scale")
    numbers_per_latent = 2

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        mean, log_scale = self.split(numbers)
        return mean, positive(log_scale)
