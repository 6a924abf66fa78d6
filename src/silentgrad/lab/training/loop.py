"""The loop: steps of the optimizer, and at the end of each epoch reports: an evaluation, figures, a checkpoint.

Lightning's Fabric gives it devices, precision and processes. Everything random is a function of (seed, epoch, batch):
the order of rows, the dequantization noise, the latents. A run that was interrupted and goes on from the last finished
epoch is therefore bit-identical to one that was not, and several processes see the noise of one. Validation and test
are those of :mod:`silentgrad.lab.runs.evaluation`, whose draws do not depend on the run at all, so that weights have
one figure each.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from silentgrad.decoders import LinearGaussian
from silentgrad.decoders.context import context_weight
from silentgrad.errors import DomainError, SilentgradError
from silentgrad.estimators import Exact
from silentgrad.guided import GuidedVAE, Losses
from silentgrad.lab.data import Batches, Observations, Part, Rows, SplitName, mixed
from silentgrad.lab.runs.evaluation import Share, SplitEvaluation, evaluate_model
from silentgrad.lab.settings import Decay, Optimizer, TrainConfig
from silentgrad.lab.training.fabric import Fabric
from silentgrad.schedules import Schedule

ADVICE = "Try lower learning rates (--train.lr, --train.lr_network, --train.lr_precision) or --train.clip 1.0."
CHECKED = 16  # steps between looks at the loss, each of which waits for the device
RATES = ("lr", "lr_network", "lr_mean", "lr_precision")
OPTIMIZERS: dict[Optimizer, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, betas=(0.9, 0.95), fused=True),
    "adam": partial(torch.optim.Adam, fused=True),
}

Report = Callable[["Loop"], None]


class DivergedError(SilentgradError):
    """The loss or the weights are not finite."""


def rate_of(step: int, steps: int, warmup: float, decay: Decay) -> float:
    """Return the share of its full value that a learning rate has at a step, counted from 0.

    Example:
        >>> [round(rate_of(step, 100, 10, "cosine"), 2) for step in (0, 4, 10, 50, 99)]
        [0.1, 0.5, 0.98, 0.5, 0.0]
        >>> rate_of(24, 100, 0.5, "none")
        0.5
    """
    if warmup < 1:
        warmup *= steps
    risen = min(1.0, (step + 1) / max(1, warmup))
    if decay == "none":
        return risen
    return risen * (1 + math.cos(math.pi * step / steps)) / 2


def parameter_groups(model: GuidedVAE, train: TrainConfig) -> list[dict[str, Any]]:
    """Return the parameters by learning rate; those that no part of the model claims have `lr`."""
    claimed: dict[str, list[nn.Parameter]] = {name: [] for name in RATES}
    claimed["lr_network"] += model.encoder.parameters()
    for module in model.modules():
        for name, parameters in getattr(module, "parameter_groups", dict)().items():
            claimed[f"lr_{name}"] += parameters
    known = {id(parameter) for parameters in claimed.values() for parameter in parameters}
    claimed["lr"] = [parameter for parameter in model.parameters() if id(parameter) not in known]
    groups: dict[float, dict[str, Any]] = {}  # as few as possible, since each costs a call at every step
    for name, parameters in claimed.items():
        rate = train.rate if getattr(train, name) is None else getattr(train, name)
        if parameters:  # whose full rate is that before it rises and falls
            group = groups.setdefault(rate, {"params": [], "lr": rate, "full": rate, "names": []})
            group["params"] += parameters
            group["names"].append(name)
    return list(groups.values())


class Loop:
    """One training under way.

    Args:
        fabric: Lightning's Fabric, launched.
        model: The VAE.
        train: Settings of the training.
        observations: The data that it is trained and measured on.
        batch_size: Rows per step, over all processes.
        variance: The fixed variance over epochs, for a decoder that has one.
    """

    evaluation: SplitEvaluation  # the latest, of validation or test

    def __init__(
        self,
        fabric: Fabric,
        model: GuidedVAE,
        train: TrainConfig,
        observations: Observations,
        batch_size: int,
        variance: Schedule,
    ) -> None:
        self.fabric, self.model, self.train = fabric, model, train
        self.observations, self.variance = observations, variance
        rows, processes = observations.rows("train"), fabric.world_size
        self.batches = Batches(rows, batch_size, True, train.seed, fabric.global_rank, processes, train.epoch_steps)
        wrapped: Any = fabric.setup_module(model)
        # Fabric's wrapper looks at every argument of every call, which costs as much as a small layer.
        wraps = processes > 1 or train.precision.endswith("mixed")
        self.forward: Callable[..., Losses] = wrapped if wraps else model
        self.backward: Callable[[Tensor], None] = fabric.backward if wraps else Tensor.backward
        self.dtype = next(model.parameters()).dtype
        self.optimizer = OPTIMIZERS[train.optimizer](parameter_groups(model, train))
        self.epoch = 0  # the latest, counted from 1
        self.step = 0  # steps so far, over all epochs
        self.losses: list[Tensor] = []  # of the epoch's steps

    @property
    def steps(self) -> int:
        """Number of steps of the whole training."""
        return self.train.epochs * len(self.batches)

    def run(self, reports: Sequence[Report], on_step: Report) -> None:
        """Train the epochs that are left; reports are called in order at the end of each, `on_step` after each step."""
        while self.epoch < self.train.epochs:
            self._begin_epoch()
            with self._noticing_divergence():
                for index, rows in self.batches:
                    self._descend(index, rows.to(self.fabric.device))
                    on_step(self)
            self._require_finite()
            for report in reports:
                report(self)

    def evaluate(self, split: SplitName, samples: int = 1) -> None:
        """Measure the model on a split; of the training rows on as many as the test has."""
        share = Share(self.fabric.global_rank, self.fabric.world_size, self._total)
        with self._noticing_divergence():
            draws = None if split == "test" else 1  # validation chooses between epochs, and tells no gap
            count = len(self.observations.test)
            rows = self.observations.rows(split).between(0, count) if split == "train" else None
            self.evaluation = evaluate_model(self.model, self.observations, split, samples, share, draws, rows)
        found = self.evaluation
        if not math.isfinite(found.figure):
            raise DivergedError(f"{split} {found.unit.title} is {found.figure} after epoch {self.epoch}. {ADVICE}")

    @property
    def score(self) -> tuple[float, float]:
        """Key by which the best epoch is chosen, the lowest first.

        A model with another variance than the last epoch's is another model, and so is one whose context is still
        entering: nearness to the last counts before the figure of validation. That is the bound; but of a decoder
        trained by samples the sampled ELBO, since its bound is not what was descended and need not be tight.
        """
        distance = abs(self.variance(self.epoch) - self.variance(self.train.epochs)) + 1 - context_weight(self.model)
        sampled = self.evaluation.sampled
        if sampled is None or isinstance(self.model.tractable_estimator, Exact):
            return distance, self.evaluation.figure
        return distance, sampled

    def state(self) -> dict[str, Any]:
        """Return all that the loop goes on from after an epoch."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on after the epoch of a state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]
        self.step = self.epoch * len(self.batches)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.losses = []
        torch.manual_seed(mixed(self.train.seed, self.epoch, self.fabric.global_rank))
        self.batches.epoch = self.epoch - 1
        # All together take less time than each one between steps, where the cache holds other things.
        self.seeds = [mixed(self.train.seed, self.epoch, 0, index) for index in range(len(self.batches))]
        self.model.train()
        self.model.on_epoch(self.epoch)
        if isinstance(self.model.tractable, LinearGaussian):
            self.model.tractable.set_variance(self.variance(self.epoch))

    def _descend(self, index: int, rows: Rows) -> None:
        """Take one step, on a batch of the epoch."""
        generator = torch.Generator(rows.device).manual_seed(self.seeds[index])
        part, share = self._part(index)
        x = self.observations.as_seen(rows, generator, part).to(self.dtype)
        if self.train.decay != "none" or self.train.warmup > 0:
            rate = rate_of(self.step, self.steps, self.train.warmup, self.train.decay)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["full"]
        epochs = self.epoch - 1 + index / len(self.batches)  # weights are those before the step: 1 at the first
        loss = self.forward(x, epochs, rows.side_info.to(x)).total
        loss = loss if part is None else loss * share
        self.optimizer.zero_grad()
        self.backward(loss)
        if self.train.clip:
            clip_grad_norm_(self.model.parameters(), self.train.clip)
        self.optimizer.step()
        self.step += 1
        self.losses.append(loss.detach())
        if self.step % CHECKED == 0:
            self._require_finite()

    def _part(self, index: int) -> tuple[Part | None, float]:
        """Return where this process's rows are in a batch, for their noise, and their share beside an equal one."""
        if self.fabric.world_size == 1:
            return None, 1.0
        sizes = self.batches.shares(index)
        part = Part(sum(sizes[: self.fabric.global_rank]), sum(sizes))
        return part, sizes[self.fabric.global_rank] * len(sizes) / sum(sizes)

    def _require_finite(self) -> None:
        recent = torch.stack(self.losses[-CHECKED:]).mean()
        if not recent.isfinite():
            raise DivergedError(f"the loss became {recent.item()} in epoch {self.epoch}, step {self.step}. {ADVICE}")

    def _total(self, sums: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.fabric.world_size == 1:
            return sums
        return cast(Tensor, self.fabric.all_reduce(sums.to(self.fabric.device), reduce_op="sum")).cpu()

    @contextlib.contextmanager
    def _noticing_divergence(self) -> Iterator[None]:
        """Turn what a latent or a decoder raises if it meets NaN before the loss does into a DivergedError."""
        try:
            yield
        except ValueError as error:
            reason, of_numbers, _ = str(error).partition(", but found")  # torch goes on with every number of the tensor
            if not (of_numbers or isinstance(error, DomainError)):
                raise
            raise DivergedError(f"{reason} (in epoch {self.epoch}). {ADVICE}") from error
