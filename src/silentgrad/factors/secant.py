"""Newton's method for many single numbers, each with a curvature found from its last two slopes."""

import torch
from torch import Tensor

FIRST = 0.1
MOST = 0.5


class Secant:
    """Ascends a sum of functions of one number each, such as the dispersion of every output.

    Args:
        numbers: Where they start.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.curvature = torch.zeros_like(numbers)
        self.place: Tensor | None = None
        self.slope: Tensor | None = None

    def step(self, numbers: Tensor, slope: Tensor) -> Tensor:
        """Return by how much to move each number, given its slope: never by more than a half, and first by a tenth.

        The first step is no longer than its slope, so that numbers at their maximum stay there in spite of rounding.
        """
        if self.place is not None and self.slope is not None:
            moved = numbers - self.place
            found = (self.slope - slope) / torch.where(moved == 0, 1, moved)
            self.curvature = torch.where((moved != 0) & (found > 0), found, self.curvature)
        self.place, self.slope = numbers.clone(), slope.clone()
        known = self.curvature > 0
        newton = slope / torch.where(known, self.curvature, 1)
        return torch.where(known, newton.clamp(-MOST, MOST), newton.clamp(-FIRST, FIRST))
