"""What commands say, with the names of folders and files as they are: no markup, no emoji codes, no wrapping."""

from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

NOBODYS_WIDTH = 250  # of what is no terminal, and so does not say how wide it is

console = Console()
if not console.is_terminal:
    console.width = NOBODYS_WIDTH


def say(line: str) -> None:
    """Prints a line."""
    print(line)


def verbatim(text: object) -> Text:
    """A cell of a table, or another part of what rich lays out."""
    return Text(str(text))


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table, whole: what does not fit into its column takes several lines."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(verbatim(head), overflow="fold")
    for row in rows:
        table.add_row(*map(verbatim, row))
    console.print(table)


def metrics(values: Mapping[str, float]) -> str:
    """The figures beside the bound."""
    return "   ".join(f"{name.upper()} {value:.3f}" for name, value in values.items())


def beside_bound(figure: float, sampled: float | None) -> str:
    """The ELBO by samples and the gap, where the bound is another number."""
    if sampled is None:
        return ""
    return f" (sampled ELBO {sampled:.4f}, gap {figure - sampled:+.4f})"


def bound(samples: int) -> str:
    """What a BPD was computed from, where that is not the ELBO."""
    if samples == 1:
        return ""
    return f" (importance-weighted bound, {samples} samples)"
