"""Encoders: a body that computes numbers from an image, and the latent that those numbers parameterize.

The convolutional bodies are those of the paper's appendix, which leaves the number of channels open: 32 for MNIST, 64
(doubling with each stride) for 32 x 32 colour images are ours.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.beside import NOTHING, Beside
from silentgrad.errors import ShapeError
from silentgrad.lab.networks.layouts import channels_last
from silentgrad.latents.families import Family


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


class CountEncoder(Encoder):
    """q(z|x) of counts: the body sees log(1 + x / size), and the covariates behind it.

    The size of an example is the exponential of its offset. What was not observed is 0.

    Args:
        body: From logarithms and covariates, `(batch, columns + covariates)`, to numbers.
        family: The family of the latents.
    """

    def forward(self, x: Tensor, beside: Beside = NOTHING) -> td.Distribution:
        known = beside.flattened(x.shape[:1], x.shape[1:])
        relative = known.observed(x.flatten(1), 0.0)
        if known.offset is not None:
            relative = relative * torch.exp(-known.offset)
        seen = relative.log1p()
        if known.covariates is not None:
            seen = torch.cat([seen, known.covariates.to(seen)], 1)
        return super().forward(seen)

    def given(self, **beside: Tensor | None) -> Callable[[Tensor], td.Distribution]:
        """The encoder of a batch whose examples have all that stands beside them already; the names are `Beside`'s."""
        return partial(self, beside=Beside(**beside))


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
    body = nn.Sequential(
        nn.Conv2d(colours, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.Flatten(),
        nn.Linear(channels * height * width, outputs),
    )
    return channels_last(body)


def strided_body(event_shape: Sequence[int], outputs: int, channels: int = 64) -> nn.Module:
    """The paper's encoder for CIFAR-10 and ImageNet: strided 4x4 convolutions with batch normalization."""
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
