"""The command line: every command is a plain typed function, its options are the function's arguments."""

from silentgrad.lab.cli.main import main

__all__ = ["main"]
