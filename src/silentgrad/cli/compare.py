"""`silentgrad compare`."""

import json
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from silentgrad.cli.options import require_folder
from silentgrad.reports.compare import write_comparison
from silentgrad.reports.html import number
from silentgrad.training.ranges import ConfigError

OPTIONS_WITH_VALUES = ("--output", "--config")


def compare(runs: list[str], output: Path = Path("compare.html")) -> None:
    """Compares runs: a table of what differs and where they ended, and a page that shows their curves too.

    Args:
        runs: The runs' folders, one after the other.
        output: The page.
    """
    require_folder(output.parent, "--output")
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder: give an .html file")
    figures, settings = write_comparison([Path(run) for run in runs], output)
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for name in figures.names:
        table.add_column(name, no_wrap=name != "run", overflow="fold")
    for row in figures.rows:
        table.add_row(*(escape(number(cell)) for cell in row))
    console = Console()
    console.print(table)
    for row, own in zip(figures.rows, settings, strict=True):
        said = ", ".join(f"{name} {value}" for name, value in own.items())
        console.print(escape(f"{row[0]}: {said}" if said else f"{row[0]}: the same settings"), highlight=False)
    console.print(f"page: {output}", soft_wrap=True, highlight=False)


def with_list_of_runs(words: list[str]) -> list[str]:
    """Turns `compare RUN RUN ...` into the one list that the parser takes."""
    if words[:1] != ["compare"]:
        return words
    runs: list[str] = []
    options: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word in OPTIONS_WITH_VALUES:
            options += [word, *[value for value in [next(rest, None)] if value is not None]]
        else:
            (options if word.startswith("-") else runs).append(word)
    listed = runs if not runs or runs[0].startswith("[") else [json.dumps(runs)]
    return ["compare", *options, *listed]
