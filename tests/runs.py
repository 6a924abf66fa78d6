"""Helpers that tests of runs and commands share."""

import csv
import os
import socket
from pathlib import Path

import pytest
from lightning_fabric.utilities.rank_zero import rank_zero_only

import processes
from silentgrad.lab.cli.main import main


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, by the names of its columns."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fails(capsys: pytest.CaptureFixture[str], *words: str, codes: tuple[int, ...] = (1, 2)) -> str:
    """Return what a command line that is wrong is told, and require one of these exit codes."""
    with pytest.raises(SystemExit) as stop:
        main([*words])
    assert stop.value.code in codes
    return capsys.readouterr().err


def train_in_two(*words: str, said: Path) -> None:
    """Train in two processes that have imported everything; by themselves, the first would start the second anew."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ("train", *words, "--train.devices", "2")
    both = [processes.start(as_rank, rank, port, *words, output=said) for rank in ("0", "1")]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0], said.read_text()


def as_rank(rank: str, port: str, *words: str) -> None:
    """Run the command line as one of several processes, in the way that Fabric starts the others."""
    os.environ |= {"LOCAL_RANK": rank, "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"], rank_zero_only.rank = port, int(rank)
    processes.silentgrad(*words)
