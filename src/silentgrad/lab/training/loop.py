"""One epoch after the other, on Lightning's Trainer.

Everything random is a function of (seed, epoch, batch): the order of images, the dequantisation noise, the latents. A
run that was interrupted and resumed from the last finished epoch therefore ends with the same bits, and several
processes see the noise of one. The draws of validation and test are a function of (seed, stage, batch), so that weights
have one figure each.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torchmetrics import SumMetric

from silentgrad.decoders import LinearDecoder, LinearGaussian, LinearPrecisionGaussian
from silentgrad.errors import DomainError, SilentgradError
from silentgrad.guided import GuidedVAE, evaluate
from silentgrad.lab.data import Together, dequantise
from silentgrad.lab.training.config import TrainConfig
from silentgrad.schedules import Schedule

ADVICE = "Try a lower --train.lr or --train.lr_precision, or --train.clip 1.0. The last finished epoch is saved."
STAGES = ("train", "valid", "test")
ACTIVE = 0.01  # nats: a latent whose KL divergence is below that on average is not used


class DivergedError(SilentgradError):
    """Training left the numbers behind."""


class TrainingPlan(lightning.LightningModule):
    """How a GuidedVAE is trained and measured.

    Args:
        model: The VAE.
        config: Rates, seed and so on.
        levels: Number of levels of a pixel.
        variance: The fixed variance over epochs, for a decoder that has one.
    """

    def __init__(self, model: GuidedVAE, config: TrainConfig, levels: int, variance: Schedule) -> None:
        super().__init__()
        self.model, self.config, self.levels, self.variance = model, config, levels, variance
        self.elbo, self.squared_error, self.kld, self.images = (SumMetric() for _ in range(4))
        self.kld_per_latent = torch.zeros(0)
        self.iwae_samples = 1
        self.share = (
            1.0  # of this process in the batch, relative to an equal one: the processes' gradients are averaged
        )
        self.losses: list[Tensor] = []  # of the epoch's batches
        self.figures: dict[str, Any] = {}
        self.automatic_optimization = False  # training_step takes several steps of the optimizer

    @property
    def epoch(self) -> int:
        """Counted from 1, as the schedules count."""
        return self.current_epoch + 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        linear = self.model.linear
        mean = list(linear.mean.parameters()) if isinstance(linear, LinearDecoder) else []
        precision = list(linear.precision.parameters()) if isinstance(linear, LinearPrecisionGaussian) else []
        separate = {id(p) for p in (*mean, *precision)}
        rest = [p for p in self.model.parameters() if id(p) not in separate]
        rates = (self.config.lr, self.config.lr_mean, self.config.lr_precision)
        groups = [
            {"params": parameters, "lr": self.config.lr if rate is None else rate, "name": name}
            for name, parameters, rate in zip(
                ("lr", "lr_mean", "lr_precision"), (rest, mean, precision), rates, strict=True
            )
            if parameters
        ]
        return torch.optim.AdamW(groups, lr=self.config.lr, betas=(0.9, 0.95), fused=True)

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(mixed(self.config.seed, self.epoch, self.global_rank))
        self.model.on_epoch(self.epoch)
        if isinstance(self.model.linear, LinearGaussian):
            self.model.linear.set_variance(self.variance(self.epoch))
        self.losses = []
        loader = self.trainer.train_dataloader
        if isinstance(loader, Together):
            loader.batches.set_epoch(self.current_epoch)

    def training_step(self, together: list[tuple[int, Tensor]]) -> None:
        wrapped: Any = self.optimizers()
        with self._noticing_divergence():
            # Only the last step goes through Lightning, which counts it: its hooks cost as much as small layers.
            losses = [self._descend(batch, wrapped.optimizer) for batch in together[:-1]]
            losses.append(self._descend(together[-1], wrapped))
        mean = torch.stack(losses).mean()
        if not mean.isfinite():
            batch = together[-1][0]
            raise DivergedError(f"the loss became {mean.item()} in epoch {self.epoch}, batch {batch}. {ADVICE}")
        self.losses += losses

    def _descend(self, batch: tuple[int, Tensor], optimizer: torch.optim.Optimizer) -> Tensor:
        """One step; the loss before it."""
        x = self._dequantised(batch, "train")
        loss: Tensor = self.model(x, self.epoch).total * self.share
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.config.clip:
            clip_grad_norm_(self.model.parameters(), self.config.clip)
        optimizer.step()
        return loss.detach()

    def validation_step(self, batch: tuple[int, Tensor]) -> None:
        self._measure(batch, "valid")

    def test_step(self, batch: tuple[int, Tensor]) -> None:
        self._measure(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._summarise("valid")

    def on_test_epoch_end(self) -> None:
        self._summarise("test")

    def _dequantised(self, batch: tuple[int, Tensor], stage: str) -> Tensor:
        index, images = batch
        seed = mixed(self.config.seed, self.epoch if stage == "train" else 0, STAGES.index(stage), index)
        generator = torch.Generator(images.device).manual_seed(seed)
        if self.trainer.world_size == 1:
            return dequantise(images, self.levels, generator).to(self.dtype)
        return self._share_of_noise(images, generator)

    def _share_of_noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """This process's part of the noise that one process would add to the whole batch."""
        gathered: Any = self.all_gather(torch.tensor(len(images), device=images.device))
        sizes = gathered.tolist()
        self.share = len(images) * len(sizes) / sum(sizes)
        noise = torch.rand(sum(sizes), *images.shape[1:], generator=generator, device=images.device)
        return (noise.split(sizes)[self.global_rank] + images).div_(self.levels).to(self.dtype)

    def _measure(self, batch: tuple[int, Tensor], stage: str) -> None:
        x = self._dequantised(batch, stage)
        # The latents' draws are a function of the batch too, whatever was drawn before it.
        torch.manual_seed(mixed(self.config.seed, 0, STAGES.index(stage), batch[0], 1 + self.global_rank))
        with self._noticing_divergence():
            result = evaluate(self.model, x, self.iwae_samples if stage == "test" else 1)
        self.elbo.update(result.elbo)
        self.squared_error.update(result.squared_error)
        self.kld.update(result.kld)
        self.images.update(len(x))
        if batch[0] == 0:
            self.kld_per_latent = torch.zeros_like(result.kld_per_latent)
        self.kld_per_latent += result.kld_per_latent
        self.outputs = x[0].numel()

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

    def _summarise(self, stage: str) -> None:
        sums = (self.elbo, self.squared_error, self.kld, self.images)
        elbo, error, kld, images = (metric.compute().item() for metric in sums)
        for metric in sums:
            metric.reset()
        per_latent = self.trainer.strategy.reduce(self.kld_per_latent, reduce_op="sum")
        self.figures = {
            f"{stage}_bpd": -elbo / images / (self.outputs * math.log(2)) + math.log2(self.levels),
            f"{stage}_mse": error / images,
            f"{stage}_kld": kld / images,
            f"{stage}_active": int((per_latent / images > ACTIVE).sum()),
        }
        bpd = self.figures[f"{stage}_bpd"]
        if not math.isfinite(bpd) and not self.trainer.sanity_checking:
            raise DivergedError(f"{stage} BPD is {bpd} after epoch {self.epoch}. {ADVICE}")
        self.log(f"{stage}_bpd", torch.tensor(bpd, dtype=torch.float64), prog_bar=True, sync_dist=False)

    @property
    def score(self) -> tuple[float, float]:
        """What the best epoch is chosen by: the lowest comes first.

        A model with another variance than the last epoch's is another model, so that nearness to it counts before the
        validation BPD.
        """
        distance = abs(self.variance(self.epoch) - self.variance(self.config.epochs))
        return distance, self.figures["valid_bpd"]


def mixed(*numbers: int) -> int:
    """One seed out of several numbers, no two of which collide in practice."""
    state: Any = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return int(state >> np.uint64(1))
