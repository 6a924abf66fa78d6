"""What holds for all tests."""

import gc
from collections.abc import Iterator

import pytest
import torch


def pytest_collection() -> None:
    """Imports leave half a million objects and next to no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays, so that no collection has to look through it again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
