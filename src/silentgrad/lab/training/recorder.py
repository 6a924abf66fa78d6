"""What a run leaves on disk while it goes on: a row of figures per epoch, and what it ran on."""

import importlib.metadata
import platform
import sys
import time
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import lightning
import torch

from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.metrics import METRICS
from silentgrad.lab.runs.records import append_durably, write_atomically, write_tensors_atomically
from silentgrad.lab.runs.rows import csv_line
from silentgrad.lab.training.loop import TrainingPlan

AFTER_FIGURES = ("train_loss", "weight", "variance", "lr", "lr_network", "lr_mean", "lr_precision")


class Recorder(lightning.Callback):
    """Appends a row to `metrics.csv` every epoch.

    A checkpoint holds the rows of its epochs too. From them a resumed run restores the file: without the row of an
    epoch that a kill left unfinished, and with those that were lost.

    Args:
        folder: The run's folder.
        metric: Name of the figure that the observations are told in.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self.path = RunFolder(folder).metrics
        figures = (f"valid_{name}" for name in (metric, *METRICS, "kld", "active"))
        self.columns = ("epoch", "seconds", *figures, *AFTER_FIGURES)
        self.lines = [csv_line(self.columns)]
        self.before = 0.0  # seconds of earlier processes, up to the epoch that this one goes on from
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time that the run has taken so far, over all processes that went on with it."""
        return self.before + time.perf_counter() - self.start

    def state_dict(self) -> dict[str, Any]:
        return {"text": "".join(self.lines), "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lines = state["text"].splitlines(keepends=True)
        self.before = state["seconds"]

    def on_fit_start(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        content = "".join(self.lines).encode()
        if len(self.lines) > 1 and not self._starts_with(content):
            warnings.warn(f"{self.path} was damaged; its rows are restored from the last checkpoint", stacklevel=2)
        write_atomically(self.path, content)

    def _starts_with(self, content: bytes) -> bool:
        try:
            return self.path.read_bytes().startswith(content)
        except OSError:
            return False

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if not isinstance(plan, TrainingPlan):
            return
        row = self._row(plan, trainer.optimizers[0])
        self.lines.append(csv_line([row.get(column, "") for column in self.columns]))
        if trainer.is_global_zero:
            append_durably(self.path, self.lines[-1].encode())

    def _row(self, plan: TrainingPlan, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The figures of an epoch by column; a column that is absent stays empty."""
        row: dict[str, Any] = {"epoch": plan.epoch, "seconds": round(self.seconds, 3)}
        found = plan.evaluation
        row[f"valid_{found.unit.metric}"] = found.figure
        for name, value in found.metrics.items():
            row[f"valid_{name}"] = value
        row["valid_kld"] = found.kld
        row["valid_active"] = found.active
        row["train_loss"] = torch.stack(plan.losses).double().mean().item()
        if plan.model.tractable is not None and plan.model.nonlinear is not None:  # else there is nothing to weigh
            row["weight"] = plan.model.weight(plan.epoch)
        if hasattr(plan.model.tractable, "variance"):
            row["variance"] = plan.variance(plan.epoch)
        for group in optimizer.param_groups:
            row[group["name"]] = group["lr"]
        return row


class Keeper(lightning.Callback):
    """Keeps the model's weights of chosen epochs.

    Args:
        folder: The run's folder.
        epochs: The chosen epochs, counted from 1.
    """

    def __init__(self, folder: Path, epochs: Collection[int]) -> None:
        self.run, self.epochs = RunFolder(folder), epochs

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if trainer.is_global_zero and isinstance(plan, TrainingPlan) and plan.epoch in self.epochs:
            self.run.epochs.mkdir(exist_ok=True)
            write_tensors_atomically(self.run.kept(plan.epoch), plan.model.state_dict())


def environment() -> dict[str, str]:
    """Versions and the machine, as far as they can change a result."""
    found = {"python": sys.version.split()[0]}
    for package in ("silentgrad", "torch", "lightning", "numpy"):
        found[package] = importlib.metadata.version(package)
    found["system"] = platform.platform(terse=True)
    found["device"] = _device()
    found["threads"] = str(torch.get_num_threads())
    return found


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine()
