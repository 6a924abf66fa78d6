"""Kills leave no process, and nothing that the same command could not go on with to the same end."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

import processes
import workers
from silentgrad.errors import SilentgradError
from silentgrad.lab.experiments import runner
from workers import LONG, long_run


def epochs_done(folder: Path) -> list[str]:
    metrics = folder / long_run().name / "metrics.csv"
    return metrics.read_text().splitlines()[1:] if metrics.exists() else []


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[list[int]]:
    """Yield the reading ends of two named pipes: one that only the worker holds, and the output of all processes."""
    reading = []
    for name in ("worker", "said"):
        os.mkfifo(tmp_path / name)
        reading.append(os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK))
    yield reading
    for descriptor in reading:
        os.close(descriptor)


@pytest.fixture
def reproducing(tmp_path: Path, pipes: list[int]) -> Iterator[BaseProcess]:
    process = processes.start(workers.reproduce, tmp_path, output=tmp_path / "said")
    yield process
    process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def ends(reading: int, seconds: float) -> bool:
    """Whether, within some time, nobody is left who could write into a pipe."""
    waiting = select.poll()
    waiting.register(reading, 0)  # an end is reported without being asked for
    return bool(waiting.poll(1000 * seconds))


def test_workers_end_when_their_parent_is_killed(tmp_path: Path, pipes: list[int], reproducing: BaseProcess) -> None:
    worker, said = pipes
    while len(epochs_done(tmp_path)) < 2:  # so that the first has a checkpoint
        assert reproducing.is_alive(), "ended before it could be killed"
        time.sleep(0.02)
    assert not ends(worker, seconds=0)
    reproducing.kill()
    assert ends(worker, seconds=2)
    assert ends(said, seconds=60)  # then the process that it was forked from, which has all of Python to tidy up
    done = epochs_done(tmp_path)
    assert len(done) < LONG
    runner.train_run(long_run().settings, tmp_path / long_run().name)  # what a worker does with it the next time
    after = epochs_done(tmp_path)
    assert len(after) == LONG
    assert after[0] == done[0]  # with its seconds: it was not trained again


@pytest.mark.parametrize(("explicit", "threads"), [(None, max(1, (os.cpu_count() or 1) // 2)), ("3", 3)])
def test_threads_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, explicit: str | None, threads: int
) -> None:
    """OMP_NUM_THREADS wins over a worker's share of the cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if explicit is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", explicit)
        monkeypatch.setattr(torch, "get_num_threads", lambda: int(explicit))  # as if set before torch was imported
    with runner.workers_at(None, 2, "cpu") as found:
        runner.run_jobs("jobs", [runner.Job(partial(workers.write_threads, tmp_path / "threads"))], 1, found)
    assert (tmp_path / "threads").read_text() == str(threads)


def test_a_killed_worker_is_named_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with (
        pytest.raises(SilentgradError, match="a worker process was killed; call again to go on"),
        runner.workers_at(None, 2, "cpu") as found,
    ):
        runner.run_jobs("jobs", [runner.Job(workers.die)], 1, found)


MEMORY = Path("/dev/shm")  # where flushing to disk costs nothing
TOOL = Path(__file__).parents[1] / "tools" / "kill_runs.py"


def test_killed_at_every_write(tmp_path: Path) -> None:
    """With the temporary folder on the same or another filesystem in turn, and the run's folder moved or not."""
    place = MEMORY if MEMORY.is_dir() else tmp_path
    output = tmp_path / "said.txt"
    words = ["--quick", "--folder", str(place), "--elsewhere", str(tmp_path)]
    code = processes.run(processes.script, TOOL, *words, output=output)
    said = output.read_text()
    assert code == 0, said
    operations = int(said.split()[0])
    assert operations > 50
    good, _, total, *_ = said.splitlines()[-1].split()
    assert int(good) == int(total) >= operations
