"""Values on the command line that YAML, by which they are read, would take for something else.

Lists may be written `64,64` beside `[64,64]`; and 1:2 is no number, though YAML counts in sixties and takes it for 62.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

IN_SIXTIES = re.compile(r"\[?[-+.,: \d]*\d:\d[-+.,: \d]*\]?")


def option_types(function: Callable[..., None]) -> dict[str, Any]:
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


def with_brackets(words: Sequence[str], types: Mapping[str, Any]) -> list[str]:
    """The words with the brackets of lists that were written without.

    Args:
        words: The words after the command.
        types: The types of its options.

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
    """What a list, or a list or None, holds; None of other types."""
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
