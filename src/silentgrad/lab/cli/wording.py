"""Words of the command line: values that YAML would take for something else, names that are misspelt, and the help.

Lists may be written `64,64` beside `[64,64]`; and 1:2 is no number, though YAML counts in sixties and takes it for 62.
"""

import json
import re
from argparse import Action
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import SequenceMatcher
from typing import Any, get_args, get_origin, get_type_hints

from jsonargparse import DefaultHelpFormatter

from silentgrad.registry import ALIKE

IN_SIXTIES = re.compile(r"\[?[-+.,: \d]*\d:\d[-+.,: \d]*\]?")


def option_types(function: Callable[..., object]) -> dict[str, Any]:
    """The options of a command and their types.

    Example:
        >>> def command(sizes: list[int], count: int = 1) -> None: ...
        >>> option_types(command)
        {'--sizes': list[int], '--count': <class 'int'>}
    """
    return dict(_types("--", function))


def _types(prefix: str, owner: Any) -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(owner).items():
        if is_dataclass(hint):
            yield from _types(f"{prefix}{name}.", hint)
        elif name != "return":
            yield f"{prefix}{name}", hint


def gathered(words: Sequence[str], option: str) -> list[str]:
    """The words with all values of an option that may be given several times in one list, at the end.

    Example:
        >>> gathered(["--over", "a=1,2", "--quiet", "true", "--over=b=3"], "--over")
        ['--quiet', 'true', '--over=["a=1,2", "b=3"]']
    """
    others: list[str] = []
    values: list[str] = []
    for word, given, value in _with_options(words):
        if given != option or value.startswith("["):
            others.append(word)
            continue
        values.append(value)
        if value == word:
            others.pop()  # the option itself, which stood before
    return [*others, f"{option}={json.dumps(values)}"] if values else others


def with_brackets(words: Sequence[str], types: Mapping[str, Any]) -> list[str]:
    """The words after a command, with the brackets of lists that were written without, by the types of its options.

    Example:
        >>> with_brackets(["--sizes", "64,64", "--names=a,b"], {"--sizes": list[int], "--names": list[str] | None})
        ['--sizes', '[64,64]', '--names=["a", "b"]']
    """
    bracketed = []
    for word, option, value in _with_options(words):
        kind = _kind_of_list(types.get(option))
        if kind is not None:
            word = word.removesuffix(value) + _bracketed(value, kind)
        bracketed.append(word)
    return bracketed


def _with_options(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each word, the option whose value it is or holds, and the value; '' for both if it is none."""
    before = ""
    for word in words:
        option, equals, value = word.partition("=")
        if equals and word.startswith("--"):
            yield word, option, value
        elif before.startswith("--"):
            yield word, before, word
        else:
            yield word, "", ""
        before = word


def _kind_of_list(hint: Any) -> Any:
    """Return the type that a list, or a list or None, holds; None for other types."""
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is list:
            return get_args(kind)[0]
    return None


def _bracketed(value: str, kind: Any) -> str:
    """A list in YAML; names may hold what YAML takes for more than a letter."""
    if value.startswith("[") or value in ("", "null"):
        return value
    if kind in (int, float):
        return f"[{value}]"
    return json.dumps([part.strip() for part in value.split(",")])


def in_sixties(words: Sequence[str], types: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The options with a number in sixties, and what was written.

    Example:
        >>> list(in_sixties(["--count", "1:2", "--name", "1:2"], {"--count": int, "--name": str}))
        [('--count', '1:2')]
    """
    for _, option, value in _with_options(words):
        hint = types.get(option)
        if {int, float} & {hint, *get_args(hint), _kind_of_list(hint)} and IN_SIXTIES.fullmatch(value):
            yield option, value


def nearest_option(word: str, options: Iterable[str]) -> str | None:
    """The option that is most like a word, as a whole or in what follows its group; None if none is.

    Example:
        >>> nearest_option("--epoch", ["--train.lr", "--train.epochs"])
        '--train.epochs'
        >>> nearest_option("--banana", ["--train.lr", "--train.epochs"])
    """
    best = None
    most = (ALIKE, 0.0)
    for option in options:
        whole = SequenceMatcher(None, word, option).ratio()
        names = [name.lstrip("-").rpartition(".")[2] for name in (word, option)]
        last = SequenceMatcher(None, names[0], names[1]).ratio()
        if (max(whole, last), whole) > most:
            best, most = option, (max(whole, last), whole)
    return best


def in_words(text: str) -> str:
    """Tell the help of jsonargparse about an option without the notation of Python's types.

    Example:
        >>> in_words("Kind of device. (type: Optional[Literal['cpu', 'gpu']], default: null)")
        'Kind of device. (one of cpu, gpu)'
        >>> in_words("Widths of layers. (type: list[int], default: [512])")
        'Widths of layers. (list of int, default: 512)'
    """
    text = re.sub(r"Optional\[(.*?)\](?=[,)])", r"\1", text)
    text = re.sub(r"Literal\[(.*?)\]", lambda found: f"one of {found[1]}".replace("'", ""), text)
    text = re.sub(r"list\[one of (.*?)\]", r"some of \1", text)
    text = re.sub(r"list\[(.*?)\]", r"list of \1", text)
    text = re.sub(r" \| null|\btype: |, default: null|, default: \[\](?=\))", "", text)
    text = re.sub(r"default: (True|False)\)", lambda found: found[0].lower(), text)
    return re.sub(r"default: \[(.*?)\]", lambda found: f"default: {found[1]}".replace("'", ""), text)


class HelpFormatter(DefaultHelpFormatter):
    """Help in sentences."""

    def _expand_help(self, action: Action) -> str:
        return in_words(super()._expand_help(action))

    def _format_args(self, action: Action, default_metavar: str) -> str:
        """Return the word behind an option for what it takes; the choices are in the sentence."""
        shown = str(super()._format_args(action, default_metavar))
        if shown.startswith("{") and shown != "{true,false}":
            return default_metavar
        return shown.replace("[ITEM,...]", "ITEM,...")
