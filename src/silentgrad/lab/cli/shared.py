"""Where commands show, what they may write, and how interrupted ones go on.

Names of folders and files are shown as they are: no markup, no emoji codes, no wrapping.
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from silentgrad.lab.printing import with_error
from silentgrad.lab.settings import ConfigError
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.tables import Findings, Table, terminal

if TYPE_CHECKING:  # with torch, which is slow to import
    from silentgrad.lab.store.records import Evaluated

NOBODYS_WIDTH = 250  # of what is no terminal, and so does not say how wide it is

console = Console()
if not console.is_terminal:
    console.width = NOBODYS_WIDTH


def show_table(table: Table) -> None:
    console.print(terminal(table))
    if table.caption:
        print(f"{table.caption}\n")  # the title of another table may follow


def show_findings(found: Findings) -> None:
    """Print the tables of an experiment, what they say and how they were made."""
    for table in found.tables:
        show_table(table)
    for sentence in (*found.verdicts, *found.notes):
        print(sentence)


def told(found: "Evaluated", samples: int, limit: float | None = None) -> Iterator[str]:
    """Yield the figures of a test: the bound, what it was computed from and its limit; then the others."""
    unit, parts, beyond = found.unit, [], "" if limit is None else f" (pPCA limit {limit:.4f})"
    if samples > 1:
        parts.append(f"importance-weighted bound, {samples} samples")
    if found.sampled is not None:
        gap = f"gap {with_error(found.figure - found.sampled, found.sampled_error)}"
        if samples > 1:
            gap = f"gain {found.sampled - found.figure:.4f}"
        parts += [f"sampled ELBO {found.sampled:.4f}", gap]
    beside = f" ({', '.join(parts)})" if parts else ""
    yield f"test {unit.title} [bold]{found.figure:.4f}[/bold]{unit.of}{beside}{beyond}"
    yield "   ".join(f"{unit.title_of(name)} {value:.3f}" for name, value in found.metrics.items())
    yield from (f"KLD {found.kld:.2f}", f"active latents {found.active}", str(found.exactness))


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came in work that these words after `silentgrad` go on with; the same as before if there are none."""

    def __init__(self, *words: str) -> None:
        super().__init__(*words)
        self.words = words


@contextlib.contextmanager
def going_on(folder: Path | None = None) -> Iterator[None]:
    """Say of work that Ctrl-C interrupts how to go on: by a command of its own for a run, once its folder is made."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None or not RunFolder(folder).config.exists():
            raise Interrupted from None
        raise Interrupted("train", "--folder", str(folder), "--resume", "true") from None


def require_output(path: Path, suffix: str, folder_is_made: bool = False) -> None:
    """Refuse a file that could not be written at the end; the message names --output."""
    if folder_is_made:
        require_folder(path.parent, "--output")
    if path.suffix != suffix:
        raise ConfigError(f"--output has to be a {suffix} file, got {path}")
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder: give a {suffix} file")
    if not folder_is_made and not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}")


def require_folder(path: Path, option: str = "--folder") -> None:
    """Refuse a place where no run can be kept: a file stands in the way, or Lightning cannot read the name."""
    if "::" in str(path):
        raise ConfigError(f"{option} {path}: a name with :: is taken for an address; choose another")
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"{option} {path}: {place} is a file, not a folder")
            return


def next_folder(name: str) -> Path:
    """Return the first of runs/NAME-001, runs/NAME-002, ... that does not exist, by the name or path of the data."""
    folders = (Path("runs") / f"{Path(name).stem}-{number:03}" for number in itertools.count(1))
    return next(folder for folder in folders if not folder.exists())
