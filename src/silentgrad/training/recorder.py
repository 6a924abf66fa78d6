"""What a run leaves on disk while it goes on: a row of figures per epoch, and what it ran on."""

import csv
import importlib.metadata
import io
import platform
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import lightning
import torch

from silentgrad.records import write_atomically, write_tensors_atomically
from silentgrad.training.loop import TrainingPlan

COLUMNS = (
    "epoch", "seconds", "valid_bpd", "valid_mse", "valid_kld", "valid_active", "train_loss",
    "w_lin", "variance", "lr", "lr_mean", "lr_precision",
)  # fmt: skip


class Recorder(lightning.Callback):
    """Writes `metrics.csv`, the whole file each epoch and atomically, so that a kill leaves a complete one.

    A resumed run keeps the rows of the epochs it does not repeat.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.csv"
        self.rows: list[dict[str, Any]] = []
        self.before = 0.0

    def on_train_start(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if self.path.exists():
            with self.path.open(newline="") as file:
                self.rows = [row for row in csv.DictReader(file) if int(row["epoch"]) <= trainer.current_epoch]
            self.before = float(self.rows[-1]["seconds"]) if self.rows else 0.0
        self.start = time.perf_counter()

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if not trainer.is_global_zero or not isinstance(plan, TrainingPlan):
            return
        row = {
            "epoch": plan.epoch,
            "seconds": round(self.before + time.perf_counter() - self.start, 3),
            **plan.figures,
            "train_loss": torch.stack(plan.losses).double().mean().item(),
            "w_lin": plan.model.w_lin(plan.epoch),
            "variance": plan.variance(plan.epoch) if hasattr(plan.model.linear, "variance") else "",
            **{group["name"]: group["lr"] for group in trainer.optimizers[0].param_groups},
        }
        self.rows.append(row)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.path, text.getvalue().encode())


class Keeper(lightning.Callback):
    """Keeps the model's weights of chosen epochs.

    Args:
        folder: The run's.
        epochs: Which, counted from 1.
    """

    def __init__(self, folder: Path, epochs: Collection[int]) -> None:
        self.folder, self.epochs = folder / "epochs", epochs

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if trainer.is_global_zero and isinstance(plan, TrainingPlan) and plan.epoch in self.epochs:
            self.folder.mkdir(exist_ok=True)
            write_tensors_atomically(self.folder / f"{plan.epoch}.safetensors", plan.model.state_dict())


def environment() -> dict[str, str]:
    """Versions and the machine, as far as they can change a result."""
    packages = ("silentgrad", "torch", "lightning", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "python": sys.version.split()[0],
        **versions,
        "system": platform.platform(terse=True),
        "device": device,
        "threads": str(torch.get_num_threads()),
    }
