"""One epoch after the other, on Lightning's Trainer.

Everything random is a function of (seed, epoch, batch): the order of rows, the dequantization noise, the latents. A
run that was interrupted and resumed from the last finished epoch therefore ends with the same bits, and several
processes see the noise of one. Validation and test are those of :mod:`silentgrad.lab.runs.evaluation`, whose draws do
not depend on the run at all, so that weights have one figure each.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from silentgrad.decoders import (
    LinearDecoder,
    LinearGaussian,
    LinearLikelihood,
    LinearPrecisionGaussian,
    StandardizedGaussian,
)
from silentgrad.errors import DomainError, SilentgradError
from silentgrad.estimators import Exact
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations, Part, Rows, SplitName, Together, mixed
from silentgrad.lab.networks import NonlinearCircuit, NonlinearLikelihood
from silentgrad.lab.runs.evaluation import Evaluation, Share, evaluate_model
from silentgrad.lab.training.config import Decay, TrainConfig
from silentgrad.schedules import Schedule

ADVICE = "Try lower learning rates (--train.lr, --train.lr_network, --train.lr_precision) or --train.clip 1.0."

Batch = tuple[int, Rows]


class DivergedError(SilentgradError):
    """Training left the numbers behind."""


def rate_of(step: int, steps: int, warmup: float, decay: Decay) -> float:
    """The share of its full value that a learning rate has at a step, counted from 0.

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


def _linear_decoders(tractable: object) -> list[LinearDecoder]:
    """The linear decoders in a tractable one: itself, or a circuit's leaves."""
    if not isinstance(tractable, nn.Module):
        return []
    return [module for module in tractable.modules() if isinstance(module, LinearDecoder)]


def _networks(model: GuidedVAE) -> list[nn.Parameter]:
    """The weights of the encoder and of the nonlinear decoder's network, without those of its sums and leaves."""
    networks = [model.encoder]
    if isinstance(model.nonlinear, NonlinearCircuit | NonlinearLikelihood):
        networks.append(model.nonlinear.network)
    elif model.nonlinear is not None:
        networks.append(model.nonlinear)
    parameters: list[nn.Parameter] = []
    for network in networks:
        parameters += network.parameters()
    return parameters


def _of_likelihood(decoder: LinearLikelihood | NonlinearLikelihood) -> list[nn.Parameter]:
    """The parameters of a decoder's likelihood, such as its dispersions."""
    if not isinstance(decoder.likelihood, nn.Module):
        return []
    return list(decoder.likelihood.parameters())


