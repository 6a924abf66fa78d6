"""Encoders and nonlinear decoders."""

from silentgrad.lab.networks.decoders import (
    NonlinearBernoulli,
    NonlinearGaussian,
    conv_network,
    mlp_network,
    strided_network,
)
from silentgrad.lab.networks.encoders import (
    Encoder,
    LatentFamily,
    conv_body,
    mlp_body,
    numbers_per_latent,
    strided_body,
)

__all__ = [
    "Encoder",
    "LatentFamily",
    "NonlinearBernoulli",
    "NonlinearGaussian",
    "conv_body",
    "conv_network",
    "mlp_body",
    "mlp_network",
    "numbers_per_latent",
    "strided_body",
    "strided_network",
]
