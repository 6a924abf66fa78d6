"""Lightning's callback."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from silentgrad.analysis import measurable
from silentgrad.checkup.examination import examined
from silentgrad.checkup.tracking import Tracker
from silentgrad.errors import DomainError


class CheckUpCallback(Tracker, Callback):
    """Callback that tracks latents and the likelihood's variance, and warns once when one dies or the other runs away.

    Args:
        every: Number of batches between two looks, counted anew in each epoch, whose first batch is always looked at.
        options: `likelihood` and `prior`, as for `check_up`. A decoder that returns a tensor needs `likelihood`.

    Attributes:
        history: A row for each look.
    """

    def __init__(self, every: int = 100, **options: Any) -> None:
        super().__init__()
        if every < 1:
            raise DomainError(f"every has to be at least 1, got {every}")
        self.every, self.options = every, options

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % self.every == 0:
            with examined([pl_module, *self.options.values()], [batch], batch_idx) as x:
                found = measurable(pl_module, x[:4], **self.options)
                q, self.prior = found.encoder(x), found.prior
                self(x, q, found.at(q.sample(), x))
