"""The command line from start to end: its words become the call of a command; an error or Ctrl-C, a message.

A command is a function, its options are the function's arguments. Those of a group of settings are --GROUP.NAME.
"""

import argparse
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_origin

from docstring_parser import parse_from_object
from rich.console import Console

import silentgrad
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.shared import Interrupted
from silentgrad.lab.settings import GROUPS, ConfigError
from silentgrad.lab.settings.documents import HINTS, read_options
from silentgrad.lab.settings.fields import LEFT_OUT, converted
from silentgrad.registry import ALIKE, did_you_mean

# Module of each command, which is imported when it is called; the function has the name of the command.
COMMANDS = {
    "demo": "demo",
    "train": "training",
    "evaluate": "finished",
    "reconstruct": "finished",
    "sample": "finished",
    "latents": "finished",
    "factors": "factors",
    "variance": "measure",
    "bias": "measure",
    "reproduce": "reproduce",
    "benchmark": "benchmark",
    "sweep": "sweep",
    "compare": "finished",
    "check": "finished",
    "export": "finished",
    "recipes": "lists",
    "data": "lists",
}
FILE = "A YAML file of these options; one that is given beside it changes what the file says."
RECIPE = "A recipe's name, or a file of settings; an option beside it changes what it says."


class UsageError(SilentgradError):
    """The command line cannot be understood."""


