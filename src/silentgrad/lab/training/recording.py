"""Records of a run while it goes on: a row of figures per epoch, kept weights, and a bar on the screen."""

import contextlib
import importlib.metadata
import platform
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from silentgrad.lab.runs.evaluation import METRICS
from silentgrad.lab.store import files
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training.loop import RATES, Loop, Report


class Recorder:
    """Adds a row to `metrics.csv` at the end of each epoch.

    A checkpoint holds the rows so far too. From them a resumed run restores the file: without the row of an epoch
    that a kill left unfinished, and with those that were lost.
    """

    def __init__(self, run: RunFolder, metric: str) -> None:
        self.path = run.metrics
        figures = (f"valid_{name}" for name in (metric, *METRICS, "kld", "active"))
        self.columns = ("epoch", "seconds", *figures, "train_loss", "weight", "variance", *RATES)
        self.lines = [files.csv_line(self.columns)]
        self.before = 0.0  # seconds of earlier processes, up to the epoch that this one goes on from
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time that the run has taken so far, over all processes that went on with it."""
        return self.before + time.perf_counter() - self.start

    def state(self) -> dict[str, Any]:
        return {"text": "".join(self.lines), "seconds": self.seconds}

    def restore(self, state: dict[str, Any]) -> None:
        self.lines, self.before = state["text"].splitlines(keepends=True), state["seconds"]

    def begin(self) -> None:
        found = ""
        with contextlib.suppress(OSError, ValueError):
            found = self.path.read_text("utf-8")
        if len(self.lines) > 1 and not found.startswith("".join(self.lines)):
            warnings.warn(f"{self.path} was damaged; its rows are restored from the last checkpoint", stacklevel=2)
        self._write()

    def __call__(self, loop: Loop) -> None:
        found, model = loop.evaluation, loop.model
        row: dict[str, Any] = {
            "epoch": loop.epoch,
            "seconds": round(self.seconds, 3),
            f"valid_{found.unit.metric}": found.figure,
            **{f"valid_{name}": value for name, value in found.metrics.items()},
            "valid_kld": found.kld,
            "valid_active": found.active,
            "train_loss": torch.stack(loop.losses).double().mean().item(),
            **{name: group["lr"] for group in loop.optimizer.param_groups for name in group["names"]},
        }
        if model.tractable is not None and model.nonlinear is not None:  # else there is nothing to weigh
            row["weight"] = model.weight(loop.epoch)
        if hasattr(model.tractable, "variance"):
            row["variance"] = loop.variance(loop.epoch)
        self.lines.append(files.csv_line([row.get(column, "") for column in self.columns]))
        if loop.fabric.is_global_zero:
            self._write()

    def _write(self) -> None:
        files.write_atomically(self.path, "".join(self.lines).encode())


def keeper(run: RunFolder) -> Report:
    """Return what keeps the weights of the epochs that are asked for."""

    def keep(loop: Loop) -> None:
        if loop.fabric.is_global_zero and loop.epoch in loop.train.keep:
            run.epochs.mkdir(exist_ok=True)
            files.write_tensors_atomically(run.kept(loop.epoch), loop.model.state_dict())

    return keep


@contextlib.contextmanager
def progress_of(loop: Loop, quiet: bool, prefix: str = "") -> Iterator[Report]:
    """One bar for the whole training; what it yields moves it on by a step, those of earlier processes are done."""
    if quiet or not loop.fabric.is_global_zero:
        yield lambda loop: None
        return
    told, figure = "{task.description}", "left{task.fields[figure]}"  # rich puts a space between
    with Progress(told, BarColumn(), MofNCompleteColumn(), "steps", TimeRemainingColumn(), figure) as progress:
        task = progress.add_task(f"{prefix}epoch", total=loop.steps, completed=loop.step, figure="")

        def advance(loop: Loop) -> None:
            found = getattr(loop, "evaluation", None)
            figure = f", validation {found.unit.tell(found.figure)}" if found else ""
            told = f"{prefix}epoch {loop.epoch} of {loop.train.epochs}"
            progress.update(task, completed=loop.step, description=told, figure=figure)

        yield advance


def environment() -> dict[str, str]:
    """Return versions and the machine, as far as they can change a result."""
    packages = ("silentgrad", "torch", "lightning", "numpy")
    processor = platform.processor() or platform.machine()
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
        "system": platform.platform(terse=True),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else processor,
        "threads": str(torch.get_num_threads()),
    }
