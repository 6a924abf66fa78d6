"""The command `silentgrad`, which needs more than the library: without it, what to install."""

import sys


def main() -> None:
    """Run the laboratory's command line."""
    try:
        from silentgrad.lab.cli.main import main as laboratory

        laboratory()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("silentgrad"):
            raise
        print(f"silentgrad: the command needs {error.name}: pip install 'silentgrad[lab]'", file=sys.stderr)
        raise SystemExit(1) from None
