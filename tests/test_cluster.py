"""Runs on a Dask cluster: a real scheduler and workers on the loopback, one of which is killed in the middle."""

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import processes
import workers
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.main import main
from silentgrad.lab.experiments import runner
from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.runner import run_all
from workers import LONG, long_run

pytest.importorskip("distributed", reason="the extra cluster is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore::ResourceWarning")
LOOPBACK = ["--host", "127.0.0.1", "--no-dashboard"]
SEEDS = 3


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BaseProcess]]:
    """Start a scheduler or a worker that ends with the test."""
    running = []

    def starting(*words: str) -> BaseProcess:
        running.append(processes.start(workers.dask, *words, *LOOPBACK, output=tmp_path / f"{words[0]}.txt"))
        return running[-1]

    yield starting
    for process in running:
        process.kill()
        process.join()


@pytest.fixture
def scheduler(tmp_path: Path, start: Callable[..., BaseProcess]) -> str:
    """Return the address of a scheduler without workers."""
    start("scheduler", "--port", "0")
    said = tmp_path / "scheduler.txt"
    while not (found := re.search(r"Scheduler at: +(tcp://\S+)", said.read_text() if said.exists() else "")):
        time.sleep(0.02)
    return found[1]


def worker_at(scheduler: str, threads: int = 1) -> list[str]:
    return ["worker", scheduler, "--no-nanny", "--nthreads", str(threads)]


def seeded(seed: int) -> Cell:
    settings = long_run().settings
    return long_run()._replace(seed=seed, settings=settings._replace(train=replace(settings.train, seed=seed)))


def in_training(folder: Path) -> int:
    """Return the number of runs that have finished some of their epochs."""
    epochs = [len(path.read_text().splitlines()) - 1 for path in folder.glob("*/metrics.csv")]
    return sum(0 < done < LONG for done in epochs)


def test_the_run_of_a_killed_worker_is_finished_by_another(
    tmp_path: Path, scheduler: str, start: Callable[..., BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [seeded(seed) for seed in range(SEEDS)]
    cluster, local = tmp_path / "cluster", tmp_path / "local"
    cluster.mkdir()
    (tmp_path / "worker.txt").touch()
    doomed, _ = [start(*worker_at(scheduler)) for _ in range(2)]
    while (tmp_path / "worker.txt").read_text().count("Registered to") < 2:
        time.sleep(0.02)

    def watch(*_: object) -> float:
        if in_training(cluster) == 2:
            doomed.kill()
        return 0.0

    monkeypatch.setattr(runner, "train_run", workers.train_and_log)
    monkeypatch.setattr(runner, "_trained", watch)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    run_all(cells, cluster, None, None, "cpu", scheduler)
    monkeypatch.undo()
    log = Counter((cluster / "log.txt").read_text().splitlines())
    assert sorted(log[f"begun {cell.name}"] for cell in cells) == [1, 1, 2]
    for cell in cells:
        assert log[f"ended {cell.name}"] == 1
        runner.train_run(cell.settings, local / cell.name)
        weights = f"{cell.name}/model.safetensors"
        assert (cluster / weights).read_bytes() == (local / weights).read_bytes()
    assert not list(cluster.glob(".*.lock"))


def test_a_sweep_on_a_cluster(
    tmp_path: Path, scheduler: str, start: Callable[..., BaseProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    start(*worker_at(scheduler))
    small = "--data.batch_size 256 --model.latent_dim 2 --model.hidden 4 --train.epochs 1 --train.accelerator cpu"
    over = ["--over", "train.lr=1e-3,1e-4", "--cluster", scheduler, "--folder", str(tmp_path / "sweep")]
    main(["sweep", *small.split(), *over, "--quiet", "true"])
    assert "2 of 2 trials done" in capsys.readouterr().out
    assert {path.parent.name for path in tmp_path.glob("sweep/*/summary.json")} == {"trial-0000", "trial-0001"}


def test_a_cluster_that_cannot_be_used(
    tmp_path: Path, scheduler: str, start: Callable[..., BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(reason: str, jobs: int | None = None, at: str = scheduler) -> None:
        with pytest.raises(SilentgradError, match=reason):
            run_all([long_run()], tmp_path / "runs", jobs, None, "cpu", at)

    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    refused("--jobs is the number of processes of this machine", jobs=2)
    for nobody in ("tcp://127.0.0.1:9", "nonsense", "none://host"):
        refused(f"no scheduler answers at --cluster {nobody}: start one by `dask scheduler`", at=nobody)
    refused("has no workers: start some by `dask worker .* --nthreads 1`")
    monkeypatch.setattr(runner, "PATIENCE", 10)
    start(*worker_at(scheduler, threads=2))
    refused("start all with --nthreads 1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    refused(r"pip install 'silentgrad\[cluster\]'")
    assert not (tmp_path / "runs").exists()
