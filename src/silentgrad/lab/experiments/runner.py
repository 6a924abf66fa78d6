"""Many jobs on a `concurrent.futures` executor: processes of this machine, or a Dask cluster's.

A job leaves its result in files, so nothing is lost with a process. On this machine a killed worker ends the command,
and the same command goes on. On a cluster another worker takes the job up again; all machines have to share the
folders. Whoever trains a run holds its lock: a worker that was given up but is still alive does not write beside its
successor, which waits and finds the run finished.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from silentgrad.errors import SilentgradError
from silentgrad.lab.data import load
from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.ledger import Ledger, key_of
from silentgrad.lab.store.files import locked, read_json, write_json_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training import DivergedError, Settings, read_config, train_model
from silentgrad.lab.training.loop import Loop, Report

POLL_SECONDS = 0.5
PATIENCE = 10  # seconds for a scheduler's answer


class ExperimentError(SilentgradError):
    """A run of an experiment could not be made, or was made with other settings."""


class Job(NamedTuple):
    """A piece of work for a worker."""

    work: Callable[[], object]  # leaves its result in files; has to be picklable
    watch: Callable[[], float] = lambda: 0.0  # called about twice a second meanwhile; the finished part, from 0 to 1
    ended: Callable[[], None] = lambda: None  # called once the job has ended


class Workers(NamedTuple):
    """Processes that do jobs: the executor's function that submits one, and how many to run at a time."""

    submit: Callable[[Callable[[], object]], "Future[object]"]
    slots: Callable[[], int]


def run_jobs(title: str, jobs: Iterable[Job | None], total: int, workers: Workers, quiet: bool = False) -> None:
    """Run jobs side by side, with a bar that shows how many are done and the time left.

    Jobs are asked for one by one as workers become free; None says that there is none at the moment.
    """
    waiting = iter(jobs)
    running: dict[Future[object], Job] = {}
    done = 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, speed_estimate_period=3600, disable=quiet) as bar:
        shown = bar.add_task(title, total=total)
        while True:
            while len(running) < workers.slots() and (job := next(waiting, None)) is not None:
                running[workers.submit(job.work)] = job
            if not running:
                return
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                future.result()
                running.pop(future).ended()
                done += 1
            bar.update(shown, completed=done + sum(job.watch() for job in running.values()))


def workers_at(cluster: str | None, jobs: int | None, accelerator: str) -> contextlib.AbstractContextManager[Workers]:
    """Return workers of the Dask scheduler at an address, or of this machine: one per core, or one on an accelerator.

    Of 0 jobs it is this process itself, for which a script needs no guard of its main part.

    Raises:
        ExperimentError: The cluster cannot be used, or a worker was killed.
    """
    if cluster is None and jobs == 0:
        return contextlib.nullcontext(INLINE)
    if cluster is None:
        on_cores = accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
        return _local(jobs or (on_cores and os.cpu_count()) or 1)
    if jobs is not None:
        raise ExperimentError("--jobs is the number of processes of this machine; a --cluster has workers of its own")
    return _dask(cluster)


def _done(work: Callable[[], object]) -> "Future[object]":
    """Do a job in this process."""
    future: Future[object] = Future()
    future.set_result(work())
    return future


INLINE = Workers(_done, lambda: 1)


