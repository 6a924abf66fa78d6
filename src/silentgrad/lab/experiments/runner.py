"""Many runs, side by side, each in a process of its own; what is finished is skipped, what was interrupted goes on."""

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import torch
import yaml  # type: ignore[import-untyped]
from lightning import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from silentgrad.errors import SilentgradError
from silentgrad.lab.experiments.cells import Cell, same_experiment
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import write_json_atomically
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training import DivergedError, Settings, read_config, train_model

POLL_SECONDS = 0.5


class ExperimentError(SilentgradError):
    """A run of an experiment could not be made, or was made with other settings."""


def run_all(cells: Sequence[Cell], folder: Path, jobs: int, root: Path | None, accelerator: str) -> None:
    """Makes the runs that are missing in `folder`.

    Args:
        cells: The runs.
        folder: Folder in which each run has a folder of its own name.
        jobs: Number of runs at a time; each takes its share of the processor's cores.
        root: Folder that holds the datasets.
        accelerator: Name of the accelerator in Lightning.
    """
    if jobs < 1:
        raise ExperimentError(f"jobs has to be at least 1, got {jobs}")
    for cell in cells:
        _require_same_settings(cell, folder / cell.name)
    waiting = [cell for cell in cells if not finished(folder / cell.name)]
    done = len(cells) - len(waiting)
    said = f"{len(cells)} runs in {folder}, {done} of them finished before"
    Console().print(said, soft_wrap=True, markup=False, emoji=False)
    if waiting:
        _run_side_by_side(waiting, folder, jobs, root, accelerator)


def _run_side_by_side(cells: Sequence[Cell], folder: Path, jobs: int, root: Path | None, accelerator: str) -> None:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with progress_bar() as progress, workers(min(jobs, len(cells)), threads) as pool:
        task = progress.add_task("epochs", total=sum(cell.settings.train.epochs for cell in cells))
        names: dict[Future[None], str] = {}
        for cell in cells:
            settings = _placed(cell.settings, root, accelerator)
            names[pool.submit(_train, settings, folder / cell.name)] = cell.name
        pending = set(names)
        while pending:
            ended, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
            for future in ended:
                require_success(future, names[future])
            progress.update(task, completed=sum(_epochs(folder / cell.name) for cell in cells))


def finished(folder: Path) -> bool:
    """Whether a run has come to its end, which may be that it diverged."""
    run = RunFolder(folder)
    return run.summary.exists() or run.failure.exists()


def _require_same_settings(cell: Cell, folder: Path) -> None:
    path = RunFolder(folder).config
    if not path.exists():
        return
    try:
        settings = read_config(folder)
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise ExperimentError(f"cannot read {path} ({reason}): remove {folder}, or choose another --folder") from error
    if not same_experiment(settings, cell.settings):
        raise ExperimentError(f"{folder} was made with other settings: remove it, or choose another --folder")


def _placed(settings: Settings, root: Path | None, accelerator: str) -> Settings:
    """The settings, for this machine."""
    data, model, train = settings
    if root is not None:
        data = replace(data, root=root)
    return Settings(data, model, replace(train, accelerator=accelerator))


def _train(settings: Settings, folder: Path) -> None:
    """Makes a run, in a worker's process. A run that diverges would do so again, so its failure is a result."""
    try:
        start_or_resume(settings, folder, quiet=True)
    except DivergedError as error:
        write_json_atomically(RunFolder(folder).failure, {"message": str(error)})


def start_or_resume(settings: Settings, folder: Path, quiet: bool, callbacks: Sequence[Callback] = ()) -> Summary:
    """Trains a run from its start, or goes on with what an earlier process left of it; returns the summary."""
    begun = RunFolder(folder).config.exists()
    return train_model(*settings, folder, begun, quiet, callbacks)


def require_success(future: Future[None], name: str) -> None:
    """Raises what went wrong in a worker's process."""
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        raise ExperimentError(f"the process of {name} was killed; call again to go on with it")
    if error is not None:
        raise error


@contextlib.contextmanager
def workers(count: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one; their runs go on from the last finished epoch the next time.

    They are forked from one that has imported this module and done nothing else, so that Lightning is imported once.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    executor = ProcessPoolExecutor(count, context, _prepare_worker, (threads,))
    try:
        yield executor
    finally:
        for process in multiprocessing.active_children():
            process.terminate()
        executor.shutdown(cancel_futures=True)


def _prepare_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when the one that started it has ended, even if that was killed and could not say so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # whatever the main thread is doing: everything a run writes is written whole or not at all


def progress_bar() -> Progress:
    """How far many runs are, and how long they still take."""
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def _epochs(folder: Path) -> int:
    """Number of epochs that a run has finished."""
    path = RunFolder(folder).metrics
    if not path.exists():
        return 0
    return len(path.read_text().splitlines()) - 1
