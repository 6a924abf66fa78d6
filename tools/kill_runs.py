"""Kills a run at its writes to disk and at random moments, resumes it, and compares it with one that was left alone.

    python tools/kill_runs.py             every write, both kinds of temporary folder, folder moved or not
    python tools/kill_runs.py --quick     every write once, alternating between those
    python tools/kill_runs.py --random 100    at a hundred random moments

One process imports everything, then forks a child for each run. In the child, whatever writes to disk is counted, and
the child kills itself at a chosen count: before the operation or, if that writes content, with half of it written.
"""

import argparse
import builtins
import gc
import io
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from silentgrad.lab.reports import write_report
from silentgrad.lab.store.files import Metrics, read_metrics
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import Summary, read_summary
from silentgrad.lab.training import DataConfig, ModelConfig, TrainConfig, train_model

EPOCHS = 3
MOVES = ("replace", "rename", "link", "symlink", "unlink", "remove", "mkdir", "rmdir", "truncate", "fsync", "write")
WRITING = set("wax+")


class Case(NamedTuple):
    """One kill.

    Args:
        count: The operation to be killed at, counted from 1; 0 for none.
        torn: Whether half of what it writes reaches the disk.
        elsewhere: Whether the temporary folder is on another filesystem.
        moved: Whether the run's folder is moved before it is resumed.
    """

    count: int = 0
    torn: bool = False
    elsewhere: bool = False
    moved: bool = False


