"""Images as they are stored, in integers, and as a model with a density sees them, dequantised."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Three disjoint splits of one dataset, each `(images, channels, height, width)` of uint8 in 0..levels-1."""

    train: Tensor
    valid: Tensor
    test: Tensor
    levels: int
    name: str

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one image, `(channels, height, width)`."""
        return self.train.shape[1:]


def dequantise(images: Tensor, levels: int, generator: torch.Generator | None = None) -> Tensor:
    r"""Uniform dequantisation, :math:`y = (x + u) / L` with :math:`u \sim U[0, 1)`, in float32.

    It turns a density of y into a bound on the probability of x,
    :math:`\log P(x) \ge E_u \log p(y) - k \log L`, which is what makes bits per dimension comparable between models.

    Args:
        images: Integers in 0..levels-1, any shape.
        levels: Number of levels L.
        generator: Source of the noise, on the images' own device; the device's global one if absent.

    Example:
        >>> dequantise(torch.tensor([0, 16], dtype=torch.uint8), levels=17).mul(17).floor()
        tensor([ 0., 16.])
    """
    noise = torch.rand(images.shape, generator=generator, device=images.device)
    return noise.add_(images).div_(levels)
