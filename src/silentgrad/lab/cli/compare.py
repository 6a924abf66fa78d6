"""`silentgrad compare`."""

import json
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from silentgrad.lab.cli.console import console, say, verbatim
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.reports.compare import write_comparison
from silentgrad.lab.reports.html import number
from silentgrad.lab.training.ranges import ConfigError

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
        table.add_column(verbatim(name), no_wrap=name != "run", overflow="fold")
    for row in figures.rows:
        table.add_row(*(verbatim(number(cell)) for cell in row))
    console.print(table)
    for row, own in zip(figures.rows, settings, strict=True):
        said = ", ".join(f"{name} {value}" for name, value in own.items())
        say(f"{row[0]}: {said or 'the same settings'}")
    say(f"page: {output}")


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
    if not runs or _is_list(runs):
        return ["compare", *options, *runs]
    return ["compare", *options, json.dumps(runs, ensure_ascii=False)]


def _is_list(runs: list[str]) -> bool:
    """Whether the runs are in one word already, [RUN,RUN]."""
    return len(runs) == 1 and runs[0].startswith("[") and not Path(runs[0]).exists()
