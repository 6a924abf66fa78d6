"""The command line from start to end: its words become the call of a command; an error or Ctrl-C, a message."""

import argparse
import contextlib
import inspect
import itertools
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, ArgumentParser, set_parsing_settings  # type: ignore[attr-defined]
from rich.console import Console

import silentgrad
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.table import COMMANDS, Command, CommandGroup
from silentgrad.lab.cli.wording import HelpFormatter, gathered, in_sixties, nearest_option, option_types, with_brackets
from silentgrad.lab.settings import GROUPS, Settings
from silentgrad.lab.settings.documents import plainly
from silentgrad.lab.store.folders import RunFolder
from silentgrad.registry import did_you_mean

FILES = ("--recipe", "--config")


# Arguments of which a command takes any number, one after the other, as argparse is told of them.
SEVERAL: dict[str, dict[str, Any]] = {
    "runs": {"nargs": "+", "type": Path, "metavar": "RUN", "help": "Folders of the runs, one after the other."},
    "words": {
        "nargs": "*", "type": str, "metavar": "WORD",
        "help": "Words that the names have to hold; all recipes are listed without one.",
    },
}  # fmt: skip


class UsageError(SilentgradError):
    """The command line cannot be understood."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came in work that these words after `silentgrad` go on with; the same as before if there are none."""

    def __init__(self, *words: str) -> None:
        super().__init__(*words)
        self.words = words


@contextlib.contextmanager
def going_on(folder: Path | None = None) -> Iterator[None]:
    """Work that Ctrl-C interrupts and a command goes on with: one of its own for a run, once its folder is made."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None or not RunFolder(folder).config.exists():
            raise Interrupted from None
        raise Interrupted("train", "--folder", str(folder), "--resume", "true") from None


def main(arguments: list[str] | None = None) -> None:
    """The `silentgrad` command.

    Args:
        arguments: The words after `silentgrad`; those of this process if absent.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        _run(arguments)
    except (SilentgradError, OSError) as error:
        if os.environ.get("SILENTGRAD_DEBUG"):
            raise
        Console(stderr=True).print("[red]silentgrad:[/red]", end=" ")
        print(error, file=sys.stderr)
        if isinstance(error, UsageError):
            raise SystemExit(2) from None
        raise SystemExit(1) from None
    except Interrupted as stop:
        print(f"interrupted; go on by: silentgrad {shlex.join(stop.words or arguments)}", file=sys.stderr)
        raise SystemExit(130) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _run(words: Sequence[str]) -> None:
    command, program, rest = _chosen("silentgrad", silentgrad.__doc__, COMMANDS, words)
    function = function_of(command)
    parser = _option_parser(function, program)
    options = parser.instantiate(_parsed(parser, gathered(rest, "--over"), option_types(function)))
    options.pop("config", None)
    several: list[object] = []
    for name in SEVERAL:
        several += options.pop(name, [])
    function(*several, **options)


def _parsed(parser: "OptionParser", words: Sequence[str], types: Mapping[str, Any]) -> Any:
    for option, value in in_sixties(words, types):
        parser.error(f"{option}: {value} is no number")
    return parser.parse_args(_files_first(with_brackets(words, types)))


def setting(option: str, written: str) -> Any:
    """Return the value of a run's setting, as in train.lr, converted from what was written as on the command line.

    Raises:
        UsageError: There is no such option, or this is none of its values.
    """
    parser, types = OptionParser(prog="silentgrad train", formatter_class=HelpFormatter), option_types(Settings)
    for name, group in GROUPS.items():
        parser.add_class_arguments(group, name)
    if f"--{option}" not in types:
        parser.error(_no_option(f"--{option}", types))
    if not written:
        parser.error(f"--{option} has to have a value")
    return _parsed(parser, [f"--{option}={written}"], types)[option]


