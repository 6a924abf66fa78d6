"""`silentgrad data` and `silentgrad recipes`: what there is to train on, and settings that were measured."""

from pathlib import Path

from silentgrad.lab.cli.shared import show_table
from silentgrad.lab.data.catalogue import describe, listed
from silentgrad.lab.experiments.recipes import NOT_MEASURED, RecipeError, recipe_header, recipe_names
from silentgrad.lab.tables import Column, Table
from silentgrad.registry import did_you_mean


def data(*names: str, root: Path | None = None) -> None:
    """List the datasets and where they were found; or download, verify and describe those that are named.

    Args:
        *names: Names of datasets, of which only what is missing is downloaded, or paths.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
    """
    for name in names:
        print(describe(name, root))
    if not names:
        rows = listed(root)
        show_table(Table("", list(map(Column, rows[0])), [list(map(str, row.values())) for row in rows]))


def recipes(*words: str, all: bool = False) -> None:  # noqa: A002
    """List the recipes: what each is, what to expect and how long it takes.

    Args:
        *words: Words that the names have to hold, whether they were measured or not.
        all: Whether to list the recipes that were not measured too.
    """
    names = recipe_names()
    chosen = [name for name in names if not [word for word in words if word not in name]]
    if not chosen:
        wanted = " ".join(words)
        raise RecipeError(f"no recipe's name holds {wanted!r}.{did_you_mean(wanted, names)}")
    headers = {name: recipe_header(name) for name in chosen}
    if not words and not all:
        headers = {name: header for name, header in headers.items() if header["time"] != NOT_MEASURED}
    for name, header in headers.items():
        print(f"{name}\n    {header['what']}\n    {header['expects']}; {header['time']}")
    if len(headers) < len(chosen):
        print(f"{len(chosen) - len(headers)} more were not measured: --all true lists them")
