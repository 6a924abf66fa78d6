"""Ctrl-C in work that a command can go on with."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from silentgrad.lab.runs.folder import RunFolder


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came in work that can be gone on with.

    Args:
        words: The words after `silentgrad` that go on with it; the same ones as before if there are none.
    """

    def __init__(self, *words: str) -> None:
        super().__init__(*words)
        self.words = words


@contextlib.contextmanager
def going_on(run: Path | None = None) -> Iterator[None]:
    """Work that Ctrl-C interrupts and that a command goes on with.

    Args:
        run: Folder of the run that is trained, which has a command of its own once it is made.
    """
    try:
        yield
    except KeyboardInterrupt:
        if run is None or not RunFolder(run).config.exists():
            raise Interrupted from None
        raise Interrupted("train", "--folder", str(run), "--resume", "true") from None
