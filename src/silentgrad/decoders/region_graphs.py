r"""Region graphs: the forest of regions in which a circuit groups its outputs.

A region is a set of outputs: those that it holds itself and those of its parts. Its product nodes multiply over both,
its sum nodes mix the products. A region that is no part of another is a root, and the circuit is the product over its
roots: one for a circuit, many for a mixture per output.

**Learned from data**, it is the tree of outputs with the most mutual information along its edges. Chow and Liu's tree
is a maximum spanning tree. With every output's region a mixture over hidden states, and its parts the regions of its
children, the circuit is a hidden Chow-Liu tree. Mutual information is that of Gaussian variables, :math:`-\tfrac12
\log(1 - \rho^2)`, so the order of the edges is that of :math:`|\rho|`.

References:
    Chow and Liu (1968), Approximating discrete probability distributions with dependence trees.
    Liu and Van den Broeck (2021), Tractable regularization of probabilistic circuits.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from silentgrad.errors import DomainError, ShapeError

ROOT = -1
Per = Literal["output", "pixel", "example"]  # what is mixed by itself


@dataclass(frozen=True)
class Level:
    """Regions of one distance from the roots.

    Args:
        regions: Number of regions.
        outputs: Outputs that these regions hold, region by region.
        output_owners: The region's position in this level, for each of these outputs.
        parts: Positions of these regions' parts in the level below, region by region.
        part_owners: The region's position in this level, for each of these parts.
    """

    regions: int
    outputs: tuple[int, ...]
    output_owners: tuple[int, ...]
    parts: tuple[int, ...]
    part_owners: tuple[int, ...]


@dataclass(frozen=True)
class RegionGraph:
    """A forest of regions over outputs 0, 1, ...

    Args:
        parents: The region that each region is a part of, or -1 for a root.
        outputs: The outputs that each region holds itself.

    Example:
        >>> pair_and_one = RegionGraph(parents=(-1, 0, 0), outputs=((), (0, 1), (2,)))
        >>> pair_and_one.require(3)
    """

    parents: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.outputs):
            raise ShapeError(f"{len(self.parents)} parents for {len(self.outputs)} regions")
        if not self.parents:
            raise ShapeError("a region graph needs at least one region")
        parts = set(self.parents)
        for region, (parent, outputs) in enumerate(zip(self.parents, self.outputs, strict=True)):
            if not ROOT <= parent < len(self.parents):
                raise DomainError(f"region {region} is a part of region {parent}, which does not exist")
            if not outputs and region not in parts:
                raise DomainError(f"region {region} has neither outputs nor parts")
        if sum(level.regions for level in self.levels()) < len(self.parents):
            raise DomainError("the regions form a circle: some are no part of any root")

    def require(self, outputs: int) -> None:
        """Refuse a region graph that does not hold each of so many outputs once."""
        held = sorted(itertools.chain.from_iterable(self.outputs))
        for before, after in itertools.pairwise(held):
            if before == after:
                raise ShapeError(f"the region graph covers output {after} twice")
        missing = sorted(set(range(outputs)) - set(held))
        if missing:
            raise ShapeError(
                f"the region graph does not cover output {missing[0]} ({len(missing)} of {outputs} missing)"
            )
        if len(held) > outputs:
            raise ShapeError(f"the region graph covers output {held[-1]}, but there are only {outputs}")

    def levels(self) -> list[Level]:
        """Return the levels, the deepest first.

        The roots keep their order, in which a mixture tells its groups apart. Below them, where every region of a level
        holds outputs, they stand in the order of their first; elsewhere in the order of their parents. So neither a
        leaf nor a node of the upper levels has to be moved.
        """
        regions = [region for region, parent in enumerate(self.parents) if parent == ROOT]
        parts: list[list[int]] = [[] for _ in self.parents]
        for region, parent in enumerate(self.parents):
            if parent != ROOT:
                parts[parent].append(region)
        levels = []
        while regions:
            outputs, output_owners = _members(regions, self.outputs)
            of_level, part_owners = _members(regions, parts)
            below = list(of_level)
            if all(self.outputs[region] for region in below):
                below.sort(key=lambda region: self.outputs[region][0])
            positions = {region: position for position, region in enumerate(below)}
            moved = tuple(positions[part] for part in of_level)
            levels.append(Level(len(regions), outputs, output_owners, moved, part_owners))
            regions = below
        return levels[::-1]


def _members(regions: list[int], of_each: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the members of these regions, region by region, and the position of the region of each."""
    members = itertools.chain.from_iterable(of_each[region] for region in regions)
    owners = [owner for owner, region in enumerate(regions) for _ in of_each[region]]
    return tuple(members), tuple(owners)


def separate(groups: Sequence[Sequence[int]]) -> RegionGraph:
    """Return one root for each group of outputs: the region graph of a mixture."""
    outputs = tuple(map(tuple, groups))
    return RegionGraph((ROOT,) * len(outputs), outputs)


def pixels(shape: Sequence[int]) -> list[list[int]]:
    """Return the outputs of each pixel of an image `(height, width)` or `(colors, height, width)`, row by row."""
    if len(shape) not in (2, 3):
        raise ShapeError(f"an image has shape (height, width) or (colors, height, width), got {tuple(shape)}")
    if min(shape) < 1:
        raise ShapeError(f"an image needs pixels, got shape {tuple(shape)}")
    height, width = shape[-2:]
    numbers = torch.arange(torch.Size(shape).numel())
    groups: list[list[int]] = numbers.reshape(-1, height * width).T.tolist()
    return groups


