"""Independent Gaussian latents."""

from torch import Tensor
from torch import distributions as td

from silentgrad.latents.families.base import Family, positive


class Gaussian(Family):
    """N(mean, diag(std^2)), from means and logarithms of deviations."""

    name = "gaussian"
    distribution = td.Normal
    arguments = ("loc", "scale")
    numbers_per_latent = 2
    gaussian = True

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        mean, log_std = self.split(numbers)
        return mean, positive(log_std)

    def outputs(self, q: td.Distribution) -> dict[str, Tensor]:
        mean, std = self.parameters(q)
        return {"mean": mean, "std": std}
