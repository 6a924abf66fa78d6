"""Recipes: complete settings in YAML, in the package, each with a header that says what to expect of it."""

import difflib
import re
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.table import Table

from silentgrad.errors import SilentgradError

FOLDER = Path(str(files("silentgrad") / "recipes"))


class RecipeError(SilentgradError):
    """There is no such recipe."""


def recipe_path(name: str) -> Path:
    """The file of a recipe."""
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise RecipeError(f"there is no recipe {name!r}{hint} `silentgrad recipes` lists them all")
    return path


def names() -> list[str]:
    """All recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def header(name: str) -> dict[str, str]:
    """What a recipe's header says: `expects`, `time` and so on, in comments `# key: value`."""
    return dict(re.findall(r"^# (\w+): (.*)$", recipe_path(name).read_text(), re.MULTILINE))


def recipes() -> None:
    """Lists the recipes, what each is, what to expect and how long it takes."""
    table = Table("recipe", "what", "expects", "time")
    for name in names():
        said = header(name)
        table.add_row(name, said.get("what", ""), said.get("expects", ""), said.get("time", ""))
    Console().print(table)
