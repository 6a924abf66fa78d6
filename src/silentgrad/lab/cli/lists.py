"""`silentgrad data` and `silentgrad recipes`: what there is to train on, and settings that were measured."""

from pathlib import Path

from silentgrad.lab.cli.shared import show_table
from silentgrad.lab.data import load
from silentgrad.lab.data.catalogue import check, describe
from silentgrad.lab.experiments.recipes import NOT_MEASURED, RecipeError, recipe_header, recipe_names
from silentgrad.lab.tables import Column, Table
from silentgrad.registry import did_you_mean


def data(root: Path | None = None) -> None:
    """List the datasets and where they were found.

    Args:
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
    """
    columns = list(map(Column, ("name", "shape", "levels", "files", "found")))
    show_table(Table("", columns, [list(map(str, row)) for row in describe(root)]))


def get(name: str, root: Path | None = None) -> None:
    """Download a dataset, or say which files to put where.

    Args:
        name: Name of the dataset, one of those that silentgrad data shows.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
    """
    images = load(name, root)
    print(f"{name}: {len(images.train)} + {len(images.valid)} + {len(images.test)} images are there")


def verify(name: str, root: Path | None = None) -> None:
    """Verify a dataset's files.

    Args:
        name: Name of the dataset, one of those that silentgrad data shows.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
    """
    print(check(name, root))


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
