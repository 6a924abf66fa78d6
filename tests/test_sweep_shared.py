"""Four processes share one study, in SQLite and on a PostgreSQL server: each point is trained once, whoever dies."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest

import workers
from processes import context
from silentgrad.lab.experiments.space import Sweep
from silentgrad.lab.training import read_config
from workers import shared_sweep, started

TOGETHER = 4
ALONE = "nobody"  # PostgreSQL refuses to run as root


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Return the address of a server of our own; each test has a database in it."""
    pytest.importorskip("psycopg", reason="the PostgreSQL driver psycopg is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    program = shutil.which("postgres") or (str(found[-1]) if found else None)
    if program is None:
        pytest.skip("PostgreSQL is not installed; Debian's package postgresql has it")
    user = ALONE if os.getuid() == 0 else None
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
    together = context.Barrier(TOGETHER)
    extra = [{"dies": True}] * dying + [{}] * (TOGETHER - dying)
    running = [context.Process(target=target, args=(sweep, url, together), kwargs=more) for more in extra]
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
