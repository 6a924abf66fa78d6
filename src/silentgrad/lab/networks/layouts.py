"""How the weights of convolutions lie in memory."""

import torch
from torch import nn


def channels_last(network: nn.Module) -> nn.Module:
    """The network with the weights of its convolutions stored channels last, and so all that they compute.

    The values do not change. On a processor a training step of the paper's networks for MNIST is 1.6 times faster with
    4 channels, 1.2 times with 8 and as fast with 16 or 32 (`benchmarks/convolutions.py`).

    Args:
        network: A network, which is changed in place.
    """
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
