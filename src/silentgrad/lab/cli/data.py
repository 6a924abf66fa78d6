"""`silentgrad data`: datasets on this machine."""

from pathlib import Path

from silentgrad.lab.cli.console import show_table
from silentgrad.lab.data import load
from silentgrad.lab.data.catalogue import check, describe
from silentgrad.lab.tables import Column, Table


def list_all(root: Path | None = None) -> None:
    """Lists the datasets and where they were found.

    Args:
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
    """
    columns = list(map(Column, ("name", "shape", "levels", "files", "found")))
    show_table(Table("", columns, [list(map(str, row)) for row in describe(root)]))


def get(name: str, root: Path | None = None) -> None:
    """Downloads a dataset, or says which files to put where.

    Args:
        name: Name of the dataset, one of those that silentgrad data list shows.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
    """
    images = load(name, root)
    print(f"{name}: {len(images.train)} + {len(images.valid)} + {len(images.test)} images are there")


def verify(name: str, root: Path | None = None) -> None:
    """Verifies a dataset's files.

    Args:
        name: Name of the dataset, one of those that silentgrad data list shows.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
    """
    print(check(name, root))
