"""What commands say, with the names of folders and files as they are: no markup, no emoji codes, no wrapping."""

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

console = Console()


def say(line: str) -> None:
    """Prints a line."""
    print(line)


def verbatim(text: object) -> Text:
    """A cell of a table, or another part of what rich lays out."""
    return Text(str(text))


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
