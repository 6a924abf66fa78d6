"""What processes of their own do, in a module that a fresh process can import."""

import csv
import os
import signal
import time
from dataclasses import replace
from functools import cache
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import lightning

from silentgrad.lab.experiments import runner, study
from silentgrad.lab.experiments.cells import Cell, learned_cells
from silentgrad.lab.experiments.plan import Sweep
from silentgrad.lab.experiments.sweep import run_sweep
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.runs.trials import read_sweep
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, train_model
from summaries import WHOLE

AROUND = Settings(
    DataConfig(batch_size=256), ModelConfig(latent_dim=2, hidden=[8]), TrainConfig(epochs=2, accelerator="cpu")
)

LONG = 20  # epochs


def shared_sweep(folder: Path, points: int) -> Sweep:
    return Sweep("shared", AROUND, {"lr": [1e-4 * (1 + point) for point in range(points)]}, folder)


def started(sweep: Sweep) -> list[str]:
    """The folders in which a training was started or resumed, in this order."""
    return (sweep.folder / "log.txt").read_text().splitlines()


def _log(folder: Path) -> None:
    """Adds a line; those of processes that do so at once do not mix."""
    descriptor = os.open(folder.parent / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{folder.name}\n".encode())
    os.close(descriptor)


def open_only(sweep: Sweep, url: str, together: Barrier) -> None:
    """Opens the study at the same time as the others, and trains nothing."""
    together.wait()
    assert list(run_sweep(sweep, url, trials=0)) == []


def train_at_once(sweep: Sweep, url: str, together: Barrier) -> None:
    """Takes points as long as there are any; a training takes no time, so that the processes meet all the time."""
    runner.train_model = _no_training
    together.wait()
    list(run_sweep(sweep, url))


def _no_training(data: Any, model: Any, train: Any, folder: Path, *_: object) -> Summary:
    _log(folder)
    folder.mkdir()
    with (folder / "metrics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["epoch", "seconds", "valid_bpd"], [1, 1, train.lr]])
    (folder / "config.yaml").write_text("{}")
    return Summary.from_json(WHOLE | {"bpd": train.lr, "epochs": 1})


def train_to_the_end(sweep: Sweep, url: str, together: Barrier, dies: bool = False) -> None:
    """Trains, the same command over and over, until all points are done; or dies after its first epoch."""
    study.HEARTBEAT, study.PATIENCE = 1, 6  # seconds; a busy machine may leave a process without one for a while

    def training(*settings: Any) -> Summary:
        *rest, folder, resume, quiet, callbacks = settings
        _log(folder)
        return train_model(*rest, folder, resume, quiet, [*callbacks, *([Death()] if dies else [])])

    runner.train_model = training
    together.wait()
    while True:
        list(run_sweep(sweep, url, quiet=True))
        if read_sweep(sweep.folder).points_done() == sweep.size:
            return
        time.sleep(0.2)  # a process that died is believed to live


@cache
def long_run() -> Cell:
    """A run of the smallest scale, but with many epochs."""
    (cell, *_) = learned_cells("smoke", ["mnist"], 1)
    data, model, train = cell.settings
    return cell._replace(settings=Settings(replace(data, batch_size=256), model, replace(train, epochs=LONG)))


def reproduce(folder: Path) -> None:
    """Trains the long run in a worker."""
    runner._train = train_and_hold
    jobs = 2  # each takes one core, though there is but one run
    runner.run_all([long_run()], folder, jobs, None, "cpu")


train_run = runner._train


def train_and_hold(settings: Settings, folder: Path) -> None:
    """Trains, with a named pipe that stays open until the worker has ended."""
    os.open(folder.parent / "worker", os.O_WRONLY)
    train_run(settings, folder)


class Death(lightning.Callback):
    """Kills the process after an epoch, without a chance to say so."""

    def on_train_epoch_end(self, *_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
