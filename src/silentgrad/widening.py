"""Closed forms in single precision at least, whatever precision their inputs have.

Half precision has eleven digits of a binary fraction, and ends at 65,504 or at the third decimal: sums over outputs,
squares and exponentials leave both. Under autocast an encoder's latents arrive in it all the same. They are widened,
which loses nothing, and the closed form is computed outside autocast, so that it can be differentiated there too.
"""

import copy

import torch
from torch import Tensor
from torch import distributions as td

NARROW = (torch.float16, torch.bfloat16)


def widened(tensor: Tensor) -> Tensor:
    """The tensor in single precision if it was in half, itself if not."""
    if tensor.dtype in NARROW:
        return tensor.float()
    return tensor


def widened_latent(q: td.Distribution) -> td.Distribution:
    """The same latent with every parameter in single precision at least; itself if they are."""
    if not isinstance(q, td.Distribution):
        return q  # what it should be is said where its moments are asked for
    parts = {name: _widened_part(part) for name, part in vars(q).items()}
    if all(part is getattr(q, name) for name, part in parts.items()):
        return q
    wide = copy.copy(q)
    vars(wide).update(parts)
    return wide


def _widened_part(part: object) -> object:
    if isinstance(part, Tensor):
        return widened(part)
    if isinstance(part, td.Distribution):
        return widened_latent(part)
    return part
