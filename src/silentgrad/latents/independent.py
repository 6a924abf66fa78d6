r"""What a latent's distribution says of z: its shape, which dimensions of it are examples, and where it has values.

`Independent` says which dimensions are latents, and is looked through.

**A support that moves** with the parameters of a latent has no score-function estimator.

.. math:: \nabla \int q(z) f(z)\, dz = \int q(z) f(z)\, \nabla \log q(z)\, dz

takes the derivative under the integral. Where the bounds of the integral depend on the parameters, as the ends of a
uniform latent do, Leibniz's rule has a term for each bound besides, which no sample tells of.

A distribution declares its support. That of a `TransformedDistribution` is the codomain of its last transform, which is
right only where every transform is applied to its whole domain. If one is not, its own parameters move the bounds.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.distributions import constraints

from silentgrad.errors import IntractableError


def shape_of(given: int | Sequence[int]) -> torch.Size:
    """Return a shape that is given as a whole, or as the length of its only dimension.

    Example:
        >>> shape_of(3), shape_of((1, 2))
        (torch.Size([3]), torch.Size([1, 2]))
    """
    if isinstance(given, int):
        return torch.Size([given])
    return torch.Size(given)


def base_of(q: td.Distribution) -> td.Distribution:
    """Return the latent inside any number of `Independent`."""
    while isinstance(q, td.Independent):
        q = q.base_dist
    return q


def device_of(q: td.Distribution) -> torch.device:
    """Return the device that a latent's parameters lie on."""
    for part in vars(q).values():
        if isinstance(part, Tensor):
            return part.device
        if isinstance(part, td.Distribution):
            return device_of(part)
    return torch.get_default_device()


def independent(base: td.Distribution, event_dims: int) -> td.Distribution:
    """Return the latent whose last dimensions, as many as said, are its event."""
    beyond = event_dims - len(base.event_shape)
    if beyond == 0:
        return base
    return td.Independent(base, beyond, validate_args=False)


def shape_of_one(q: td.Distribution) -> torch.Size:
    """Return the shape of one example's z: all dimensions but the first, unless q has no batch."""
    whole = q.batch_shape + q.event_shape
    return whole[min(1, len(q.batch_shape)) :]


def sum_over_latents(values: Tensor, examples: Sequence[int]) -> Tensor:
    """Sum over all dimensions beyond those of the examples; torch takes an empty list of dimensions for all."""
    beyond = tuple(range(len(examples), values.dim()))
    if not beyond:
        return values
    return values.sum(beyond)


def require_fixed_support(q: td.Distribution) -> None:
    """Raise if the score function of a latent is asked for, and its support depends on what is differentiated.

    A distribution that declares no support is taken to have a fixed one.

    Raises:
        IntractableError: The support moves.
    """
    if not (torch.is_grad_enabled() and moves(q)):
        return
    remedy = "no estimator that samples is unbiased for it"
    if q.has_rsample:
        remedy = "choose Reparameterized, or Exact if the decoder is tractable"
    raise IntractableError(
        f"the support of {type(base_of(q)).__name__} latents depends on their parameters, so an estimator that uses "
        f"the score, the gradient of log q(z), would be biased: {remedy}"
    )


def moves(q: td.Distribution) -> bool:
    """Return whether the bounds of a latent's support have a gradient."""
    base = base_of(q)
    if isinstance(base, td.MixtureSameFamily):
        return moves(base.component_distribution)
    if isinstance(base, td.TransformedDistribution) and type(base).support is td.TransformedDistribution.support:
        return _transformed_moves(base)
    try:
        return _differentiable(base.support)
    except NotImplementedError:
        return False


def _transformed_moves(q: td.TransformedDistribution) -> bool:
    if moves(q.base_dist):
        return True
    whole = True
    support = q.base_dist.support
    for transform in q.transforms:
        whole = whole and _same(support, transform.domain)
        support = transform.codomain
        if _differentiable(support) or (not whole and _differentiable(transform)):
            return True
    return False


def _same(support: object, domain: object) -> bool:
    """Return whether two constraints allow the same values; those that are no intervals go by their class."""
    first, second = _bounds(support), _bounds(domain)
    if first is None or second is None:
        return first is second and type(support) is type(domain)
    return all(bool(torch.all(torch.as_tensor(a == b))) for a, b in zip(first, second, strict=True))


def _bounds(support: object) -> tuple[float | Tensor, float | Tensor] | None:
    """Return the ends of an interval; None for a constraint of another kind."""
    if isinstance(support, type(constraints.real_vector)):
        return _bounds(support.base_constraint)
    if support is not constraints.real and not hasattr(support, "lower_bound") and not hasattr(support, "upper_bound"):
        return None
    return getattr(support, "lower_bound", -torch.inf), getattr(support, "upper_bound", torch.inf)


def _differentiable(thing: object, within: tuple[object, ...] = ()) -> bool:
    """Return whether a constraint or a transform is made of anything that has a gradient."""
    if isinstance(thing, Tensor):
        return thing.requires_grad
    inside = (*within, thing)
    return any(_differentiable(part, inside) for part in _parts(thing) if not any(part is one for one in inside))


def _parts(thing: object) -> Iterable[object]:
    if isinstance(thing, list | tuple):
        return thing
    if isinstance(thing, nn.Module):
        return thing.parameters()
    if isinstance(thing, constraints.Constraint | td.Transform):
        return [part for name, part in vars(thing).items() if name != "_cached_x_y"]  # of a transform: latest values
    return ()
