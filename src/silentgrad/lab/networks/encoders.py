"""Encoders: a body that computes numbers from an image, and the latent that those numbers parameterise.

The convolutional bodies are those of the paper's appendix, which leaves the number of channels open: 32 for MNIST, 64
(doubling with each stride) for 32 x 32 colour images are ours.
"""

import itertools
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.errors import DomainError, ShapeError

LatentFamily = Literal["gaussian", "bernoulli"]


class Encoder(nn.Module):
    """q(z|x): runs a body, which gives `numbers_per_latent(family) * latent_dim` numbers, and builds the latent.

    Args:
        body: From images to numbers.
        family: "gaussian", N(mean(x), diag(std(x)^2)), or "bernoulli".
    """

    def __init__(self, body: nn.Module, family: LatentFamily) -> None:
        super().__init__()
        numbers_per_latent(family)
        self.body, self.family = body, family

    def forward(self, x: Tensor) -> td.Independent:
        numbers = self.body(x)
        if self.family == "bernoulli":
            return td.Independent(td.Bernoulli(logits=numbers), 1)
        if numbers.shape[-1] % 2:
            raise ShapeError(f"the body of a Gaussian encoder gives two numbers per latent, got {numbers.shape[-1]}")
        mean, log_std = numbers.chunk(2, dim=-1)
        # Beyond e^12 a deviation and its square leave what single precision can sum; no trained latent comes near.
        return td.Independent(td.Normal(mean, log_std.clamp(min=-12, max=12).exp()), 1)


def numbers_per_latent(family: LatentFamily) -> int:
    """How many numbers parameterise one latent."""
    if family not in get_args(LatentFamily):
        raise DomainError(f"latent family has to be one of {', '.join(get_args(LatentFamily))}; got {family!r}")
    return 2 if family == "gaussian" else 1


def mlp_body(event_shape: Sequence[int], outputs: int, hidden: Sequence[int] = (512,)) -> nn.Module:
    """Fully connected, for small machines."""
    widths = [torch.Size(event_shape).numel(), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def conv_body(event_shape: Sequence[int], outputs: int, channels: int = 32) -> nn.Module:
    """The paper's encoder for MNIST: three 3x3 convolutions and a linear layer."""
    colours, height, width = event_shape
    return nn.Sequential(
        nn.Conv2d(colours, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.Flatten(),
        nn.Linear(channels * height * width, outputs),
    )


def strided_body(event_shape: Sequence[int], outputs: int, channels: int = 64) -> nn.Module:
    """The paper's encoder for CIFAR-10 and ImageNet: strided 4x4 convolutions with batch normalisation."""
    colours, height, width = event_shape
    if height % 8 or width % 8 or height < 32 or width < 32:
        raise ShapeError(
            f"the strided encoder takes images of 32 x 32 or larger multiples of 8, got {height} x {width}"
        )
    widths = [colours, channels, 2 * channels, 4 * channels]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]
    layers += [nn.Conv2d(widths[-1], 4 * channels, 4), nn.ReLU(), nn.BatchNorm2d(4 * channels), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * channels * (height // 8 - 3) * (width // 8 - 3), outputs))
