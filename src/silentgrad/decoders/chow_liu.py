r"""A structure learned from data: the tree of outputs with the most mutual information along its edges.

Chow and Liu's tree is a maximum spanning tree. With every output's region a mixture over hidden states, and its parts
the regions of its children, the circuit is a hidden Chow-Liu tree. Mutual information is that of Gaussian variables,
:math:`-\tfrac12 \log(1 - \rho^2)`, so the order of the edges is that of :math:`|\rho|`.

References:
    Chow and Liu (1968), Approximating discrete probability distributions with dependence trees.
    Liu and Van den Broeck (2021), Tractable regularization of probabilistic circuits.
"""

import torch
from torch import Tensor

from silentgrad.decoders.structures import ROOT, Structure
from silentgrad.errors import DomainError, ShapeError


def chow_liu(data: Tensor) -> Structure:
    """The tree of outputs in which those that vary together are neighbours.

    Args:
        data: Examples `(examples, *event_shape)`.

    Example:
        >>> first = torch.linspace(-1, 1, 50)
        >>> last = torch.cos(7 * first)
        >>> chow_liu(torch.stack([first, last, first + last], 1)).parents
        (2, 2, -1)
    """
    if data.dim() < 2 or len(data) == 0:
        raise ShapeError(f"expected data of shape (examples, *event_shape), got {tuple(data.shape)}")
    if not data.isfinite().all():
        raise DomainError("data contains NaN or infinity")
    neighbours = _spanning_tree(_correlations(data.flatten(1).double()).abs())
    root = _centre(neighbours)
    parents = _parents(neighbours, root)
    return Structure(tuple(parents), tuple((output,) for output in range(len(parents))))


def _correlations(data: Tensor) -> Tensor:
    centred = data - data.mean(0)
    norms = centred.norm(dim=0)
    scaled = centred / norms.clamp(min=torch.finfo(data.dtype).tiny)
    return scaled.T @ scaled


def _spanning_tree(strengths: Tensor) -> list[list[int]]:
    """Neighbours of each output in the tree of the greatest total strength (Prim's algorithm)."""
    outputs = len(strengths)
    neighbours: list[list[int]] = [[] for _ in range(outputs)]
    strongest, nearest = strengths[0].clone(), torch.zeros(outputs, dtype=torch.long)
    strongest[0] = -torch.inf
    for _ in range(outputs - 1):
        added = int(strongest.argmax())
        other = int(nearest[added])
        neighbours[added].append(other)
        neighbours[other].append(added)
        strongest[added] = -torch.inf
        closer = (strengths[added] > strongest) & strongest.isfinite()
        strongest = torch.where(closer, strengths[added], strongest)
        nearest = torch.where(closer, added, nearest)
    return neighbours


def _centre(neighbours: list[list[int]]) -> int:
    """The middle of the longest path: a tree rooted there has the fewest levels."""
    start = _breadth_first(neighbours, 0)[0][-1]
    order, parents = _breadth_first(neighbours, start)
    path = [order[-1]]
    while parents[path[-1]] != ROOT:
        path.append(parents[path[-1]])
    return path[len(path) // 2]


def _parents(neighbours: list[list[int]], root: int) -> list[int]:
    return _breadth_first(neighbours, root)[1]


def _breadth_first(neighbours: list[list[int]], root: int) -> tuple[list[int], list[int]]:
    """The outputs in the order of their distance from the root, and the parent of each."""
    parents = [ROOT] * len(neighbours)
    order = [root]
    for output in order:
        for neighbour in neighbours[output]:
            if neighbour != parents[output]:
                parents[neighbour] = output
                order.append(neighbour)
    return order, parents
