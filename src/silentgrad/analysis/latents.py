"""A latent taken apart: the tensors it is made of, and how to make the same latent of others."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from torch import Tensor
from torch import distributions as td

from silentgrad.errors import UnregisteredLatentError
from silentgrad.latents.families import Family, family_of
from silentgrad.latents.independent import base_of, independent


class Parts(NamedTuple):
    """The parameters of a latent, `(batch, ...)` each, the function from parameters to a latent, and their names."""

    tensors: tuple[Tensor, ...]
    rebuild: Callable[[Sequence[Tensor]], td.Distribution]
    names: tuple[str, ...]

    @classmethod
    def of(cls, q: td.Distribution, family: Family) -> Self:
        """Takes a latent of a family apart."""

        def rebuild(tensors: Sequence[Tensor]) -> td.Distribution:
            return family.rebuild(q, tensors)

        return cls(family.parameters(q), rebuild, family.arguments)

    @classmethod
    def of_any(cls, q: td.Distribution) -> Self:
        """Takes a latent apart; one of no family by the arguments of its class, which it has as attributes."""
        try:
            return cls.of(q, family_of(q))
        except UnregisteredLatentError:
            tensors, constants = _arguments(base_of(q))
        build: Callable[..., td.Distribution] = type(base_of(q))

        def rebuild(others: Sequence[Tensor]) -> td.Distribution:
            named = dict(zip(tensors, others, strict=True))
            return independent(build(**named, **constants, validate_args=False), len(q.event_shape))

        return cls(tuple(tensors.values()), rebuild, tuple(tensors))


def _arguments(base: td.Distribution) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arguments that a distribution was made with: real tensors, and all others."""
    names = list(inspect.signature(type(base)).parameters)
    names.remove("validate_args")
    if "logits" in names and "probs" in names:
        names.remove("probs")  # either of both says all
    tensors: dict[str, Tensor] = {}
    constants: dict[str, Any] = {}
    for name in names:
        value = getattr(base, name)
        if isinstance(value, Tensor) and value.is_floating_point():
            tensors[name] = value
        else:
            constants[name] = value
    return tensors, constants
