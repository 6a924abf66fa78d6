"""Encoders and nonlinear decoders, and networks by name: an encoder's body and a decoder's network, which go together.

A network of one's own is an entry of :data:`NETWORKS`; --model.network then takes its name.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from silentgrad.lab.networks.decoders import (
    NonlinearCircuit,
    NonlinearGaussian,
    NonlinearLikelihood,
    NonlinearLogistic,
    NonlinearStandardized,
    conv_network,
    mlp_network,
    strided_network,
)
from silentgrad.lab.networks.encoders import (
    Blind,
    CountEncoder,
    Encoder,
    InLevels,
    conv_body,
    leaky_body,
    leaky_relu,
    mlp_body,
    strided_body,
)


class Sizes(NamedTuple):
    """Size of a network."""

    hidden: Sequence[int] = (512,)  # widths of hidden layers, from x to z
    channels: int = 32  # of convolutions


class Network(NamedTuple):
    """Functions that make the two networks of a VAE."""

    body: Callable[[torch.Size, int, Sizes], nn.Module]  # shape of an example, number of outputs, sizes
    decoder: Callable[[int, torch.Size, Sizes, int], nn.Module]  # latents, shape, sizes, numbers per output
    images_only: bool = False  # examples have to be `(channels, height, width)`
    sizes: Sequence[str] = Sizes._fields  # that it uses; others cannot be chosen with it


def _convolutional(body: Callable[..., nn.Module], decoder: Callable[..., nn.Module]) -> Network:
    return Network(
        lambda event_shape, outputs, sizes: body(event_shape, outputs, sizes.channels),
        lambda latents, event_shape, sizes, numbers: decoder(latents, event_shape, sizes.channels, numbers),
        images_only=True,
        sizes=["channels"],
    )


NETWORKS: dict[str, Network] = {
    "mlp": Network(
        lambda event_shape, outputs, sizes: mlp_body(event_shape, outputs, sizes.hidden),
        lambda latents, event_shape, sizes, numbers: mlp_network(latents, event_shape, sizes.hidden[::-1], numbers),
        sizes=["hidden"],
    ),
    "leaky": Network(
        lambda event_shape, outputs, sizes: leaky_body(event_shape, outputs, sizes.hidden),
        lambda latents, event_shape, sizes, numbers: mlp_network(
            latents, event_shape, sizes.hidden[::-1], numbers, leaky_relu
        ),
        images_only=True,
        sizes=["hidden"],
    ),
    "conv": _convolutional(conv_body, conv_network),
    "strided": _convolutional(strided_body, strided_network),
}