class TrainingPlan(lightning.LightningModule):
    """How a GuidedVAE is trained and measured.

    Args:
        model: The VAE.
        config: Settings of the training.
        observations: The data that it is trained and measured on.
        variance: The fixed variance over epochs, for a decoder that has one.
    """

    evaluation: Evaluation  # the last one, of validation or test
    steps: int  # in an epoch

    def __init__(self, model: GuidedVAE, config: TrainConfig, observations: Observations, variance: Schedule) -> None:
        super().__init__()
        self.model, self.config, self.observations, self.variance = model, config, observations, variance
        # This process's share of the batch, relative to an equal one: the processes' gradients are averaged.
        self.share = 1.0
        self.losses: list[Tensor] = []  # of the epoch's batches
        self.automatic_optimization = False  # training_step takes several steps of the optimizer

    @property
    def epoch(self) -> int:
        """The epoch, counted from 1 as the schedules count."""
        return self.current_epoch + 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        of_networks = _networks(self.model)
        of_means: list[nn.Parameter] = []
        of_precisions: list[nn.Parameter] = []
        for decoder in _linear_decoders(self.model.tractable):
            of_means += decoder.affine.parameters()
            if isinstance(decoder, LinearPrecisionGaussian):
                of_precisions += decoder.precision_affine.parameters()
            if isinstance(decoder, StandardizedGaussian):
                of_precisions.append(decoder.log_scale)
            if isinstance(decoder, LinearLikelihood):
                of_precisions += _of_likelihood(decoder)
                if decoder.covariate_affine is not None:
                    of_means += decoder.covariate_affine.parameters()
        if isinstance(self.model.nonlinear, NonlinearLikelihood):
            of_precisions += _of_likelihood(self.model.nonlinear)
        separate = set(map(id, of_networks + of_means + of_precisions))
        rest = [parameter for parameter in self.model.parameters() if id(parameter) not in separate]
        groups = [
            self._group("lr", rest, None),
            self._group("lr_network", of_networks, self.config.lr_network),
            self._group("lr_mean", of_means, self.config.lr_mean),
            self._group("lr_precision", of_precisions, self.config.lr_precision),
        ]
        learned = [group for group in groups if group["params"]]
        return torch.optim.AdamW(learned, lr=self.config.rate, betas=(0.9, 0.95), fused=True)

    def _group(self, name: str, parameters: list[nn.Parameter], rate: float | None) -> dict[str, Any]:
        """Parameters with a learning rate of their own; `full` is the rate before it rises and falls."""
        if rate is None:
            rate = self.config.rate
        return {"params": parameters, "lr": rate, "full": rate, "name": name}

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(mixed(self.config.seed, self.epoch, self.global_rank))
        self.model.on_epoch(self.epoch)
        if isinstance(self.model.tractable, LinearGaussian):
            self.model.tractable.set_variance(self.variance(self.epoch))
        self.losses = []
        loader = self.trainer.train_dataloader
        if isinstance(loader, Together):
            loader.batches.set_epoch(self.current_epoch)
            self.steps = len(loader.batches)

    def training_step(self, together: list[Batch]) -> None:
        wrapped: Any = self.optimizers()
        with self._noticing_divergence():
            # Only the last step goes through Lightning, which counts it: its hooks cost as much as small layers.
            losses = []
            for batch in together[:-1]:
                losses.append(self._descend(batch, wrapped.optimizer))
            losses.append(self._descend(together[-1], wrapped))
        mean = torch.stack(losses).mean()
        if not mean.isfinite():
            last = together[-1][0]
            raise DivergedError(f"the loss became {mean.item()} in epoch {self.epoch}, batch {last}. {ADVICE}")
        self.losses += losses

    def _descend(self, batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
        """One step; the loss before it."""
        x = self._seen(batch)
        beside = batch[1].beside.to(x)
        self._set_rates(optimizer, batch[0])
        loss: Tensor = self.model(x, self.current_epoch + (batch[0] + 1) / self.steps, beside).total * self.share
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.config.clip:
            clip_grad_norm_(self.model.parameters(), self.config.clip)
        optimizer.step()
        return loss.detach()

    def _set_rates(self, optimizer: torch.optim.Optimizer, batch: int) -> None:
        """The learning rates of a step, which is one of the epoch's batches."""
        if self.config.decay == "none" and self.config.warmup == 0:
            return
        step = self.current_epoch * self.steps + batch
        share = rate_of(step, self.config.epochs * self.steps, self.config.warmup, self.config.decay)
        for group in optimizer.param_groups:
            group["lr"] = share * group["full"]

    def _seen(self, batch: Batch) -> Tensor:
        """The batch as the model sees it, with the noise that one process would add to the whole of it."""
        index, rows = batch
        generator = torch.Generator(rows.device).manual_seed(mixed(self.config.seed, self.epoch, 0, index))
        part = None
        if self.trainer.world_size > 1:
            part = self._part_of(rows)
        return self.observations.as_seen(rows, generator, part).to(self.dtype)

    def _part_of(self, rows: Rows) -> Part:
        """Where this process's rows are in the batch of all processes."""
        gathered: Any = self.all_gather(torch.tensor(len(rows), device=rows.device))
        sizes = gathered.tolist()
        self.share = len(rows) * len(sizes) / sum(sizes)
        return Part(sum(sizes[: self.global_rank]), sum(sizes))

    def validation_step(self, split: SplitName) -> None:
        self._evaluate(split, samples=1)

    def test_step(self, split: SplitName) -> None:
        self._evaluate(split, self.config.iwae_samples)

    def on_validation_epoch_end(self) -> None:
        unit, figure = self.evaluation.unit, self.evaluation.figure
        self.log(f"valid_{unit.metric}", torch.tensor(figure, dtype=torch.float64), prog_bar=True, sync_dist=False)

    def _evaluate(self, split: SplitName, samples: int) -> None:
        share = Share(self.global_rank, self.trainer.world_size, self._total)
        with self._noticing_divergence():
            self.evaluation = evaluate_model(self.model, self.observations, split, samples, share)
        figure = self.evaluation.figure
        if not math.isfinite(figure):
            told = self.evaluation.unit.title
            raise DivergedError(f"{split} {told} is {figure} after epoch {self.epoch}. {ADVICE}")

    def _total(self, sums: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.trainer.world_size == 1:
            return sums
        reduced: Any = self.trainer.strategy.reduce(sums.to(self.device), reduce_op="sum")
        return reduced.cpu()

    @contextlib.contextmanager
    def _noticing_divergence(self) -> Iterator[None]:
        """A latent (torch.distributions) or a decoder may meet NaN before the loss does."""
        try:
            yield
        except ValueError as error:
            if isinstance(error, SilentgradError) and not isinstance(error, DomainError):
                raise
            reason = str(error).partition(", but found")[0]  # torch goes on with every number of the tensor
            raise DivergedError(f"{reason} (in epoch {self.epoch}). {ADVICE}") from error

    @property
    def score(self) -> tuple[float, float]:
        """What the best epoch is chosen by: the lowest comes first.

        A model with another variance than the last epoch's is another model, so that nearness to it counts before the
        figure of validation. That is the bound; but of a decoder trained by samples the sampled ELBO, since its bound
        is not what was descended and need not be tight.
        """
        distance = abs(self.variance(self.epoch) - self.variance(self.config.epochs))
        sampled = self.evaluation.sampled
        if sampled is None or isinstance(self.model.tractable_estimator, Exact):
            return distance, self.evaluation.figure
        return distance, sampled
