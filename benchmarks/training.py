"""What the training loop costs beyond the training: one step under Lightning against one in a hand-written loop.

    python benchmarks/training.py             # about two minutes on two cores

The same model (784-512-200, fixed variance, exact gradient, batch 64) on random images of MNIST's size. Epochs of both
loops take turns; medians of the time per step are compared. Validation and checkpoints are left out of both.
"""

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import lightning
import torch
from torch import distributions as td

from silentgrad import LinearGaussian
from silentgrad.lab.data import Batches, Levels, Together, dequantize
from silentgrad.lab.data.module import Whole
from silentgrad.lab.networks import mlp_body
from silentgrad.lab.training import ModelConfig, TrainConfig, TrainingPlan, build_model
from silentgrad.lab.training.recorder import Recorder
from silentgrad.lab.training.run import TOGETHER
from silentgrad.schedules import constant

IMAGES = torch.randint(256, (64 * 300, 1, 28, 28), dtype=torch.uint8)
LIMIT = 1.1


class Clock(lightning.Callback):
    """Seconds per step of each epoch."""

    def __init__(self) -> None:
        self.epochs: list[float] = []

    def on_train_epoch_start(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        self.epochs.append((time.perf_counter() - self.start) / (len(IMAGES) // 64))


def under_lightning() -> float:
    config = ModelConfig(latent_dim=200, tractable="fixed", nonlinear=False, estimator="exact")
    images = Levels(IMAGES, IMAGES[:1], IMAGES[:1], "noise")
    model = build_model(config, images.event_shape, images.levels)
    plan = TrainingPlan(model, TrainConfig(), images, constant(0.01))
    clock = Clock()
    with TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[clock, Recorder(Path(folder), "bpd")],
        )  # fmt: skip
        batches = Together(Batches(images.rows("train"), 64, shuffle=True, seed=0), TOGETHER)
        trainer.fit(plan, batches, Whole("valid"))
    return clock.epochs[0]


def by_hand() -> float:
    encoder, decoder = mlp_body((1, 28, 28), 400), LinearGaussian(200, (1, 28, 28), 0.01)
    optimizer = torch.optim.AdamW(
        [*encoder.parameters(), *decoder.parameters()], lr=5e-4, betas=(0.9, 0.95), fused=True
    )
    order = torch.randperm(len(IMAGES))
    start = time.perf_counter()
    for indices in order.split(64):
        x = dequantize(IMAGES[indices], 256)
        mean, log_std = encoder(x).chunk(2, dim=-1)
        q = td.Normal(mean, log_std.exp())
        kld = td.kl_divergence(q, td.Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum(-1)
        loss = (kld - decoder.expected_log_prob(x, q)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    return (time.perf_counter() - start) / (len(IMAGES) // 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {"Lightning": [], "by hand": []}
    for _ in range(rounds):
        times["by hand"].append(by_hand())
        times["Lightning"].append(under_lightning())
    median = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    ratio = median["Lightning"] / median["by hand"]
    print(f"a step by hand {median['by hand']:.2f} ms, under Lightning {median['Lightning']:.2f} ms")
    print(f"ratio {ratio:.2f} (limit {LIMIT})")


if __name__ == "__main__":
    main()
