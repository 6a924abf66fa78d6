"""The command line from start to end: a command, and an error as a message."""

import os
import shlex
import sys

from rich.console import Console

from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.interrupts import Interrupted
from silentgrad.lab.cli.parsing import UsageError, run


def main(arguments: list[str] | None = None) -> None:
    """The `silentgrad` command.

    Args:
        arguments: The words after `silentgrad`; those of this process if absent.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        run(arguments)
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