@contextlib.contextmanager
def _local(count: int) -> Iterator[Workers]:
    """Yield processes that end with this one.

    They are forked from one that has imported this module and done nothing else, so that Lightning is imported once.
    """
    threads = max(1, (os.cpu_count() or 1) // count)  # of each: its share of the cores
    if "OMP_NUM_THREADS" in os.environ:
        threads = torch.get_num_threads()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    executor = ProcessPoolExecutor(count, context, _prepare_worker, (threads,))
    before = multiprocessing.active_children()
    try:
        yield Workers(executor.submit, lambda: count)
    except BrokenProcessPool as error:
        raise ExperimentError("a worker process was killed; call again to go on") from error
    finally:
        for process in multiprocessing.active_children():
            if process not in before:
                process.terminate()
        executor.shutdown(cancel_futures=True)


def _prepare_worker(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends its workers
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, even if that was killed and could not say so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # whatever the main thread is doing: everything a run writes is written whole or not at all


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Workers]:
    """Yield the workers of the Dask scheduler at an address."""
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise ExperimentError("--cluster needs an extra: pip install 'silentgrad[cluster]'") from error
    with contextlib.ExitStack() as stack:
        try:
            client: Any = stack.enter_context(Client(address, timeout=PATIENCE, set_as_default=False))
        except (OSError, ValueError) as error:
            raise ExperimentError(
                f"no scheduler answers at --cluster {address}: start one by `dask scheduler`"
            ) from error
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as error:
            told = f"start some by `dask worker {address} --nthreads 1`"
            raise ExperimentError(f"the scheduler at --cluster {address} has no workers: {told}") from error
        executor = client.get_executor(pure=False)
        try:
            yield Workers(partial(executor.submit, _on_cluster, Path.cwd()), lambda: len(client.nthreads()))
        except KilledWorker as error:
            raise ExperimentError(
                f"{error.task} was given up: {error.allowed_failures + 1} workers died of it"
            ) from error
        except (CancelledError, OSError) as error:
            if client.status == "running":
                raise
            raise ExperimentError(f"the scheduler at --cluster {address} is gone; call again to go on") from error
        finally:
            executor.shutdown(wait=False)


def _on_cluster(folder: Path, work: Callable[[], object]) -> None:
    """Do a job in a worker of a cluster, in the folder that its paths are relative to."""
    from distributed import get_worker

    if get_worker().state.nthreads > 1:
        raise ExperimentError("a worker of --cluster takes several jobs at once: start all with --nthreads 1")
    if not folder.is_dir():
        raise ExperimentError(f"a worker of --cluster does not see {folder}: all machines have to share it")
    with contextlib.chdir(folder):
        work()


def run_all(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int | None,
    root: Path | None,
    accelerator: str,
    cluster: str | None = None,
    ledger: Ledger | None = None,
) -> None:
    """Make the runs that are missing in `folder`, where each has a folder of its own name, with data from `root`.

    A run that is in the ledger need not have a folder, and one that is finished is entered there.
    """
    waiting, ledger = [], ledger or Ledger()
    for cell in cells:
        place = folder / cell.name
        if ledger.row(cell.settings) is not None:
            continue
        if RunFolder(place).config.exists() and key_of(read_config(place)) != key_of(cell.settings):
            raise ExperimentError(f"{place} was made with other settings: remove it, or choose another --folder")
        enter = partial(ledger.enter, cell.name, cell.settings, place)
        if finished(place):
            enter()
            continue
        data, model, train = cell.settings
        settings = Settings(replace(data, root=root or data.root), model, replace(train, accelerator=accelerator))
        waiting.append(Job(partial(train_run, settings, place), partial(_trained, place, train.epochs), enter))
    said = f"{len(cells)} runs in {folder}, {len(cells) - len(waiting)} of them finished before"
    Console().print(said, soft_wrap=True, markup=False, emoji=False)
    if waiting:
        with workers_at(cluster, jobs, accelerator) as workers:
            run_jobs("runs", waiting, len(waiting), workers)


class GivenUp(Exception):  # noqa: N818 (nothing is wrong)
    """Raised by a report to end a run before its last epoch, for good."""


def train_run(settings: Settings, folder: Path, reports: Sequence[Report] = ()) -> None:
    """Train a run from its start, or go on with what an earlier process left of it, unless it is finished.

    A run that diverges would do so again, so its failure is a result.
    """
    with locked(folder), contextlib.suppress(GivenUp):
        if not finished(folder):
            begun, quiet = RunFolder(folder).config.exists(), True
            clock = ProcessorClock(folder)
            try:
                data = settings.data
                observations = loaded(data.name, data.root, data.kind, data.selection)
                train_model(*settings, folder, begun, quiet, [*reports, clock], observations)
                clock()
            except DivergedError as error:
                write_json_atomically(RunFolder(folder).failure, {"message": str(error)})


loaded = lru_cache(maxsize=1)(load)  # runs on one data set follow each other


class ProcessorClock:
    """Report that keeps the seconds of processor time that a run took, over all processes that went on with it."""

    def __init__(self, folder: Path) -> None:
        self.path = RunFolder(folder).clock
        before = float(read_json(self.path)["seconds"]) if self.path.exists() else 0.0
        self.start = time.process_time() - before

    def __call__(self, loop: Loop | None = None) -> None:
        write_json_atomically(self.path, {"seconds": round(time.process_time() - self.start, 1)})


def finished(folder: Path) -> bool:
    """Return whether a run has come to its end, which may be that it diverged."""
    run = RunFolder(folder)
    return run.summary.exists() or run.failure.exists()


def _trained(folder: Path, epochs: int) -> float:
    """Return the finished part of a run's epochs."""
    path = RunFolder(folder).metrics
    if not path.exists():
        return 0.0
    return (len(path.read_text().splitlines()) - 1) / epochs
