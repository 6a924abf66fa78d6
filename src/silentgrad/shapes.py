"""Shapes as users give them."""

from collections.abc import Sequence

import torch


def shape_of(given: int | Sequence[int]) -> torch.Size:
    """A shape that is given as a whole, or as the length of its only dimension.

    Example:
        >>> shape_of(3), shape_of((1, 2))
        (torch.Size([3]), torch.Size([1, 2]))
    """
    if isinstance(given, int):
        return torch.Size([given])
    return torch.Size(given)
