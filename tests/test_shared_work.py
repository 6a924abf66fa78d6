"""Whoever dies, the work is done once: by workers of this machine, on a Dask cluster and by processes of one study.

The cluster is a real scheduler with workers on the loopback; the study is in SQLite and on a PostgreSQL server.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import optuna
import pytest
import torch

import processes
import workers
from refusals import refused
from runs import SMALL, Cli
from silentgrad.errors import SilentgradError
from silentgrad.lab.experiments import runner
from silentgrad.lab.experiments.space import Sweep
from silentgrad.lab.training import read_config
from workers import LONG, long_run, shared_sweep, started, worker_at


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
    assert (len(after), after[0]) == (LONG, done[0])  # with its seconds: the first was not trained again


@pytest.mark.parametrize(("told", "threads"), [(None, max(1, (os.cpu_count() or 1) // 2)), ("3", 3)])
def test_threads_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, threads: int) -> None:
    """OMP_NUM_THREADS wins over a worker's share of the cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        monkeypatch.setattr(torch, "get_num_threads", lambda: int(told))  # as if set before torch was imported
    with runner.workers_at(None, 2, "cpu") as found:
        runner.run_jobs("jobs", [runner.Job(partial(workers.write_threads, tmp_path / "threads"))], 1, found)
    assert (tmp_path / "threads").read_text() == str(threads)


def test_a_killed_worker_is_named_and_the_same_command_goes_on() -> None:
    told = "a worker process was killed; call again to go on"
    with pytest.raises(SilentgradError, match=told), runner.workers_at(None, 2, "cpu") as found:
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


of_dask = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore::ResourceWarning")


