"""`silentgrad compare`."""

from pathlib import Path

from silentgrad.lab.cli.console import say, show_table
from silentgrad.lab.cli.options import require_new_output
from silentgrad.lab.reports.compare import write_comparison
from silentgrad.lab.reports.rounding import number


def compare(*runs: Path, output: Path = Path("compare.html")) -> None:
    """Compares runs: a table of what differs and where they ended, and a page that shows their curves too.

    Runs of different data have tables of their own.

    Args:
        *runs: Folders of the runs, one after the other.
        output: An .html file to write the page to.
    """
    require_new_output(output, ".html")
    compared = write_comparison(runs, output)
    for data, (results, settings) in compared.items():
        if len(compared) > 1:
            say(f"{data}:")
        heads = [column.name for column in results.columns]
        show_table(heads, [list(map(number, row)) for row in results.rows])
        for run, own in settings.items():
            said = ", ".join(f"{name} {value}" for name, value in own.items())
            say(f"{run}: {said or 'the same settings'}")
    say(f"page: {output}")
