"""Groups of categories, of which one in each group is on."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.latents.families.base import Family
from silentgrad.latents.independent import shape_of_one


class Categorical(Family):
    """One-hot categories, from their logits; z is `(*latents, categories)`.

    Args:
        latents: How many groups an example has, or their shape.
        categories: The categories of a group.
    """

    name = "categorical"
    distribution = td.OneHotCategorical
    arguments = ("logits",)
    options = ("categories",)

    def __init__(self, latents: int | Sequence[int], categories: int = 10) -> None:
        super().__init__(latents)
        if categories < 2:
            raise DomainError(f"a group has at least two categories, got {categories}")
        self.shape = torch.Size([*self.latents, categories])
        self.numbers = self.shape.numel()

    @classmethod
    def like(cls, q: td.Distribution) -> Self:
        *groups, categories = shape_of_one(q)
        return cls(groups, categories)

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        return (numbers.unflatten(-1, self.shape),)

    def outputs(self, q: td.Distribution) -> dict[str, Tensor]:
        (logits,) = self.parameters(q)
        return {"probs": torch.softmax(logits, -1)}
