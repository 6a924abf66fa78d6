"""Recipes: complete settings in YAML, in the package, each with a header that says what to expect of it."""

import re
from importlib.resources import files
from pathlib import Path

from silentgrad.errors import SilentgradError
from silentgrad.lab.hints import did_you_mean
from silentgrad.lab.training.config import Settings
from silentgrad.lab.training.documents import read_settings

FOLDER = Path(str(files("silentgrad.lab") / "recipes"))


class RecipeError(SilentgradError):
    """There is no such recipe."""


def recipe_path(name: str) -> Path:
    """The file of a recipe."""
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        hint = did_you_mean(name, recipe_names())
        raise RecipeError(f"there is no recipe {name!r}.{hint} `silentgrad recipes` lists them all.")
    return path


def recipe_file(name: str) -> Path:
    """The file of a recipe that is given by its name, or by the path of its file."""
    path = Path(name)
    if path.is_file():
        return path
    return recipe_path(name)


def recipe_names() -> list[str]:
    """All recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def recipe_header(name: str) -> dict[str, str]:
    """What a recipe's header says: `expects`, `time` and so on, in comments `# key: value`."""
    return dict(re.findall(r"^# (\w+): (.*)$", recipe_path(name).read_text(), re.MULTILINE))


def read_recipe(name: str) -> Settings:
    """A recipe's settings."""
    return read_settings(recipe_path(name))
