"""Nonlinear decoders, of real numbers and of bits: the paper's networks, and a fully connected one."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import softplus

from silentgrad.errors import ShapeError
from silentgrad.lab.networks.given import Elementwise
from silentgrad.lab.networks.layouts import channels_last


class NonlinearGaussian(Elementwise):
    """p(x|z) = N(mean(z), exp(-g(z))), both from one network that doubles the channels.

    Within a bin of width 1/levels the dequantization noise alone has standard deviation 1/(levels sqrt 12), so a
    log-precision g beyond log(12 levels^2) gains nothing; it is bent smoothly below that.

    Args:
        network: From latents `(batch, latent_dim)` to `(batch, 2 * channels, height, width)`.
        event_shape: Shape of one image.
        levels: Number of levels of a pixel.
    """

    def __init__(self, network: nn.Module, event_shape: Sequence[int], levels: int = 256) -> None:
        super().__init__()
        self.network = network
        self.event_shape = torch.Size(event_shape)
        self.most = math.log(12 * levels**2)

    def forward(self, z: Tensor) -> td.Independent:
        numbers = self.network(z.flatten(1))
        require_shape(numbers, (2 * self.event_shape[0], *self.event_shape[1:]))
        mean, g = numbers.chunk(2, dim=1)
        log_precision = self.most - softplus(self.most - START_LOG_PRECISION - g)
        return td.Independent(td.Normal(mean, torch.exp(-log_precision / 2)), len(self.event_shape))


class NonlinearBernoulli(Elementwise):
    """p(x = 1|z) = sigmoid(u(z)), one u per output.

    Args:
        network: From latents `(batch, latent_dim)` to `(batch, *event_shape)`.
        event_shape: Shape of one example.
    """

    def __init__(self, network: nn.Module, event_shape: Sequence[int]) -> None:
        super().__init__()
        self.network = network
        self.event_shape = torch.Size(event_shape)

    def forward(self, z: Tensor) -> td.Independent:
        u = self.network(z.flatten(1))
        require_shape(u, self.event_shape)
        return td.Independent(td.Bernoulli(logits=u), len(self.event_shape))


def require_shape(numbers: Tensor, expected: tuple[int, ...]) -> None:
    """Refuses what a network gives if it is not as many numbers as its likelihood takes."""
    if numbers.shape[-len(expected) :] != expected:
        raise ShapeError(f"the decoder's network has to give {expected} numbers, got {tuple(numbers.shape[1:])}")


START_LOG_PRECISION = math.log(9.0)  # where a network that says zero begins: standard deviation 1/3


# Each network gives as many numbers per output as the likelihood has parameters: two for mean and precision.


def mlp_network(
    latent_dim: int, event_shape: Sequence[int], hidden: Sequence[int] = (512,), numbers: int = 2
) -> nn.Module:
    """Fully connected, for small machines."""
    colours, *size = event_shape
    widths = [latent_dim, *hidden]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    outputs = numbers * torch.Size(event_shape).numel()
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs), nn.Unflatten(1, (numbers * colours, *size)))


def conv_network(latent_dim: int, event_shape: Sequence[int], channels: int = 32, numbers: int = 2) -> nn.Module:
    """The paper's decoder for MNIST: a linear layer, four 3x3 convolutions and one of 1x1."""
    colours, height, width = event_shape
    layers: list[nn.Module] = [
        nn.Linear(latent_dim, channels * height * width),
        nn.Unflatten(1, (channels, height, width)),
    ]
    for _ in range(4):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return channels_last(nn.Sequential(*layers, nn.Conv2d(channels, numbers * colours, 1)))


def strided_network(latent_dim: int, event_shape: Sequence[int], channels: int = 64, numbers: int = 2) -> nn.Module:
    """The paper's decoder for CIFAR-10 and ImageNet: transposed 4x4 convolutions with batch normalization."""
    colours, height, width = event_shape
    if height % 8 or width % 8 or height < 32 or width < 32:
        raise ShapeError(
            f"the strided decoder makes images of 32 x 32 or larger multiples of 8, got {height} x {width}"
        )
    rows, columns = height // 8 - 3, width // 8 - 3
    widths = [4 * channels, 4 * channels, 2 * channels, channels]
    layers: list[nn.Module] = [
        nn.Linear(latent_dim, widths[0] * rows * columns),
        nn.Unflatten(1, (widths[0], rows, columns)),
        nn.ConvTranspose2d(widths[0], widths[1], 4),
        nn.ReLU(),
        nn.BatchNorm2d(widths[1]),
    ]
    for before, after in itertools.pairwise(widths[1:]):
        layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], numbers * colours, 4, stride=2, padding=1))