def main(arguments: list[str] | None = None) -> None:
    """Run the `silentgrad` command.

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
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None
    except KeyboardInterrupt as stop:
        go_on = ""
        if isinstance(stop, Interrupted):
            go_on = f"; go on by: silentgrad {shlex.join(stop.words or arguments)}"
        print(f"interrupted{go_on}", file=sys.stderr)
        raise SystemExit(130) from None


def _run(words: Sequence[str]) -> None:
    if words[:1] == ["--version"]:
        print(f"silentgrad {silentgrad.__version__}")
    elif words[:1] in (["-h"], ["--help"]):
        print(f"usage: silentgrad COMMAND [--OPTION VALUE ...]\n\n{silentgrad.__doc__}\n\ncommands:")
        print("\n".join(f"    {name:12} {summary(name)}" for name in COMMANDS))
    elif not words:
        raise UsageError("there is no command; silentgrad --help lists the commands")
    else:
        name, *rest = words
        if name not in COMMANDS:
            message = f"there is no command {name!r}.{did_you_mean(name, COMMANDS)}"
            raise UsageError(_advised(message, "silentgrad --help lists the commands"))
        _call(function_of(name), f"silentgrad {name}", rest)


def summary(command: str) -> str:
    """Return the first line of a command's docstring, which is found in the text of its module."""
    text = Path(__file__).with_name(f"{COMMANDS[command]}.py").read_text("utf-8")
    found = re.search(rf'^def {command}\(.*?"""(.*?)$', text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def function_of(command: str) -> Callable[..., None]:
    """Return the function of a command, imported now."""
    function: Callable[..., None] = getattr(import_module(f"silentgrad.lab.cli.{COMMANDS[command]}"), command)
    return function


class Option(NamedTuple):
    """An option of a command, or an argument that is given by its place."""

    hint: Any
    default: Any
    help: str
    several: bool = False  # words one after the other

    @property
    def by_place(self) -> bool:
        return self.several or self.default is inspect.Parameter.empty


def options_of(function: Callable[..., object]) -> dict[str, Option]:
    """Return the options of a command by name; those of a group of settings stand in its place."""
    found, told = {}, _told(function)
    for name, parameter in inspect.signature(function).parameters.items():
        hint: Any = parameter.annotation
        if parameter.kind is parameter.VAR_POSITIONAL:
            found[name] = Option(tuple[hint, ...], (), told.get(name, ""), several=True)
        elif is_dataclass(hint):
            inner, group = _told(hint), GROUPS[name]()
            for field in fields(group):
                found[f"{name}.{field.name}"] = Option(field.type, getattr(group, field.name), inner[field.name])
        else:
            found[name] = Option(hint, parameter.default, told.get(name, ""))
    return found


def _told(owner: Any) -> dict[str, str]:
    """Return the help on arguments, or on settings, that stands in docstrings."""
    return {told.arg_name.lstrip("*"): str(told.description) for told in parse_from_object(owner).params}


def _call(function: Callable[..., None], program: str, words: Sequence[str]) -> None:
    """Call a command with what its words say, or else a file of theirs, or else its defaults."""
    options = options_of(function)
    given = vars(_parser(function, program, options).parse_args(words))
    files = given.pop("config", [])
    if len(files) > 1:
        raise UsageError(f"{' and '.join(files)}: settings come from one recipe or file, which options change")
    values = {name: option.default for name, option in options.items()}
    for file in files:
        values |= _from_file(file, options)
    for name, written in given.items():
        label = name.upper() if options[name].by_place else f"--{name}"
        values[name] = _value(label, options[name].hint, written)
    groups: dict[str, dict[str, Any]] = {}
    several: list[Any] = []
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        group, _, own = name.rpartition(".")
        if options[name].several:
            several = value
        elif group:
            groups.setdefault(group, {})[own] = value
        else:
            arguments[name] = value
    function(*several, **arguments, **{name: GROUPS[name](**own) for name, own in groups.items()})


def _value(option: str, hint: Any, written: Any) -> Any:
    try:
        return converted(option, hint, written)
    except ConfigError as error:
        raise UsageError(f"{error}{LEFT_OUT * (NoneType in get_args(hint))}") from None


def _from_file(file: str, options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options that a file holds, or a recipe of that name for a command that takes settings."""
    if "train.lr" in options and not Path(file).is_file():
        from silentgrad.lab.experiments.recipes import read_recipe

        return read_recipe(file).options()
    try:
        return read_options(Path(file), {name: option.hint for name, option in options.items() if not option.by_place})
    except ConfigError as error:
        raise UsageError(f"{file}: {error}") from None


def setting(option: str, written: str) -> Any:
    """Return the value of a run's setting, as in train.lr, converted from what was written as on the command line.

    Raises:
        UsageError: There is no such option, or this is none of its values.
    """
    if option not in HINTS:
        raise UsageError(_no_option(f"--{option}", HINTS))
    if not written:
        raise UsageError(f"--{option} has to have a value")
    return _value(f"--{option}", HINTS[option], written)


# The words and the help


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong, instead of listing everything that would be right."""

    options: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (-\S*[^\s\d-]\S*)", message)
        if unknown is not None:
            message = _no_option(unknown[1].partition("=")[0], self.options)
        raise UsageError(_advised(message, f"{self.prog} --help lists the options"))


def _advised(message: str, advice: str) -> str:
    """Return a message and where to look, unless it asks a question already."""
    return message if message.endswith("?") else f"{message.removesuffix('.')}; {advice}"


def _no_option(word: str, options: Iterable[str]) -> str:
    """Return the message about an option that there is none of, and the nearest as a whole or by its last name.

    Example:
        >>> _no_option("--epoch", ["train.lr", "train.epochs"])
        'there is no option --epoch: did you mean --train.epochs?'
        >>> _no_option("--banana", ["train.lr", "train.epochs"])
        'there is no option --banana'
    """
    name = word.lstrip("-")
    last = {option.rpartition(".")[2]: option for option in options}
    near = get_close_matches(name, last.values(), 1, ALIKE)
    near += [last[match] for match in get_close_matches(name.rpartition(".")[2], last, 1, ALIKE)]
    return f"there is no option {word}" + (f": did you mean --{near[0]}?" if near else "")


def _parser(function: Callable[..., object], program: str, options: Mapping[str, Option]) -> Parser:
    """Return the parser of a command's words, which leaves their values as they were written."""
    usage = [program, *(name.upper() for name, option in options.items() if option.by_place), "[--OPTION VALUE ...]"]
    description = (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]
    parser = Parser(program, " ".join(usage), description, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    parser.options = [name for name, option in options.items() if not option.by_place]
    settings = "train.lr" in options
    parser.add_argument(
        *(["--recipe"] if settings else []), "--config", action="append", metavar="RECIPE" if settings else "FILE",
        dest="config", help=RECIPE if settings else FILE,
    )  # fmt: skip
    for name, option in options.items():
        told = f"{option.help} ({in_words(option.hint, option.default)})".replace("%", "%%")
        if option.by_place:
            parser.add_argument(name, nargs="*" if option.several else None, metavar=name.upper(), help=told)
        else:
            action = "append" if get_origin(option.hint) is tuple else "store"
            parser.add_argument(f"--{name}", action=action, metavar=name.rpartition(".")[2].upper(), help=told)
    return parser


def in_words(hint: Any, default: Any = None) -> str:
    """Return in the help's words what an option takes, and its default.

    Example:
        >>> in_words(list[int], [64, 32]), in_words(Literal["cpu", "gpu"] | None), in_words(bool, True)
        ('list of int, default: 64,32', 'one of cpu, gpu', 'true or false, default: true')
    """
    kinds = get_args(hint)
    if NoneType in kinds or get_origin(hint) is Annotated:
        return in_words(kinds[0], default)
    if get_origin(hint) is Literal:
        told = f"one of {', '.join(kinds)}"
    elif kinds:
        told = in_words(kinds[0]).replace("one of", "some of") if get_args(kinds[0]) else f"list of {kinds[0].__name__}"
    else:
        told = "true or false" if hint is bool else hint.__name__
    if default in (None, inspect.Parameter.empty, [], ()):
        return told
    shown = ",".join(map(str, default)) if kinds and not isinstance(default, str) else str(default)
    return f"{told}, default: {shown.lower() if hint is bool else shown}"
