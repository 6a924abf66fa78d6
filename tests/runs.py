"""What tests of runs and commands share."""

import csv
from pathlib import Path

import pytest

from silentgrad.lab.cli.main import main


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table, by the names of its columns."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fails(capsys: pytest.CaptureFixture[str], *words: str, codes: tuple[int, ...] = (1, 2)) -> str:
    """What a command line that is wrong is told, and that its exit code is one of these."""
    with pytest.raises(SystemExit) as stop:
        main([*words])
    assert stop.value.code in codes
    return capsys.readouterr().err
