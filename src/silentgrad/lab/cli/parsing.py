"""From the command line's words to the call of a command."""

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jsonargparse import ActionConfigFile, ArgumentParser, set_parsing_settings  # type: ignore[attr-defined]

import silentgrad
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.helping import HelpFormatter
from silentgrad.lab.cli.table import COMMANDS, Command, Group
from silentgrad.lab.cli.values import in_sixties, option_types, with_brackets
from silentgrad.lab.hints import did_you_mean, nearest_option
from silentgrad.lab.training.messages import plainly
from silentgrad.lab.training.recipes import recipe_file


class Several(NamedTuple):
    """An argument of which a command takes any number, one after the other.

    Args:
        number: How many, in argparse's words.
        type: What each is.
        metavar: What the help calls one.
        help: What they are.
    """

    number: str
    type: type
    metavar: str
    help: str


SEVERAL = {
    "runs": Several("+", Path, "RUN", "Folders of the runs, one after the other."),
    "words": Several("*", str, "WORD", "Words that the names have to hold; all recipes are listed without one."),
}


class UsageError(SilentgradError):
    """The command line cannot be understood."""


def run(words: Sequence[str]) -> None:
    """Calls the command that the words name, with the options that they give."""
    command, program, rest = _chosen("silentgrad", silentgrad.__doc__, COMMANDS, words)
    function = _function(command)
    parser = _option_parser(command, function, program)
    types = option_types(function)
    for option, value in in_sixties(rest, types):
        parser.error(f"{option}: {value} is no number")
    options = parser.instantiate(parser.parse_args(with_brackets(rest, types)))
    options.pop("config", None)
    several: list[object] = []
    for name in SEVERAL:
        several += options.pop(name, [])
    function(*several, **options)


def _with_help(message: str, where: str) -> str:
    """A message and where to look, unless it asks a question already."""
    if message.endswith("?"):
        return message
    return f"{message.removesuffix('.')}; {where}"


class ListParser(argparse.ArgumentParser):
    """The parser of the first word."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(_with_help(message, f"{self.prog} --help lists the commands"))


def _chosen(
    program: str, description: str | None, commands: Mapping[str, Command | Group], words: Sequence[str]
) -> tuple[Command, str, Sequence[str]]:
    """The command that the first words name, these words, and the others."""
    parser = ListParser(prog=program, description=description, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"silentgrad {silentgrad.__version__}")
    names = parser.add_subparsers(title="commands", metavar="COMMAND", dest="name", required=True)
    for name, entry in commands.items():
        names.add_parser(name, help=entry.help, add_help=False)
    for word in words[:1]:
        if not word.startswith("-") and word not in commands:
            parser.error(f"there is no command {word!r}.{did_you_mean(word, commands)}")
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
        message = " ".join(_without_imports(plainly(message)).split())
        unknown = re.match(r"unrecognized arguments: (-\S*[^\s\d-]\S*)", message)
        if unknown is not None:
            message = self._no_option(unknown[1].partition("=")[0])
        for action in self._actions:
            if not action.option_strings:  # it is given by its place
                message = message.removeprefix(f"--{action.dest}: ")
        raise UsageError(_with_help(message, f"{self.prog} --help lists the options")) from ex

    def _no_option(self, word: str) -> str:
        options: list[str] = []
        for action in self._actions:
            options += action.option_strings[:1]
        near = nearest_option(word, options)
        if near is None:
            return f"there is no option {word}"
        return f"there is no option {word}: did you mean {near}?"


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


def _usage(program: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """How the command is written, with all of its options in one."""
    words = [program]
    optional = False
    for name, parameter in parameters.items():
        if name in SEVERAL:
            words.append(f"{SEVERAL[name].metavar} ...")
        elif parameter.default is parameter.empty:
            words.append(name.upper())
        else:
            optional = True
    if optional:
        words.append("[--OPTION VALUE ...]")
    return " ".join(words)


def _option_parser(command: Command, function: Callable[..., None], program: str) -> OptionParser:
    """The parser of a command's options, which are the arguments of its function."""
    parameters = inspect.signature(function).parameters
    set_parsing_settings(import_path_denylist=["*"])  # a setting is a value, never the name of something to import
    parser = OptionParser(
        prog=program,
        usage=_usage(program, parameters),
        description=_description(function),
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    if command.takes_recipe:
        told = "A recipe's name, or a file of settings, such as the one that a sweep leaves of its best trial; options "
        told += "after it change what it says."
        parser.add_argument("--recipe", "--config", action=SettingsFile, metavar="RECIPE", dest="config", help=told)
    elif parameters:
        parser.add_argument("--config", action=ActionConfigFile, metavar="FILE", help="A YAML file of these options.")
    for name, several in SEVERAL.items():
        if name in parameters:
            parser.add_argument(
                name, nargs=several.number, type=several.type, metavar=several.metavar, help=several.help
            )
    parser.add_function_arguments(function, as_group=False, as_positional=True, sub_configs=True)
    return parser
