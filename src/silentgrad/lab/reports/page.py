"""Pages: one self-contained HTML file each, without scripts or requests, readable years later from the file alone.

A page is made of blocks, which the template `page.html.j2` lays out. A text is a paragraph. Every text is escaped.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import yaml  # type: ignore[import-untyped]
from matplotlib.figure import Figure

from silentgrad.lab.printing import render
from silentgrad.lab.store.files import write_atomically
from silentgrad.lab.tables import Table


class Tile(NamedTuple):
    """A figure in large print, a number or text, with small print under it."""

    title: str
    value: object
    remark: str = ""


class Tiles(NamedTuple):
    """The figures that matter."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Picture:
    """A figure inside the page, and its caption under it."""

    figure: Figure
    caption: str  # sentences, which describe it to readers who do not see it too
    small: bool = False  # at most about half the width of a desktop screen

    @cached_property
    def png(self) -> bytes:
        content = io.BytesIO()
        self.figure.savefig(content, format="png")
        return content.getvalue()

    @property
    def address(self) -> str:
        """The figure as a data address."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


class CommandLine(NamedTuple):
    """A command to copy."""

    text: str


class Listing(NamedTuple):
    """Named values, shown as YAML."""

    values: Mapping[str, object]

    @property
    def yaml(self) -> str:
        return str(yaml.safe_dump(dict(self.values), sort_keys=False, allow_unicode=True))


class Details(NamedTuple):
    """Blocks behind a title that unfolds them."""

    title: str
    blocks: Sequence["Block"]


Block = str | Table | Tiles | Picture | CommandLine | Listing | Details


class Section(NamedTuple):
    """A part of a page, with a heading unless its title is empty."""

    title: str
    blocks: Sequence[Block]


class Page(NamedTuple):
    """A page: its heading, the blocks under it, and the parts that follow."""

    title: str
    blocks: Sequence[Block]
    sections: Sequence[Section] = ()

    def html(self) -> str:
        return render("page.html.j2", page=self)

    def write(self, path: Path) -> Path:
        """Write the page, whole or not at all, and return its path."""
        write_atomically(path, self.html().encode())
        return path
