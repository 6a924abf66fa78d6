"""The list of recipes."""

from silentgrad.lab.experiments.recipes import RecipeError, recipe_header, recipe_names
from silentgrad.registry import did_you_mean

INDENT = "    "


def recipes(*words: str) -> None:
    """Lists the recipes, those that were measured first: what each is, what to expect and how long it takes.

    Args:
        *words: Words that the names have to hold; all recipes are listed without one.
    """
    chosen = [name for name in recipe_names() if all(word in name for word in words)]
    if not chosen:
        wanted = " ".join(words)
        raise RecipeError(f"no recipe's name holds {wanted!r}.{did_you_mean(wanted, recipe_names())}")
    for name in chosen:
        header = recipe_header(name)
        print(name)
        print(f"{INDENT}{header['what']}")
        print(f"{INDENT}{header['expects']}; {header['time']}")
