"""How a circuit groups its outputs: a forest of regions.

A region is a set of outputs: those that it holds itself and those of its parts. Its product nodes multiply over both,
its sum nodes mix the products. A region that is no part of another is a root, and the circuit is the product over its
roots: one for a circuit, many for a mixture per output.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from silentgrad.errors import DomainError, ShapeError

ROOT = -1


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
class Structure:
    """A forest of regions over outputs 0, 1, ...

    Args:
        parents: The region that each region is a part of, or -1 for a root.
        outputs: The outputs that each region holds itself.

    Example:
        >>> pair_and_one = Structure(parents=(-1, 0, 0), outputs=((), (0, 1), (2,)))
        >>> pair_and_one.require(3)
    """

    parents: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.outputs):
            raise ShapeError(f"{len(self.parents)} parents for {len(self.outputs)} regions")
        parts = set(self.parents)
        for region, (parent, outputs) in enumerate(zip(self.parents, self.outputs, strict=True)):
            if not ROOT <= parent < len(self.parents):
                raise DomainError(f"region {region} is a part of region {parent}, which does not exist")
            if not outputs and region not in parts:
                raise DomainError(f"region {region} has neither outputs nor parts")
        reached = 0
        for level in self.levels():
            reached += level.regions
        if reached < len(self.parents):
            raise DomainError("the regions form a circle: some are no part of any root")

    def require(self, outputs: int) -> None:
        """Refuses a structure that does not hold each of so many outputs once."""
        held = sorted(itertools.chain.from_iterable(self.outputs))
        for before, after in itertools.pairwise(held):
            if before == after:
                raise ShapeError(f"the structure covers output {after} twice")
        missing = sorted(set(range(outputs)) - set(held))
        if missing:
            raise ShapeError(f"the structure does not cover output {missing[0]} ({len(missing)} of {outputs} missing)")
        if len(held) > outputs:
            raise ShapeError(f"the structure covers output {held[-1]}, but there are only {outputs}")

    def levels(self) -> list[Level]:
        """The levels, the deepest first.

        Where every region of a level holds outputs, they stand in the order of their first; elsewhere in the order of
        their parents. So neither a leaf nor a node of the upper levels has to be moved.
        """
        roots, parts = self._roots_and_parts()
        levels = []
        regions = self._in_order(roots)
        while regions:
            outputs, output_owners = _members(regions, self.outputs)
            of_level, part_owners = _members(regions, parts)
            below = self._in_order(of_level)
            positions = {region: position for position, region in enumerate(below)}
            moved = [positions[part] for part in of_level]
            levels.append(Level(len(regions), tuple(outputs), tuple(output_owners), tuple(moved), tuple(part_owners)))
            regions = below
        return levels[::-1]

    def _roots_and_parts(self) -> tuple[list[int], list[list[int]]]:
        """The roots, and the parts of each region."""
        roots: list[int] = []
        parts: list[list[int]] = [[] for _ in self.parents]
        for region, parent in enumerate(self.parents):
            if parent == ROOT:
                roots.append(region)
            else:
                parts[parent].append(region)
        return roots, parts

    def _in_order(self, regions: list[int]) -> list[int]:
        if all(self.outputs[region] for region in regions):
            return sorted(regions, key=lambda region: self.outputs[region][0])
        return regions


def _members(regions: list[int], of_each: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The members of these regions, one region after the other, and the position of the region of each member."""
    members: list[int] = []
    owners: list[int] = []
    for owner, region in enumerate(regions):
        members += of_each[region]
        owners += [owner] * len(of_each[region])
    return members, owners


def separate(groups: Sequence[Sequence[int]]) -> Structure:
    """One root for each group of outputs: the structure of a mixture.

    Args:
        groups: The outputs of each group.
    """
    outputs = tuple(map(tuple, groups))
    return Structure((ROOT,) * len(outputs), outputs)


def pixels(shape: Sequence[int]) -> list[list[int]]:
    """The outputs of each pixel of an image `(height, width)` or `(colours, height, width)`, row by row."""
    if len(shape) not in (2, 3):
        raise ShapeError(f"an image has shape (height, width) or (colours, height, width), got {tuple(shape)}")
    height, width = shape[-2:]
    numbers = torch.arange(torch.Size(shape).numel())
    groups: list[list[int]] = numbers.reshape(-1, height * width).T.tolist()
    return groups


def quad_tree(shape: Sequence[int]) -> Structure:
    """Blocks of 2 x 2 pixels, blocks of 2 x 2 of those, and so on up to the whole image.

    Where a side is odd, the last blocks are smaller. The colours of a pixel are in one region.

    Args:
        shape: Shape of an image, `(height, width)` or `(colours, height, width)`.

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
    return Structure((*parents, ROOT), tuple(outputs))


def binary_tree(outputs: int) -> Structure:
    """Pairs of neighbours, pairs of those, and so on; an odd one at the end goes up by itself.

    Args:
        outputs: Number of outputs.

    Example:
        >>> [level.regions for level in binary_tree(5).levels()]
        [5, 3, 2, 1]
    """
    if outputs < 1:
        raise ShapeError(f"a tree needs outputs, got {outputs}")
    parents: list[int] = []
    held: list[tuple[int, ...]] = []
    for output in range(outputs):
        held.append((output,))
    width = outputs
    while width > 1:
        first = len(parents) + width
        for position in range(width):
            parents.append(first + position // 2)
        width = -(-width // 2)
        held += [()] * width
    return Structure((*parents, ROOT), tuple(held))