@of_dask
def test_the_run_of_a_killed_worker_is_finished_by_another(
    tmp_path: Path, scheduler: str, start: Callable[..., BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [long_run().at({}, seed) for seed in range(3)]
    cluster, local = tmp_path / "cluster", tmp_path / "local"
    cluster.mkdir()
    (tmp_path / "worker.txt").touch()
    doomed, _ = [start(*worker_at(scheduler)) for _ in range(2)]
    while (tmp_path / "worker.txt").read_text().count("Registered to") < 2:
        time.sleep(0.02)

    def watch(*_: object) -> float:
        epochs = [len(path.read_text().splitlines()) - 1 for path in cluster.glob("*/metrics.csv")]
        if sum(0 < done < LONG for done in epochs) == 2:  # both workers are at it
            doomed.kill()
        return 0.0

    monkeypatch.setattr(runner, "train_run", workers.train_and_log)
    monkeypatch.setattr(runner, "_trained", watch)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    runner.run_all(cells, cluster, None, None, "cpu", scheduler)
    monkeypatch.undo()
    log = Counter((cluster / "log.txt").read_text().splitlines())
    assert sorted(log[f"begun {cell.name}"] for cell in cells) == [1, 1, 2]
    for cell in cells:
        assert log[f"ended {cell.name}"] == 1
        runner.train_run(cell.settings, local / cell.name)
        weights = f"{cell.name}/model.safetensors"
        assert (cluster / weights).read_bytes() == (local / weights).read_bytes()
    assert not list(cluster.glob(".*.lock"))


@of_dask
def test_a_sweep_on_a_cluster(tmp_path: Path, scheduler: str, start: Callable[..., BaseProcess], cli: Cli) -> None:
    start(*worker_at(scheduler))
    over = ["--over", "train.lr=1e-3,1e-4", "--cluster", scheduler, "--folder", str(tmp_path / "sweep")]
    said = cli("sweep", *SMALL, "--data.batch_size=256", "--train.epochs=1", *over)
    assert "2 of 2 trials done" in said
    assert {path.parent.name for path in tmp_path.glob("sweep/*/summary.json")} == {"trial-0000", "trial-0001"}


@of_dask
def test_a_cluster_that_cannot_be_used(
    tmp_path: Path, scheduler: str, start: Callable[..., BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def useless(reason: str, jobs: int | None = None, at: str = scheduler) -> None:
        refused(SilentgradError, reason, lambda: runner.run_all([long_run()], tmp_path / "runs", jobs, None, "cpu", at))

    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    useless("--jobs is the number of processes of this machine", jobs=2)
    for nobody in ("tcp://127.0.0.1:9", "nonsense", "none://host"):
        useless(f"no scheduler answers at --cluster {nobody}: start one by `dask scheduler`", at=nobody)
    useless("has no workers: start some by `dask worker .* --nthreads 1`")
    monkeypatch.setattr(runner, "PATIENCE", 10)
    start(*worker_at(scheduler, threads=2))
    useless("start all with --nthreads 1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    useless(r"pip install 'silentgrad\[cluster\]'")
    assert not (tmp_path / "runs").exists()


TOGETHER = 4


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Return the address of a server of our own; each test has a database in it."""
    pytest.importorskip("psycopg", reason="the PostgreSQL driver psycopg is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    program = shutil.which("postgres") or (str(found[-1]) if found else None)
    if program is None:
        pytest.skip("PostgreSQL is not installed; Debian's package postgresql has it")
    user = "nobody" if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))  # not in pytest's own folder, which only its user may enter
    if user:
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def run(name: str, *words: str) -> None:
        words = (str(Path(program).with_name(name)), "-D", "data", *words)
        subprocess.run(words, cwd=folder, user=user, check=True, stdout=subprocess.DEVNULL)

    run("initdb", "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync")
    run("pg_ctl", "start", "-w", "-l", "log", "-o", f"-h 127.0.0.1 -p {port} -k {folder} -F")
    yield f"postgresql+psycopg://tester@127.0.0.1:{port}"
    run("pg_ctl", "stop", "-m", "fast")
    shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    return new_on(request.getfixturevalue("postgresql"), "trained")


def new_on(server: str, name: str) -> str:
    import psycopg

    with psycopg.connect(f"{server.replace('+psycopg', '')}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}"


def at_once(target: Callable[..., None], sweep: Sweep, url: str, dying: int = 0) -> list[int | None]:
    """Run the processes, some of which die; the exit codes, those of the dying first."""
    sweep.folder.mkdir(exist_ok=True)
    together = processes.context.Barrier(TOGETHER)
    extra = [{"dies": True}] * dying + [{}] * (TOGETHER - dying)
    running = [processes.context.Process(target=target, args=(sweep, url, together), kwargs=more) for more in extra]
    for process in running:
        process.start()
    for process in running:
        process.join()
    return [process.exitcode for process in running]


def trials(url: str) -> list[optuna.trial.FrozenTrial]:
    storage = optuna.storages.RDBStorage(url)
    found = optuna.load_study(study_name="shared", storage=storage).trials
    storage.engine.dispose()
    return found


def assert_each_is_done_once(sweep: Sweep, url: str) -> None:
    done = [trial.params["train.lr"] for trial in trials(url) if trial.state.name in ("COMPLETE", "PRUNED")]
    assert sorted(done) == sorted(sweep.space["train.lr"].values)


def test_each_point_of_a_new_study_is_trained_once(tmp_path: Path, url: str) -> None:
    sweep = shared_sweep(tmp_path / "sweep", 12)
    assert at_once(workers.train_at_once, sweep, url) == [0] * TOGETHER
    assert sorted(Counter(started(sweep)).values()) == [1] * 12
    assert_each_is_done_once(sweep, url)


def test_the_point_of_a_killed_process_is_finished_by_another(tmp_path: Path, postgresql: str) -> None:
    sweep, url = shared_sweep(tmp_path / "sweep", 4), new_on(postgresql, "killed")
    assert at_once(workers.train_to_the_end, sweep, url, dying=1) == [-signal.SIGKILL, 0, 0, 0]
    counts = Counter(started(sweep))
    assert sorted(counts.values()) == [1, 1, 1, 2]
    assert_each_is_done_once(sweep, url)
    (resumed,) = [name for name, count in counts.items() if count == 2]
    rate = read_config(sweep.folder / resumed).train.lr
    states = [trial.state.name for trial in trials(url) if float(trial.params["train.lr"]) == rate]
    assert "FAIL" in states
