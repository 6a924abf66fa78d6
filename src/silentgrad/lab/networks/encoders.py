"""Encoders: a body that computes numbers from an image, and the latent that those numbers parameterize.

The convolutional bodies are those of the paper's appendix, which leaves the number of channels open: 32 for MNIST, 64
(doubling with each stride) for 32 x 32 color images are ours.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.errors import ShapeError
from silentgrad.latents.families import Family
from silentgrad.side_info import NOTHING, SideInfo


class Encoder(nn.Module):
    """q(z|x): runs a body, which gives `family.numbers` numbers for an image, and builds the latent.

    Args:
        body: From images to numbers.
        family: The family of the latents.
    """

    def __init__(self, body: nn.Module, family: Family) -> None:
        super().__init__()
        self.body, self.family = body, family

    def forward(self, x: Tensor) -> td.Distribution:
        return self.family.latent(self.body(x))

    def init_from_data(self, data: Tensor) -> None:
        """Start a body that starts from what it sees."""
        if isinstance(self.body, Centered | InLevels):
            self.body.init_from_data(data)


class InLevels(nn.Module):
    """A body that sees whole levels from 0 to levels - 1 as numbers from 0 to 1."""

    def __init__(self, body: nn.Module, levels: int) -> None:
        super().__init__()
        self.body, self.levels = body, levels

    def forward(self, x: Tensor) -> Tensor:
        numbers: Tensor = self.body((x + 0.5) / self.levels)
        return numbers

    def init_from_data(self, data: Tensor) -> None:
        if isinstance(self.body, Centered):
            self.body.init_from_data((data + 0.5) / self.levels)


class Blind(nn.Module):
    """A body that says so many zeros of every example, by which q is the prior."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), self.numbers)


class CountEncoder(Encoder):
    """q(z|x) of counts: the body sees log(1 + x / size), and the covariates behind it.

    The size of an example is the exponential of its offset. What was not observed is 0.

    Args:
        body: From logarithms and covariates, `(batch, columns + covariates)`, to numbers.
        family: The family of the latents.
    """

    def forward(self, x: Tensor, side_info: SideInfo = NOTHING) -> td.Distribution:
        known = side_info.flattened(x.shape[:1], x.shape[1:])
        relative = known.observed(x.flatten(1), 0.0)
        if known.offset is not None:
            relative = relative * torch.exp(-known.offset)
        seen = relative.log1p()
        if known.covariates is not None:
            seen = torch.cat([seen, known.covariates.to(seen)], 1)
        return super().forward(seen)

    def given(self, side_info: SideInfo) -> Callable[[Tensor], td.Distribution]:
        """Return the encoder of a batch whose examples have their side information already."""
        return partial(self, side_info=side_info)


class Centered(nn.Sequential):
    """Layers that see x without its mean over training examples."""

    mean: Tensor

    def __init__(self, event_shape: Sequence[int], *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.register_buffer("mean", torch.zeros(tuple(event_shape)))

    def forward(self, x: Tensor) -> Tensor:
        numbers: Tensor = super().forward(x - self.mean)
        return numbers

    def init_from_data(self, data: Tensor) -> None:
        self.mean.copy_(data.mean(0))


def leaky_relu() -> nn.Module:
    """Return the unit of papers on discrete latents."""
    return nn.LeakyReLU(0.3)


def leaky_body(event_shape: Sequence[int], outputs: int, hidden: Sequence[int]) -> nn.Module:
    """Return the body of the protocol that papers on discrete latents share."""
    layers = fully_connected([torch.Size(event_shape).numel(), *hidden, outputs], leaky_relu)
    return Centered(event_shape, nn.Flatten(), *layers)


def mlp_body(event_shape: Sequence[int], outputs: int, hidden: Sequence[int] = (512,)) -> nn.Module:
    """Return a fully connected body, for small machines."""
    return nn.Sequential(nn.Flatten(), *fully_connected([torch.Size(event_shape).numel(), *hidden, outputs]))


def fully_connected(widths: Sequence[int], unit: Callable[[], nn.Module] = nn.ReLU) -> list[nn.Module]:
    """Return linear layers from each width to the next, with units between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), unit()]
    return layers[:-1]


def conv_body(event_shape: Sequence[int], outputs: int, channels: int = 32) -> nn.Module:
    """Return the paper's encoder for MNIST: three 3x3 convolutions and a linear layer."""
    colors, height, width = event_shape
    layers: list[nn.Module] = []
    for before in (colors, channels, channels):
        layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
    return channels_last(nn.Sequential(*layers[:-1], nn.Flatten(), nn.Linear(channels * height * width, outputs)))


def strided_body(event_shape: Sequence[int], outputs: int, channels: int = 64) -> nn.Module:
    """Return the paper's encoder for CIFAR-10 and ImageNet: strided 4x4 convolutions with batch normalization."""
    rows, columns = strided_size("encoder takes", event_shape)
    widths = [event_shape[0], channels, 2 * channels, 4 * channels]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]
    layers += [nn.Conv2d(widths[-1], 4 * channels, 4), nn.ReLU(), nn.BatchNorm2d(4 * channels), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * channels * rows * columns, outputs))


def strided_size(network: str, event_shape: Sequence[int]) -> tuple[int, int]:
    """Return the size of what the strided convolutions leave of an image; refuse other images than they take."""
    _, height, width = event_shape
    if height % 8 or width % 8 or height < 32 or width < 32:
        raise ShapeError(f"the strided {network} images of 32 x 32 or larger multiples of 8, got {height} x {width}")
    return height // 8 - 3, width // 8 - 3


def channels_last(network: nn.Module) -> nn.Module:
    """Return the network with the weights of its convolutions stored channels last, and so all that they compute.

    The values do not change. On a processor a training step of the paper's networks for MNIST is 1.6 times faster with
    4 channels, 1.2 times with 8 and as fast with 16 or 32 (`benchmarks/convolutions.py`).
    """
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
