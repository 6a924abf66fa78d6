"""Draws the picture of docs/circuits.md: how a quad-tree groups the pixels of an 8 x 8 image.

python tools/quad_tree_picture.py
"""

from pathlib import Path

from silentgrad.decoders import quad_tree
from silentgrad.decoders.region_graphs import RegionGraph

SIDE = 8
CELL = 18
GAP = 36
COLOURS = ("#dbe9f6", "#9ecae1", "#4292c6", "#08519c")
TITLES = ("leaves of each pixel", "2 x 2 pixels", "4 x 4 pixels", "the whole image")
PICTURE = Path(__file__).parents[1] / "docs" / "quad_tree.svg"


def pixels_of(region_graph: RegionGraph) -> list[list[int]]:
    """The pixels of each region, its parts' among them."""
    pixels = [list(outputs) for outputs in region_graph.outputs]
    for region, parent in enumerate(region_graph.parents):  # a part comes before what it is a part of
        if parent > region:
            pixels[parent] += pixels[region]
    return pixels


def squares(regions: list[list[int]], left: int, colour: str) -> str:
    """Regions as squares."""
    drawn = ""
    for region in regions:
        row, column = divmod(min(region), SIDE)
        side = round(len(region) ** 0.5) * CELL
        x, y = left + column * CELL, 30 + row * CELL
        drawn += f'<rect x="{x + 1}" y="{y + 1}" width="{side - 2}" height="{side - 2}" fill="{colour}"/>\n'
    return drawn


def main() -> None:
    regions = pixels_of(quad_tree((SIDE, SIDE)))
    width = len(TITLES) * (SIDE * CELL + GAP)
    body = ""
    for place, title in enumerate(TITLES):
        left = place * (SIDE * CELL + GAP) + GAP // 2
        level = [region for region in regions if len(region) == 4**place]
        body += f'<text x="{left}" y="18" font-family="sans-serif" font-size="13">{title}</text>\n'
        body += squares(level, left, COLOURS[place])
    height = SIDE * CELL + 40
    PICTURE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n<rect width="100%" height="100%" fill="white"/>\n{body}</svg>\n'
    )


if __name__ == "__main__":
    main()
