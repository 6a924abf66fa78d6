"""Processes that need not start Python anew: each is forked from one that has imported everything.

Importing torch, Lightning and all that they look for takes six seconds of a core; a fork takes a hundredth of one.
"""

import gc
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from silentgrad import command

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "silentgrad.lab.cli.sweep",
        "silentgrad.lab.experiments.sweep",
        "silentgrad.lab.reports.compare",
        "silentgrad.lab.cli.training",
        "silentgrad.lab.training.run",
        "sklearn.datasets",
        "alembic.command",
        "psycopg",
        "distributed.cli.dask_scheduler",
        "distributed.cli.dask_worker",
        "pytest",  # what the tests were started with, which every process imports
    ]
)


def start(target: Callable[..., None], *args: object, output: Path) -> BaseProcess:
    """Starts a function that a fresh process can import, in a session of its own; its words go to a file or pipe."""
    process = context.Process(target=_alone, args=(target, *args), kwargs={"output": output})
    process.start()
    return process


def run(target: Callable[..., None], *args: object, output: Path) -> int | None:
    """Starts a function likewise and waits for its end; returns the exit code."""
    process = start(target, *args, output=output)
    process.join()
    return process.exitcode


def _alone(target: Callable[..., None], *args: object, output: Path) -> None:
    gc.freeze()  # collecting garbage would write to, and so copy, all the memory that is shared
    os.setsid()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}  # for processes that this one starts
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Started in the background, the tests would hand on that interrupts are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    target(*args)


def silentgrad(*words: str) -> None:
    """The command line, from its entry point; what it starts, it starts as the command that is installed."""
    sys.argv = [str(Path(sys.executable).with_name("silentgrad")), *words]
    command.main()


def silentgrad_on_a_full_disk(*words: str) -> None:
    """The command line, with a limit on the size of files that stands in for the full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    silentgrad(*words)


def script(path: Path, *words: str) -> None:
    sys.argv = [str(path), *words]
    runpy.run_path(str(path), run_name="__main__")
