"""Independent counts."""

from torch import Tensor
from torch import distributions as td

from silentgrad.latents.families.base import Family, positive


class Poisson(Family):
    """Counts, from the logarithms of their rates."""

    name = "poisson"
    distribution = td.Poisson
    arguments = ("rate",)

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        (log_rate,) = self.split(numbers)
        return (positive(log_rate),)