def quad_tree(shape: Sequence[int]) -> RegionGraph:
    """Return blocks of 2 x 2 pixels, blocks of 2 x 2 of those, and so on up to the whole image.

    Where a side is odd, the last blocks are smaller. The colors of a pixel are in one region.

    Args:
        shape: Shape of an image, `(height, width)` or `(colors, height, width)`.

    Example:
        >>> [level.regions for level in quad_tree((1, 28, 28)).levels()]
        [784, 196, 49, 16, 4, 1]
    """
    held = pixels(shape)
    height, width = shape[-2:]
    parents: list[int] = []
    outputs = list(map(tuple, held))
    while height * width > 1:
        above = -(-height // 2), -(-width // 2)
        first = len(parents) + height * width
        for row, column in itertools.product(range(height), range(width)):
            parents.append(first + row // 2 * above[1] + column // 2)
        outputs += [()] * (above[0] * above[1])
        height, width = above
    return RegionGraph((*parents, ROOT), tuple(outputs))


def binary_tree(outputs: int) -> RegionGraph:
    """Return pairs of neighbors, pairs of those, and so on; an odd one at the end goes up by itself.

    Args:
        outputs: Number of outputs.

    Example:
        >>> [level.regions for level in binary_tree(5).levels()]
        [5, 3, 2, 1]
    """
    if outputs < 1:
        raise ShapeError(f"a tree needs outputs, got {outputs}")
    return quad_tree((1, outputs))


def default_region_graph(event_shape: torch.Size) -> RegionGraph:
    """Return a quad-tree for images, a binary tree for vectors."""
    if len(event_shape) in (2, 3):
        return quad_tree(event_shape)
    return binary_tree(event_shape.numel())


def mixtures(event_shape: torch.Size, per: Per | Sequence[Sequence[int]]) -> RegionGraph:
    """Return the region graph of mixtures per output, per pixel, per example or per group."""
    return separate(groups_of(event_shape, per)[0])


def groups_of(
    event_shape: torch.Size, per: Per | Sequence[Sequence[int]]
) -> tuple[Sequence[Sequence[int]], torch.Size]:
    """Return the outputs of each mixture, and the shape in which the mixtures lie."""
    outputs = range(event_shape.numel())
    if not isinstance(per, str):
        return per, torch.Size([len(per)])
    if per == "output":
        return [[output] for output in outputs], event_shape
    if per == "pixel":
        return pixels(event_shape), event_shape[-2:]
    if per == "example":
        return [outputs], torch.Size()
    raise DomainError(f"per has to be 'output', 'pixel', 'example' or groups of outputs, got {per!r}")


def chow_liu(data: Tensor) -> RegionGraph:
    """Return the tree of outputs in which those that vary together are neighbors.

    Args:
        data: Examples `(examples, *event_shape)`.

    Example:
        >>> first = torch.linspace(-1, 1, 50)
        >>> last = torch.cos(7 * first)
        >>> chow_liu(torch.stack([first, last, first + last], 1)).parents
        (2, 2, -1)
    """
    if data.dim() < 2 or data.numel() == 0:
        raise ShapeError(f"expected data of shape (examples, *event_shape), got {tuple(data.shape)}")
    if not data.isfinite().all():
        raise DomainError("data contains NaN or infinity")
    centered = data.flatten(1).double()
    centered = centered - centered.mean(0)
    scaled = centered / centered.norm(dim=0).clamp(min=torch.finfo(centered.dtype).tiny)
    neighbors = _spanning_tree((scaled.T @ scaled).abs())  # by correlations
    _, parents = _breadth_first(neighbors, _center(neighbors))
    return RegionGraph(tuple(parents), tuple((output,) for output in range(len(parents))))


def _spanning_tree(strengths: Tensor) -> list[list[int]]:
    """Return neighbors of each output in the tree of the greatest total strength (Prim's algorithm)."""
    outputs = len(strengths)
    neighbors: list[list[int]] = [[] for _ in range(outputs)]
    strongest, nearest = strengths[0].clone(), torch.zeros(outputs, dtype=torch.long)
    strongest[0] = -torch.inf
    for _ in range(outputs - 1):
        added = int(strongest.argmax())
        other = int(nearest[added])
        neighbors[added].append(other)
        neighbors[other].append(added)
        strongest[added] = -torch.inf
        closer = (strengths[added] > strongest) & strongest.isfinite()
        strongest = torch.where(closer, strengths[added], strongest)
        nearest = torch.where(closer, added, nearest)
    return neighbors


def _center(neighbors: list[list[int]]) -> int:
    """Return the middle of the longest path: a tree rooted there has the fewest levels."""
    start = _breadth_first(neighbors, 0)[0][-1]
    order, parents = _breadth_first(neighbors, start)
    path = [order[-1]]
    while parents[path[-1]] != ROOT:
        path.append(parents[path[-1]])
    return path[len(path) // 2]


def _breadth_first(neighbors: list[list[int]], root: int) -> tuple[list[int], list[int]]:
    """Return the outputs in the order of their distance from the root, and the parent of each."""
    parents = [ROOT] * len(neighbors)
    order = [root]
    for output in order:
        for neighbor in neighbors[output]:
            if neighbor != parents[output]:
                parents[neighbor] = output
                order.append(neighbor)
    return order, parents
