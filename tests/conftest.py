"""Fixtures and settings of all tests."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


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
    monkeypatch.setattr("silentgrad.lab.reports.page.png", lambda figure: b"")


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
