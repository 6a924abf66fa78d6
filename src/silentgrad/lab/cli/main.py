"""From the command line's words to a command, and from an error to a message."""

import os
import re
import sys
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, auto_cli, set_parsing_settings
from rich.console import Console

import silentgrad
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli import commands, compare, export, measure, recipes, reproduce, sweep
from silentgrad.lab.training.messages import plainly
from silentgrad.lab.training.recipes import recipe_path

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


class UsageError(SilentgradError):
    """The command line cannot be understood."""


class Parser(ArgumentParser):
    """A parser that says what is wrong, instead of listing everything that would be right."""

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().parse_args(*args, **kwargs)
        except RecursionError as error:
            self.error("an option or the file of --config is nested too deeply", error)
        except UnicodeDecodeError as error:
            self.error(f"the file of --config is no text: {error}", error)
        except ValueError as error:  # an import that was denied, among others
            self.error(str(error), error)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        parser = getattr(ex, "subcommand_parser", None) or self
        command = parser.prog.replace(" [options]", "")
        raise UsageError(f"{_without_imports(plainly(message)).strip()}\n{command} --help lists the options") from ex


def _without_imports(message: str) -> str:
    """A refused import, told as what it means here."""
    return re.sub(r"Importing '(.*?)' is not allowed.*", r"\1 is no setting; a file is given as ./\1", message)


def main(arguments: list[str] | None = None) -> None:
    """The `silentgrad` command."""
    set_parsing_settings(import_path_denylist=["*"])  # a setting is a value, never the name of something to import
    try:
        words = compare.with_list_of_runs(with_recipe(sys.argv[1:] if arguments is None else arguments))
        auto_cli(COMMANDS, args=words, parser_class=Parser, prog="silentgrad", description=silentgrad.__doc__)
    except (SilentgradError, OSError) as error:
        if os.environ.get("SILENTGRAD_DEBUG"):
            raise
        Console(stderr=True).print("[red]silentgrad:[/red]", end=" ")
        print(error, file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None
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
