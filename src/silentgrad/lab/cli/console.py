"""Output of commands, with the names of folders and files as they are: no markup, no emoji codes, no wrapping."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from silentgrad.lab.printing import with_error
from silentgrad.lab.tables import Table, terminal

if TYPE_CHECKING:  # with torch, which is slow to import
    from silentgrad.lab.runs.findings import Findings
    from silentgrad.lab.store.records import Evaluated

NOBODYS_WIDTH = 250  # of what is no terminal, and so does not say how wide it is

console = Console()
if not console.is_terminal:
    console.width = NOBODYS_WIDTH


def show_table(table: Table) -> None:
    console.print(terminal(table))
    if table.caption:
        print(table.caption)


def show_findings(found: "Findings") -> None:
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
