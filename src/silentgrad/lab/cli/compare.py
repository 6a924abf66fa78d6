"""`silentgrad compare`."""

from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from silentgrad.lab.cli.console import console, say, verbatim
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.reports.compare import write_comparison
from silentgrad.lab.reports.html import number
from silentgrad.lab.runs.tables import Table as Record
from silentgrad.lab.training.ranges import ConfigError


def compare(*runs: Path, output: Path = Path("compare.html")) -> None:
    """Compares runs: a table of what differs and where they ended, and a page that shows their curves too.

    Args:
        *runs: Folders of the runs, one after the other.
        output: An .html file to write the page to.
    """
    require_folder(output.parent, "--output")
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder: give an .html file")
    results, settings = write_comparison(runs, output)
    console.print(_for_console(results))
    for run, own in settings.items():
        said = ", ".join(f"{name} {value}" for name, value in own.items())
        say(f"{run}: {said or 'the same settings'}")
    say(f"page: {output}")


def _for_console(record: Record) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for column in record.columns:
        table.add_column(verbatim(column.name), no_wrap=column.name != "run", overflow="fold")
    for row in record.rows:
        table.add_row(*map(verbatim, map(number, row)))
    return table
