"""Encoders and nonlinear decoders."""

from silentgrad.lab.networks.circuits import NonlinearCircuit
from silentgrad.lab.networks.decoders import (
    NonlinearBernoulli,
    NonlinearGaussian,
    conv_network,
    mlp_network,
    strided_network,
)
from silentgrad.lab.networks.encoders import CountEncoder, Encoder, conv_body, mlp_body, strided_body
from silentgrad.lab.networks.likelihoods import NonlinearLikelihood
from silentgrad.lab.networks.pairs import NETWORKS, Network, Sizes

__all__ = [
    "NETWORKS",
    "CountEncoder",
    "Encoder",
    "Network",
    "NonlinearBernoulli",
    "NonlinearCircuit",
    "NonlinearGaussian",
    "NonlinearLikelihood",
    "Sizes",
    "conv_body",
    "conv_network",
    "mlp_body",
    "mlp_network",
    "strided_body",
    "strided_network",
]
