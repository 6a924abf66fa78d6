"""Helpers that tests of runs and commands share."""

import csv
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from lightning_fabric.utilities.rank_zero import rank_zero_only

import processes
from silentgrad.lab.cli.main import main
from silentgrad.lab.store.files import write_json_atomically
from silentgrad.lab.store.records import Summary
from silentgrad.lab.training import DataConfig, ModelConfig, TrainConfig, train_model
from silentgrad.lab.training.loop import Loop

TINY = ModelConfig(latent_dim=2, hidden=[4])
ONCE = TrainConfig(epochs=1, accelerator="cpu")
TWICE = TrainConfig(epochs=2, accelerator="cpu")
SMALL = ["--model.latent_dim=2", "--model.hidden=4", "--train.accelerator=cpu", "--quiet=true"]  # for a command


class Cli:
    """The command line, called in this process."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self.captured = captured

    def __call__(self, *words: object) -> str:
        main([*map(str, words)])
        return self.captured.readouterr().out

    def fails(self, *words: object, codes: tuple[int, ...] = (1, 2)) -> str:
        """Return what a command line that is wrong is told, and require one of these exit codes."""
        with pytest.raises(SystemExit) as stop:
            main([*map(str, words)])
        assert stop.value.code in codes
        return self.captured.readouterr().err


def train(folder: Path, data: DataConfig | None = None, train: TrainConfig = ONCE, **options: Any) -> Summary:
    """Train a model, tiny unless it is given, of digits unless data are."""
    data = data or DataConfig(batch_size=512)
    return train_model(data, options.pop("model", TINY), train, folder, quiet=True, **options)


def made_up(folder: Path, config: dict[str, Any], metrics: dict[str, Any], summary: dict[str, Any] | None) -> Path:
    """Write the files of a run that never was: settings, columns of figures and, if it has finished, a summary."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    pd.DataFrame(metrics).to_csv(folder / "metrics.csv", index=False)
    if summary is not None:
        write_json_atomically(folder / "summary.json", summary)
    return folder


def content(folder: Path) -> dict[str, int]:
    """Return all that is in a folder, with the times when it was written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


class CutError(Exception):
    """Stops a run."""


def cut_at(epoch: int) -> Callable[[Loop], None]:
    """Return a report that stops a run after an epoch, before its checkpoint."""

    def cut(loop: Loop) -> None:
        if loop.epoch == epoch:
            raise CutError

    return cut


def interrupted(folder: Path, awaited: str, *words: str, kill: Callable[[int, int], None] = os.kill) -> str:
    """What a command says that Ctrl-C ends when a file of figures in its folder has two epochs."""
    output = folder.with_name("said.txt")
    process = processes.start(processes.silentgrad, *words, "--folder", str(folder), output=output)
    while not any(len(path.read_text().splitlines()) > 2 for path in folder.glob(awaited)):
        assert process.is_alive(), "ended before it could be interrupted"
        time.sleep(0.01)
    kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    said = output.read_text()
    assert "Traceback" not in said
    return said


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, by the names of its columns."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


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
