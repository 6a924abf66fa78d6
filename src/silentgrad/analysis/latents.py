"""A latent taken apart: the tensors it is made of, and how to make the same latent of others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from torch import Tensor
from torch import distributions as td

from silentgrad.latents.families import Family


class Parts(NamedTuple):
    """The parameters of a latent, `(batch, ...)` each, and the function from parameters to a latent."""

    tensors: tuple[Tensor, ...]
    rebuild: Callable[[Sequence[Tensor]], td.Distribution]

    @classmethod
    def of(cls, q: td.Distribution, family: Family) -> Self:
        """Takes a latent of a family apart."""

        def rebuild(tensors: Sequence[Tensor]) -> td.Distribution:
            return family.rebuild(q, tensors)

        return cls(family.parameters(q), rebuild)
