"""The list of recipes."""

from silentgrad.lab.cli.console import say
from silentgrad.lab.hints import did_you_mean
from silentgrad.lab.training.recipes import RecipeError, recipe_header, recipe_names

INDENT = "    "


def recipes(*words: str) -> None:
    """Lists the recipes, what each is, what to expect and how long it takes.

    Args:
        *words: Words that the names have to hold; all recipes are listed without one.
    """
    chosen = [name for name in recipe_names() if all(word in name for word in words)]
    if not chosen:
        wanted = " ".join(words)
        raise RecipeError(f"no recipe's name holds {wanted!r}.{did_you_mean(wanted, recipe_names())}")
    for name in chosen:
        header = recipe_header(name)
        say(name)
        say(f"{INDENT}{header['what']}")
        say(f"{INDENT}{header['expects']}; {header['time']}")
