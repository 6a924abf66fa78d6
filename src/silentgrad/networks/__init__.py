"""Encoders and nonlinear decoders."""

from silentgrad.networks.decoders import NonlinearGaussian, conv_network, mlp_network, strided_network
from silentgrad.networks.encoders import (
    Encoder,
    LatentFamily,
    conv_body,
    kl_to_prior,
    mlp_body,
    numbers_per_latent,
    prior_of,
    strided_body,
)

__all__ = [
    "Encoder",
    "LatentFamily",
    "NonlinearGaussian",
    "conv_body",
    "conv_network",
    "kl_to_prior",
    "mlp_body",
    "mlp_network",
    "numbers_per_latent",
    "prior_of",
    "strided_body",
    "strided_network",
]
