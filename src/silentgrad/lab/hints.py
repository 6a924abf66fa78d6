"""What somebody may have meant who wrote a name that does not exist."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

ALIKE = 0.6  # the least likeness, from 0 to 1, of a name that is worth a question


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The question after a message, or nothing if no name is near.

    Example:
        >>> did_you_mean("mnits", ["cifar10", "mnist"])
        ' Did you mean mnist?'
    """
    for near in get_close_matches(word, list(names), n=1, cutoff=ALIKE):
        return f" Did you mean {near}?"
    return ""


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
        whole = _likeness(word, option)
        alike = (max(whole, _likeness(_last(word), _last(option))), whole)
        if alike > most:
            best, most = option, alike
    return best


def _last(option: str) -> str:
    """An option's name without its group."""
    return option.lstrip("-").rpartition(".")[2]


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
