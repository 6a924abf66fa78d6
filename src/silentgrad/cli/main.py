"""From the command line's words to a command, and from an error to a message."""

import os
import sys
from typing import Any

from jsonargparse import auto_cli
from rich.console import Console
from rich.markup import escape

import silentgrad
from silentgrad.cli import commands, compare, export, measure, recipes, reproduce, sweep
from silentgrad.errors import SilentgradError
from silentgrad.training.recipes import recipe_path

COMMANDS: dict[str, Any] = {
    "train": commands.train,
    "evaluate": commands.evaluate,
    "reconstruct": commands.reconstruct,
    "sample": commands.sample,
    "variance": measure.variance,
    "bias": measure.bias,
    "reproduce": reproduce.reproduce,
    "sweep": sweep.sweep,
    "compare": compare.compare,
    "export": export.export,
    "recipes": recipes.recipes,
    "data": {"list": commands.data_list, "get": commands.data_get, "check": commands.data_check},
}


def main(arguments: list[str] | None = None) -> None:
    """The `silentgrad` command."""
    try:
        words = compare.with_list_of_runs(with_recipe(sys.argv[1:] if arguments is None else arguments))
        auto_cli(COMMANDS, args=words, prog="silentgrad", description=silentgrad.__doc__)
    except (SilentgradError, OSError) as error:
        if os.environ.get("SILENTGRAD_DEBUG"):
            raise
        Console(stderr=True).print(f"[red]silentgrad:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; go on later with --folder FOLDER --resume true")
        raise SystemExit(130) from None


def with_recipe(words: list[str]) -> list[str]:
    """Turns `--recipe NAME` into the `--config` of its file, in the place where it stood."""
    result: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--recipe" or word.startswith("--recipe="):
            name = word.partition("=")[2] if "=" in word else next(rest, "")
            result += ["--config", str(recipe_path(name))]
        else:
            result.append(word)
    return result
