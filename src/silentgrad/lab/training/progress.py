"""The progress bar of a run: epochs and steps as people count them, and the time that is left."""

from typing import Any

import lightning
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from silentgrad.lab.training.loop import Batch, TrainingPlan


class StepsBar(lightning.Callback):
    """One bar for the whole training: each step of the optimizer moves it on, those of earlier processes are done.

    Lightning's own bars count what its loop does, which takes several steps at a time, and epochs from 0.

    Args:
        console: Where to show it; the standard output if absent.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            TextColumn("left{task.fields[figure]}"),
            console=console,
        )

    def on_train_batch_start(
        self, trainer: lightning.Trainer, plan: lightning.LightningModule, batch: list[Batch], batch_idx: int
    ) -> None:
        if batch_idx > 0 or not trainer.is_global_zero or not isinstance(plan, TrainingPlan):
            return
        told = f"epoch {plan.epoch} of {plan.config.epochs}"
        if self.progress.tasks:
            self.progress.update(self.progress.task_ids[0], description=told)
            return
        total, done = plan.steps * plan.config.epochs, plan.steps * plan.current_epoch
        self.progress.add_task(told, total=total, completed=done, figure="")
        self.progress.start()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        plan: lightning.LightningModule,
        outputs: Any,
        batch: list[Batch],
        batch_idx: int,
    ) -> None:
        for task in self.progress.task_ids:
            self.progress.advance(task, len(batch))

    def on_validation_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if not isinstance(plan, TrainingPlan):
            return
        found = plan.evaluation
        for task in self.progress.task_ids:
            self.progress.update(task, figure=f", validation {found.unit.tell(found.figure)}")

    def on_train_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        self.progress.stop()

    def on_exception(
        self, trainer: lightning.Trainer, plan: lightning.LightningModule, exception: BaseException
    ) -> None:
        self.progress.stop()