class Counter:
    """Counts the operations that change a disk and kills the process at one of them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.operations: list[str] = []

    def install(self) -> None:
        """Puts the counting in front of Python's own functions, in this process."""
        for name in MOVES:
            setattr(os, name, self._counted(getattr(os, name), name))
        opened = self._opened(io.open)
        io.open = opened
        builtins.open = opened
        os.open = self._opened_low(os.open)

    def step(self, name: str, half: Callable[[], object] | None = None) -> None:
        """Counts one operation; `half` does a half of it."""
        self.operations.append(name)
        if len(self.operations) != self.case.count:
            return
        if half is not None and self.case.torn:
            half()
        os.kill(os.getpid(), signal.SIGKILL)

    def _counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step(f"{name} {args[0]}")
            return function(*args, **kwargs)

        return counted

    def _opened(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not WRITING & set(mode) or isinstance(file, int) or str(file) == os.devnull:
                return function(file, mode, *args, **kwargs)
            self.step(f"open {file}")
            return CountedFile(function(file, mode, *args, **kwargs), self)

        return opened

    def _opened_low(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.step(f"open {path}")
            return function(path, flags, *args, **kwargs)

        return opened


class CountedFile:
    """A file whose writes are counted."""

    def __init__(self, file: Any, counter: Counter) -> None:
        self.file, self.counter = file, counter

    def write(self, content: Any) -> int:
        """Writes, unless this is where the process is killed."""

        def half() -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()

        self.counter.step(f"write {self.file.name}", half)
        return int(self.file.write(content))

    def __enter__(self) -> "CountedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Workshop:
    """A folder with data to train on, a run that nobody disturbed, and room for those that are killed.

    Args:
        folder: Where the runs go.
        elsewhere: A folder on another filesystem.
        report: Write the report too, as the command does.
    """

    def __init__(self, folder: Path, elsewhere: Path, report: bool) -> None:
        self.folder, self.report = folder, report
        self.data = folder / "images.npy"
        np.save(self.data, np.random.default_rng(0).integers(0, 256, (24, 4, 4), dtype=np.uint8))
        self.whole = folder / "whole"
        self.same, self.other = folder / "tmp", elsewhere
        self.same.mkdir()
        log = folder / "operations"
        self._train(folder / "warm")  # what is imported on first use is imported before the forks
        gc.freeze()
        started = time.perf_counter()
        if _ended(_fork(lambda: self._train(self.whole, Case(), log))) != 0:
            raise RuntimeError("the run that was left alone failed")
        self.seconds = time.perf_counter() - started
        self.operations = log.read_text().splitlines()

    def cases(self) -> Iterator[Case]:
        """Every operation, and every writing of content once more, half done."""
        for count, operation in enumerate(self.operations, start=1):
            yield Case(count)
            if operation.startswith("write "):
                yield Case(count, torn=True)

    def killed_at_write(self, case: Case) -> list[str]:
        """What is wrong with a run that was killed at one of its operations and resumed."""
        place = self.folder / f"run-{case.count}-{case.torn}-{case.elsewhere}-{case.moved}"
        child = _fork(lambda: self._train(place, case))
        if _ended(child) != -signal.SIGKILL:
            return ["was not killed"]
        return self._resumed(place, case)

    def killed_at(self, seconds: float, case: Case) -> list[str]:
        """What is wrong with a run that was killed after some time and resumed."""
        place = self.folder / f"run-{seconds:.6f}"
        child = _fork(lambda: self._train(place, case))
        timer = threading.Timer(seconds, os.kill, (child, signal.SIGKILL))
        timer.start()
        status = _ended(child)
        timer.cancel()
        if status not in (0, -signal.SIGKILL):
            return [f"ended with status {status}"]
        return self._resumed(place, case)

    def _resumed(self, place: Path, case: Case) -> list[str]:
        if case.moved and place.exists():
            place = place.rename(place.with_name(f"{place.name}-moved"))
        status = _ended(_fork(lambda: self._train(place, case._replace(count=0))))
        found = differences(self.whole, place) if status == 0 else [f"resuming ended with status {status}"]
        for temporary in (self.same, self.other):
            found += [f"{path} is left" for path in temporary.iterdir()]
        shutil.rmtree(place)
        return found

    def _train(self, folder: Path, case: Case | None = None, log: Path | None = None) -> None:
        if case is not None:
            tempfile.tempdir = str(self.other if case.elsewhere else self.same)
            counter = Counter(case)
            counter.install()
        train_model(
            DataConfig(name=str(self.data), batch_size=4),
            ModelConfig(latent_dim=2, hidden=[8], tractable="none"),
            TrainConfig(epochs=EPOCHS, lr=0.4, seed=2, accelerator="cpu", keep=[2]),
            folder,
            resume=RunFolder(folder).config.exists(),
            quiet=True,
        )
        if self.report:
            write_report(folder)
        if log is not None:
            log.write_text("\n".join(counter.operations[:]))


def differences(whole: Path, other: Path) -> list[str]:
    """In what a run differs from another, but for the time it took."""
    names, others = (sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (whole, other))
    found = [] if names == others else [f"files {set(names) ^ set(others)}"]
    for one, two in zip(_files(RunFolder(whole)), _files(RunFolder(other)), strict=True):
        if not two.exists() or one.read_bytes() != two.read_bytes():
            found.append(f"{one.relative_to(whole)} differs")
    if _summary(whole) != _summary(other):
        found.append(f"summary {_summary(other)} instead of {_summary(whole)}")
    if _metrics(whole) != _metrics(other):
        found.append(f"metrics of {len(_metrics(other)['epoch'])} epochs differ")
    return found


def _files(run: RunFolder) -> list[Path]:
    """The files that are the same to the bit."""
    return [run.weights, run.pictures, run.kept(2)]


def _summary(folder: Path) -> Summary:
    return replace(read_summary(RunFolder(folder).summary), seconds=0.0)


def _metrics(folder: Path) -> Metrics:
    metrics = read_metrics(RunFolder(folder).metrics)
    metrics.pop("seconds")
    return metrics


def _fork(action: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        action()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _trials(workshop: Workshop, arguments: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """What was done, and what was wrong then."""
    places = list(itertools.product((False, True), repeat=2))
    if arguments.random:
        generator = random.Random(arguments.seed)
        for number in range(arguments.random):
            elsewhere, moved = places[number % 4]
            seconds = generator.uniform(0, workshop.seconds)
            yield f"after {seconds:.3f} s", workshop.killed_at(seconds, Case(elsewhere=elsewhere, moved=moved))
        return
    for number, case in enumerate(workshop.cases()):
        chosen = places[number % 4 : number % 4 + 1] if arguments.quick else places
        for elsewhere, moved in chosen:
            placed = case._replace(elsewhere=elsewhere, moved=moved)
            yield f"{workshop.operations[case.count - 1]} {placed}", workshop.killed_at_write(placed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each write once")
    parser.add_argument("--random", type=int, default=0, metavar="COUNT", help="kill at so many random moments")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--report", action="store_true", help="include the writing of the report")
    parser.add_argument("--folder", type=Path, help="where the runs go; the temporary folder if absent")
    parser.add_argument("--elsewhere", type=Path, default=Path("/dev/shm"), help="a folder on another filesystem")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        tempfile.TemporaryDirectory(dir=arguments.elsewhere) as elsewhere,
    ):
        workshop = Workshop(Path(folder), Path(elsewhere), arguments.report)
        best = _summary(workshop.whole).best_epoch
        told = (
            f"{len(workshop.operations)} operations in {workshop.seconds:.1f} s, epoch {best} of {EPOCHS} is the best"
        )
        print(told, flush=True)
        good = total = 0
        for told, wrong in _trials(workshop, arguments):
            total += 1
            good += not wrong
            if wrong:
                print(f"{told}: {'; '.join(wrong)}", flush=True)
    print(f"{good} of {total} ended as the one that was left alone")
    sys.exit(good != total)


if __name__ == "__main__":
    main()
