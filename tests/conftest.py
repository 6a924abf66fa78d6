"""Fixtures and settings of all tests."""

import gc
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import browser

if TYPE_CHECKING:
    from runs import Cli


def pytest_collection() -> None:
    """Collect no garbage while modules are imported: they leave half a million objects and next to none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what was imported, so that no collection has to look through it again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages whose figures are made, but not drawn, which takes most of their time."""
    monkeypatch.setattr("silentgrad.lab.reports.page.Picture.png", b"")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> "Cli":
    import runs  # which takes seconds

    return runs.Cli(capsys)


@pytest.fixture(params=browser.WIDTHS)
def look(request: pytest.FixtureRequest, tmp_path: Path) -> browser.Look:
    """Show a page in a browser, at the width of a telephone and of a desk."""
    if browser.BROWSER is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the PATH")
    return partial(browser.look, width=request.param, scratch=tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BaseProcess]]:
    """Start a scheduler of Dask, or a worker, that ends with the test."""
    import processes
    import workers

    running = []

    def starting(*words: str) -> BaseProcess:
        words += ("--host", "127.0.0.1", "--no-dashboard")
        running.append(processes.start(workers.dask, *words, output=tmp_path / f"{words[0]}.txt"))
        return running[-1]

    yield starting
    for process in running:
        process.kill()
        process.join()


@pytest.fixture
def scheduler(tmp_path: Path, start: Callable[..., BaseProcess]) -> str:
    """Return the address of a scheduler without workers."""
    pytest.importorskip("distributed", reason="the extra cluster is not installed")
    start("scheduler", "--port", "0")
    said = tmp_path / "scheduler.txt"
    while not (found := re.search(r"Scheduler at: +(tcp://\S+)", said.read_text() if said.exists() else "")):
        time.sleep(0.02)
    return found[1]


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of a tiny model, which no test may change."""
    import runs

    folder = tmp_path_factory.mktemp("digits") / "run"
    runs.train(folder)
    return folder


@pytest.fixture(scope="session")
def h5ad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write counts of cells as anndata does."""
    import cells  # which takes a second

    path = tmp_path_factory.mktemp("cells") / "cells.h5ad"
    cells.as_anndata(cells.counts().astype("f4")).write_h5ad(path)
    return path


@pytest.fixture(scope="session")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the same and what is known of the rows as pandas does."""
    import cells

    path = tmp_path_factory.mktemp("tables") / "table.csv"
    cells.frame().to_csv(path, index=False)
    return path
