"""Networks by name: the body of an encoder and the network of a nonlinear decoder, which go together.

A network of one's own is an entry of :data:`NETWORKS`; --model.network then takes its name.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from silentgrad.lab.networks.decoders import conv_network, mlp_network, strided_network
from silentgrad.lab.networks.encoders import conv_body, mlp_body, strided_body


class Sizes(NamedTuple):
    """How large a network is.

    Args:
        hidden: Widths of hidden layers, from x to z.
        channels: Number of channels of convolutions.
    """

    hidden: Sequence[int] = (512,)
    channels: int = 32


class Network(NamedTuple):
    """How the two networks of a VAE are made.

    Args:
        body: From the shape of an example, the number of outputs and the sizes to an encoder's body.
        decoder: From the number of latents, the shape of an example, the sizes and the numbers per output to the
            network of a nonlinear decoder.
        images_only: Whether examples have to be images `(channels, height, width)`.
    """

    body: Callable[[torch.Size, int, Sizes], nn.Module]
    decoder: Callable[[int, torch.Size, Sizes, int], nn.Module]
    images_only: bool = False


NETWORKS: dict[str, Network] = {
    "mlp": Network(
        lambda event_shape, outputs, sizes: mlp_body(event_shape, outputs, sizes.hidden),
        lambda latents, event_shape, sizes, numbers: mlp_network(latents, event_shape, sizes.hidden[::-1], numbers),
    ),
    "conv": Network(
        lambda event_shape, outputs, sizes: conv_body(event_shape, outputs, sizes.channels),
        lambda latents, event_shape, sizes, numbers: conv_network(latents, event_shape, sizes.channels, numbers),
        images_only=True,
    ),
    "strided": Network(
        lambda event_shape, outputs, sizes: strided_body(event_shape, outputs, sizes.channels),
        lambda latents, event_shape, sizes, numbers: strided_network(latents, event_shape, sizes.channels, numbers),
        images_only=True,
    ),
}
