"""Lists on the command line: `64,64` beside `[64,64]`."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints


def list_options(function: Callable[..., None]) -> dict[str, type]:
    """The options of a command that take a list, each with what the list holds.

    Example:
        >>> def command(sizes: list[int], names: list[str] | None = None, count: int = 1) -> None: ...
        >>> list_options(command)
        {'--sizes': <class 'int'>, '--names': <class 'str'>}
    """
    return dict(_lists("--", function))


def _lists(prefix: str, owner: Any) -> Iterator[tuple[str, type]]:
    for name, hint in get_type_hints(owner).items():
        if is_dataclass(hint):
            yield from _lists(f"{prefix}{name}.", hint)
        for kind in (hint, *get_args(hint)):  # a list, or a list or None
            if get_origin(kind) is list:
                yield f"{prefix}{name}", get_args(kind)[0]


def with_brackets(words: Sequence[str], options: dict[str, type]) -> list[str]:
    """The words with the brackets of lists that were written without.

    Args:
        words: The words after the command.
        options: The options that take a list, and what the list holds.

    Example:
        >>> with_brackets(["--sizes", "64,64", "--names=a,b"], {"--sizes": int, "--names": str})
        ['--sizes', '[64,64]', '--names=["a", "b"]']
    """
    bracketed: list[str] = []
    before = ""
    for word in words:
        option, equals, value = word.partition("=")
        if before in options:
            word = _bracketed(word, options[before])
        elif equals and option in options:
            word = f"{option}={_bracketed(value, options[option])}"
        bracketed.append(word)
        before = word
    return bracketed


def _bracketed(value: str, kind: type) -> str:
    """A list in YAML; names may hold what YAML takes for more than a letter."""
    if value.startswith("[") or value in ("", "null"):
        return value
    if kind in (int, float):
        return f"[{value}]"
    return json.dumps([part.strip() for part in value.split(",")])
