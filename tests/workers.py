"""The work of processes of their own, in a module that a fresh process can import."""

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from importlib import import_module
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from silentgrad.lab.cli.main import setting
from silentgrad.lab.experiments import runner, study
from silentgrad.lab.experiments.cells import Cell, Request, learned_cells
from silentgrad.lab.experiments.runner import INLINE, Workers
from silentgrad.lab.experiments.space import Sweep, search_space
from silentgrad.lab.experiments.sweep import run_sweep
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import Summary, record_of, write_record
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, train_model
from silentgrad.lab.training.loop import Loop

AROUND = Settings(
    DataConfig(batch_size=256), ModelConfig(latent_dim=2, hidden=[8]), TrainConfig(epochs=2, accelerator="cpu")
)

LONG = 20  # epochs
# The content of a whole `summary.json`.
WHOLE: dict[str, Any] = {
    "unit": "BPD",
    "figure": 2.5,
    "metrics": {"mse": 0.02},
    "kld": 7.5,
    "active": 6,
    "exactness": "exact",
    "seconds": 75.0,
    "epochs": 20,
    "best_epoch": 20,
    "training_examples": 100,
    "parameters": 1000,
}


def shared_sweep(folder: Path, points: int) -> Sweep:
    rates = ",".join(f"{1 + point}e-4" for point in range(points))
    return Sweep("shared", AROUND, search_space([f"train.lr={rates}"], setting), folder)


def started(sweep: Sweep) -> list[str]:
    """Return the folders in which a training was started or resumed, in this order."""
    return (sweep.folder / "log.txt").read_text().splitlines()


def _log(folder: Path) -> None:
    """Add a line; those of processes that do so at once do not mix."""
    descriptor = os.open(folder.parent / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{folder.name}\n".encode())
    os.close(descriptor)


def train_at_once(sweep: Sweep, url: str, together: Barrier) -> None:
    """Open a study and takes points as long as there are any; a training takes no time, so that processes meet."""
    runner.train_model = _no_training
    together.wait()
    run_sweep(sweep, url, INLINE, quiet=True)


def _no_training(data: Any, model: Any, train: Any, folder: Path, *_: object) -> Summary:
    _log(folder)
    folder.mkdir()
    (folder / "config.yaml").write_text("{}")
    write_metrics(folder, [(1.0, train.lr)])
    return write_summary(folder, figure=train.lr, epochs=1)


def write_metrics(folder: Path, epochs: Sequence[tuple[float, float]]) -> None:
    """Write the seconds and the validation BPD at the end of each epoch, as a run does."""
    table = pd.DataFrame(epochs, range(1, len(epochs) + 1), ["seconds", "valid_bpd"])
    table.to_csv(RunFolder(folder).metrics, index_label="epoch")


def write_summary(folder: Path, **changed: object) -> Summary:
    """Write a summary, which makes a run a finished one."""
    summary = record_of(Summary, WHOLE | changed)
    write_record(RunFolder(folder).summary, summary)
    return summary


def train_to_the_end(sweep: Sweep, url: str, together: Barrier, dies: bool = False) -> None:
    """Trains, the same command over and over, until all points are done; or dies after its first epoch."""
    study.HEARTBEAT, study.PATIENCE = 1, 15  # seconds; a busy machine may leave a process without one for a while

    def training(*settings: Any) -> Summary:
        *rest, folder, resume, quiet, reports, observations = settings
        _log(folder)
        return train_model(*rest, folder, resume, quiet, [*reports, *([die] if dies else [])], observations)

    runner.train_model = training
    together.wait()
    with ThreadPoolExecutor(1) as thread:  # so that the process says meanwhile that it is alive
        while run_sweep(sweep, url, Workers(thread.submit, lambda: 1), quiet=True).done < sweep.size:
            time.sleep(3)  # a process that died is believed to live, and every call loads the data


@cache
def long_run() -> Cell:
    """Return a run of the smallest scale, but with many epochs."""
    (cell, *_) = learned_cells(Request("smoke", 1))
    data, model, train = cell.settings
    return cell._replace(settings=Settings(replace(data, batch_size=256), model, replace(train, epochs=LONG)))


def reproduce(folder: Path) -> None:
    """Trains the long run in a worker."""
    runner.train_run = train_and_hold
    jobs = 2  # each takes one core, though there is but one run
    runner.run_all([long_run()], folder, jobs, None, "cpu")


train_run = runner.train_run


def train_and_hold(settings: Settings, folder: Path) -> None:
    """Trains, with a named pipe that stays open until the worker has ended."""
    os.open(folder.parent / "worker", os.O_WRONLY)
    train_run(settings, folder)


def train_and_log(settings: Settings, folder: Path) -> None:
    """Trains, and logs the beginning and the end."""
    _log(folder.with_name(f"begun {folder.name}"))
    train_run(settings, folder)
    _log(folder.with_name(f"ended {folder.name}"))


def write_threads(path: Path) -> None:
    path.write_text(str(torch.get_num_threads()))


def die(loop: Loop | None = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dask(command: str, *words: str) -> None:
    """Do what `dask scheduler` and `dask worker` do, in a process that has imported everything."""
    import_module(f"distributed.cli.dask_{command}").main(words)


def worker_at(scheduler: str, threads: int = 1) -> list[str]:
    return ["worker", scheduler, "--no-nanny", "--nthreads", str(threads)]
