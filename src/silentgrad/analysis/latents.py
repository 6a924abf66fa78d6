"""A latent taken apart: the tensors it is made of, and how to make the same latent of others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor
from torch import distributions as td

from silentgrad.errors import IntractableError


class Parts(NamedTuple):
    """The parameters of a latent, `(batch, ...)` each, and the function from parameters to a latent."""

    tensors: tuple[Tensor, ...]
    rebuild: Callable[[Sequence[Tensor]], td.Distribution]


def parts_of(q: td.Distribution) -> Parts:
    """Takes a Normal or Bernoulli latent apart, inside any number of `Independent`.

    Example:
        >>> import torch
        >>> parts = parts_of(td.Normal(torch.zeros(5, 2), torch.ones(5, 2)))
        >>> parts.rebuild([2 * part for part in parts.tensors]).stddev[0]
        tensor([2., 2.])
    """
    if isinstance(q, td.Independent):
        tensors, rebuild = parts_of(q.base_dist)
        dims = q.reinterpreted_batch_ndims
        return Parts(tensors, lambda new: td.Independent(rebuild(new), dims, validate_args=False))
    if isinstance(q, td.Normal):
        return Parts((q.loc, q.scale), lambda new: td.Normal(new[0], new[1], validate_args=False))
    if isinstance(q, td.Bernoulli):
        return Parts((q.logits,), lambda new: td.Bernoulli(logits=new[0], validate_args=False))
    raise IntractableError(f"gradients are measured for Normal and Bernoulli latents, got {type(q).__name__}")