def _files_first(words: Sequence[str]) -> list[str]:
    """The words with the file of settings before all options, which so win over it wherever they stand.

    Raises:
        UsageError: There are two such files.

    Example:
        >>> _files_first(["--train.epochs", "3", "--recipe", "mnist-circuit-cpu"])
        ['--recipe', 'mnist-circuit-cpu', '--train.epochs', '3']
    """
    files: list[list[str]] = []
    others: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        option, given, _ = word.partition("=")
        if option in FILES and given:
            files.append([word])
        elif option in FILES and left and not left[0].startswith("-"):
            files.append([word, left.pop(0)])
        else:
            others.append(word)
    if len(files) > 1:
        both = " and ".join(" ".join(file) for file in files)
        raise UsageError(f"{both}: settings come from one recipe or file, which options change; choose one")
    return [*itertools.chain(*files), *others]


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
    program: str, description: str | None, commands: Mapping[str, Command | CommandGroup], words: Sequence[str]
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
    if isinstance(entry, CommandGroup):
        return _chosen(f"{program} {name}", entry.help, entry.commands, words[1:])
    return entry, f"{program} {name}", words[1:]


def function_of(command: Command) -> Callable[..., None]:
    """The command itself, imported now."""
    module, _, name = command.place.partition(":")
    function: Callable[..., None] = getattr(import_module(f"silentgrad.lab.cli.{module}"), name)
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
        message = " ".join(plainly(message).split())
        # A refused import, told as what it means here.
        message = re.sub(r"Importing '(.*?)' is not allowed.*", r"\1 is no setting; a file is given as ./\1", message)
        unknown = re.match(r"unrecognized arguments: (-\S*[^\s\d-]\S*)", message)
        if unknown is not None:
            options = [option for action in self._actions for option in action.option_strings[:1]]
            message = _no_option(unknown[1].partition("=")[0], options)
        for action in self._actions:
            if not action.option_strings:  # it is given by its place
                message = message.removeprefix(f"--{action.dest}: ")
        raise UsageError(_with_help(message, f"{self.prog} --help lists the options")) from ex


def _no_option(word: str, options: Iterable[str]) -> str:
    near = nearest_option(word, options)
    return f"there is no option {word}" + (f": did you mean {near}?" if near else "")


class SettingsFile(ActionConfigFile):
    """Takes a file of settings, or a recipe by its name."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        if option_string == "--recipe":
            from silentgrad.lab.experiments.recipes import recipe_source

            values = recipe_source(values)
        super().__call__(parser, cfg, values, option_string)


def _usage(program: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """Return the line of usage, with all options of the command in one."""
    words = [program]
    optional = False
    for name, parameter in parameters.items():
        if name in SEVERAL:
            words.append(f"{SEVERAL[name]['metavar']} ...")
        elif parameter.default is parameter.empty:
            words.append(name.upper())
        else:
            optional = True
    if optional:
        words.append("[--OPTION VALUE ...]")
    return " ".join(words)


def _option_parser(function: Callable[..., None], program: str) -> OptionParser:
    """The parser of a command's options, which are the arguments of its function."""
    parameters = inspect.signature(function).parameters
    # A setting is a value, never the name of something to import, and has its help below it.
    set_parsing_settings(import_path_denylist=["*"], docstring_parse_attribute_docstrings=True)
    parser = OptionParser(
        prog=program,
        usage=_usage(program, parameters),
        description=(inspect.getdoc(function) or "").partition("\n\nArgs:")[0],
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    if GROUPS.keys() <= parameters.keys():
        told = "A recipe's name, or a file of settings, such as the one that a sweep leaves of its best trial; options "
        told += "beside it change what it says."
        parser.add_argument(*FILES, action=SettingsFile, metavar="RECIPE", dest="config", help=told)
    elif parameters:
        parser.add_argument("--config", action=ActionConfigFile, metavar="FILE", help="A YAML file of these options.")
    for name, several in SEVERAL.items():
        if name in parameters:
            parser.add_argument(name, **several)
    parser.add_function_arguments(function, as_group=False, as_positional=True, sub_configs=True)
    return parser
