"""From the command line's words to the call of a command."""

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, ArgumentParser, set_parsing_settings  # type: ignore[attr-defined]

import silentgrad
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.table import COMMANDS, Command, Group
from silentgrad.lab.training.messages import plainly
from silentgrad.lab.training.recipes import recipe_file

SEVERAL = "runs"  # the argument of a command that takes any number of runs, *runs


class UsageError(SilentgradError):
    """The command line cannot be understood."""


def run(words: Sequence[str]) -> None:
    """Calls the command that the words name, with the options that they give."""
    command, program, rest = _chosen("silentgrad", silentgrad.__doc__, COMMANDS, words)
    function = _function(command)
    parser = _option_parser(command, function, program)
    options = parser.instantiate(parser.parse_args(list(rest)))
    options.pop("config", None)
    function(*options.pop(SEVERAL, []), **options)


class ListParser(argparse.ArgumentParser):
    """The parser of the first word."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.prog} --help lists the commands")


def _chosen(
    program: str, description: str | None, commands: Mapping[str, Command | Group], words: Sequence[str]
) -> tuple[Command, str, Sequence[str]]:
    """The command that the first words name, these words, and the others."""
    parser = ListParser(prog=program, description=description)
    parser.add_argument("--version", action="version", version=f"silentgrad {silentgrad.__version__}")
    names = parser.add_subparsers(title="commands", metavar="COMMAND", dest="name", required=True)
    for name, entry in commands.items():
        names.add_parser(name, help=entry.help, add_help=False)
    name = parser.parse_args(words[:1]).name
    entry = commands[name]
    if isinstance(entry, Group):
        return _chosen(f"{program} {name}", entry.help, entry.commands, words[1:])
    return entry, f"{program} {name}", words[1:]


def _function(command: Command) -> Callable[..., None]:
    """The command itself, imported now."""
    function: Callable[..., None] = getattr(import_module(f"silentgrad.lab.cli.{command.module}"), command.function)
    return function


class OptionParser(ArgumentParser):
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
        raise UsageError(f"{_without_imports(plainly(message)).strip()}\n{self.prog} --help lists the options") from ex


def _without_imports(message: str) -> str:
    """A refused import, told as what it means here."""
    return re.sub(r"Importing '(.*?)' is not allowed.*", r"\1 is no setting; a file is given as ./\1", message)


class SettingsFile(ActionConfigFile):
    """Takes a file of settings, or a recipe by its name."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        if option_string == "--recipe":
            values = str(recipe_file(values))
        super().__call__(parser, cfg, values, option_string)


def _description(function: Callable[..., None]) -> str:
    """What a command's docstring says before its arguments."""
    return (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]


def _option_parser(command: Command, function: Callable[..., None], program: str) -> OptionParser:
    """The parser of a command's options, which are the arguments of its function."""
    parameters = inspect.signature(function).parameters
    set_parsing_settings(import_path_denylist=["*"])  # a setting is a value, never the name of something to import
    parser = OptionParser(prog=program, description=_description(function))
    if command.takes_recipe:
        told = "A file of settings, or a recipe's name or file; options after it change what it says."
        parser.add_argument("--config", "--recipe", action=SettingsFile, metavar="FILE", help=told)
    elif parameters:
        parser.add_argument("--config", action=ActionConfigFile, help="A file of options.")
    if SEVERAL in parameters:
        parser.add_argument(
            SEVERAL, nargs="+", type=Path, metavar="RUN", help="The runs' folders, one after the other."
        )
    parser.add_function_arguments(function, as_group=False, as_positional=True, sub_configs=True)
    return parser
