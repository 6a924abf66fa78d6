"""Whatever runs a function: `torch.compile`, a transform such as `torch.vmap`, a backward pass, or autocast.

Inside a transform a tensor can stand for many at once. A decision by its values is refused there, and so is an autograd
function that does not know how to be mapped. Inside a backward pass activation checkpointing calls functions again.
torch offers no public way to ask for either.

**Under autocast** latents arrive in half precision, which has eleven digits of a binary fraction, and ends at 65,504 or
at the third decimal: sums over outputs, squares and exponentials leave both. Closed forms are in single precision at
least: their inputs are widened, which loses nothing, and they are computed outside autocast, so that they can be
differentiated there too.
"""

import copy
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, which `torch.compile` leaves as it is; its compiler is not imported unless it is at work."""

    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return functools.wraps(function)(called)


def transformed() -> bool:
    """Return whether a transform of `torch.func` is running: then only operations that torch can transform will do."""
    return torch._C._functorch.maybe_current_level() is not None


def require_untransformed(name: str) -> None:
    """Raise inside a transform of `torch.func`, for what differentiates or learns by itself.

    Raises:
        DomainError: A transform is running.
    """
    if not torch.compiler.is_compiling() and transformed():
        raise DomainError(
            f"{name} differentiates or learns within its own call, which no transform of torch.func allows: use "
            "autograd, or an estimator without a memory, such as RLOO"
        )


def in_backward() -> bool:
    """Return whether a backward pass is running: a call is then a recomputation by activation checkpointing."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def batched(tensor: Tensor) -> bool:
    """Return whether a tensor stands for those of several gradients at once, `is_grads_batched` of `autograd.grad`."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(tensor))


def underlying(tensor: Tensor) -> Tensor:
    """Return the tensor with everything that it stands for in dimensions of its own, to look at its values only."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


NARROW = (torch.float16, torch.bfloat16)


def widened(tensor: Tensor) -> Tensor:
    """Return the tensor in single precision if it was in half, itself if not."""
    if tensor.dtype in NARROW:
        return tensor.float()
    return tensor


def widened_latent(q: td.Distribution) -> td.Distribution:
    """Return the same latent with every parameter in single precision at least; itself if they are."""
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
