"""A table of calls that are refused, as a test."""

from collections.abc import Callable

import pytest

Refusals = dict[str, tuple[type[Exception], str, Callable[[], object]]]


def refusals(cases: Callable[[], Refusals]) -> Callable[[str], None]:
    """Tests each case by itself: its call raises the error with the message. What the calls share is made anew."""

    @pytest.mark.parametrize("case", cases())
    def test(case: str) -> None:
        error, message, call = cases()[case]
        with pytest.raises(error, match=message):
            call()

    return test


def refused(error: type[BaseException], message: str, call: Callable[[], object]) -> str:
    """Calls what has to raise the error, with a message that matches; returns the message."""
    with pytest.raises(error, match=message or None) as caught:
        call()
    return str(caught.value)
