"""Independent bits."""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.latents.families.base import Family


class Bernoulli(Family):
    """Bits, from their logits."""

    name = "bernoulli"
    distribution = td.Bernoulli
    arguments = ("logits",)

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        return self.split(numbers)

    def outputs(self, q: td.Distribution) -> dict[str, Tensor]:
        (logits,) = self.parameters(q)
        return {"probs": torch.sigmoid(logits)}
