"""What a function may do while `torch.vmap` or another transform of `torch.func` runs it.

Inside a transform a tensor can stand for many at once. A decision by its values is refused there, and so is an autograd
function that does not know how to be mapped. torch offers no public way to ask.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which `torch.compile` leaves as it is; its compiler is not imported unless it is at work."""

    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return functools.wraps(function)(called)


def transformed() -> bool:
    """Whether a transform of `torch.func` is running: then only operations that torch can transform will do."""
    return torch._C._functorch.maybe_current_level() is not None


def underlying(tensor: Tensor) -> Tensor:
    """The tensor with everything that it stands for, along dimensions of its own; for looking at its values only."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
