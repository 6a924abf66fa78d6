"""Which dimensions of a latent are examples and which are latents, and looking through `Independent`, which says it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributions as td


def base_of(q: td.Distribution) -> td.Distribution:
    """The latent inside any number of `Independent`."""
    while isinstance(q, td.Independent):
        q = q.base_dist
    return q


def independent(base: td.Distribution, event_dims: int) -> td.Distribution:
    """The latent whose last dimensions, as many as said, are its event."""
    beyond = event_dims - len(base.event_shape)
    if beyond == 0:
        return base
    return td.Independent(base, beyond, validate_args=False)


def shape_of_one(q: td.Distribution) -> torch.Size:
    """The shape of one example's z: all dimensions but the first, unless q has no batch."""
    whole = q.batch_shape + q.event_shape
    return whole[min(1, len(q.batch_shape)) :]


def sum_over_latents(values: Tensor, examples: Sequence[int]) -> Tensor:
    """The sum over all dimensions beyond those of the examples; torch takes an empty list of dimensions for all."""
    beyond = tuple(range(len(examples), values.dim()))
    if not beyond:
        return values
    return values.sum(beyond)
