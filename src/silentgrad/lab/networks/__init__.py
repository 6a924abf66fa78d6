"""Encoders and nonlinear decoders, and networks by name: an encoder's body and a decoder's network, which go together.

A network of one's own is an entry of :data:`NETWORKS`; --model.network then takes its name.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

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


class Network(NamedTuple):
    """Functions that make the two networks of a VAE; they take the options in `sizes` as keyword arguments."""

    body: Callable[..., nn.Module]  # shape of an example, number of outputs
    decoder: Callable[..., nn.Module]  # latents, shape of an example, numbers per output
    sizes: Sequence[str] = ()  # among `hidden` and `channels`; others cannot be chosen with it
    images_only: bool = False  # examples have to be `(channels, height, width)`


NETWORKS: dict[str, Network] = {
    "mlp": Network(mlp_body, mlp_network, ["hidden"]),
    "leaky": Network(leaky_body, partial(mlp_network, unit=leaky_relu), ["hidden"], images_only=True),
    "conv": Network(conv_body, conv_network, ["channels"], images_only=True),
    "strided": Network(strided_body, strided_network, ["channels"], images_only=True),
}
