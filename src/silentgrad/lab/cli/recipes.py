"""The list of recipes."""

from rich.console import Console
from rich.table import Table

from silentgrad.lab.training.recipes import recipe_header, recipe_names


def recipes() -> None:
    """Lists the recipes, what each is, what to expect and how long it takes."""
    table = Table("recipe", "what", "expects", "time")
    for name in recipe_names():
        said = recipe_header(name)
        table.add_row(name, said.get("what", ""), said.get("expects", ""), said.get("time", ""))
    Console().print(table)
