"""`silentgrad compare`."""

from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from silentgrad.lab.cli.console import console, say, verbatim
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.reports.compare import write_comparison
from silentgrad.lab.reports.html import number
from silentgrad.lab.training.ranges import ConfigError


def compare(*runs: Path, output: Path = Path("compare.html")) -> None:
    """Compares runs: a table of what differs and where they ended, and a page that shows their curves too.

    Args:
        *runs: The runs' folders, one after the other.
        output: The page.
    """
    require_folder(output.parent, "--output")
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder: give an .html file")
    figures, settings = write_comparison(runs, output)
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for name in figures.names:
        table.add_column(verbatim(name), no_wrap=name != "run", overflow="fold")
    for row in figures.rows:
        table.add_row(*(verbatim(number(cell)) for cell in row))
    console.print(table)
    for row, own in zip(figures.rows, settings, strict=True):
        said = ", ".join(f"{name} {value}" for name, value in own.items())
        say(f"{row[0]}: {said or 'the same settings'}")
    say(f"page: {output}")
