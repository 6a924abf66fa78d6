"""The cost of the guide in a training step of somebody's VAE: pythae's default one on MNIST, with and without it.

    python benchmarks/guide.py                # about a minute on two cores

A step is what pythae's own trainer makes of it: feeding, forward, backward, optimizer. The guide comes as in
`examples/pythae_vae.py`, at a weight that needs both decoders. The two sides take turns, and the median of the rounds'
ratios is given. The limit is for pythae's defaults: squared error, and so a guide of fixed variance. Random images
stand in for MNIST where SILENTGRAD_DATA is not set.
"""

import argparse
import logging
import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from closed_form import keep_freed_memory
from pythae.data.datasets import BaseDataset
from pythae.models import VAE, VAEConfig
from pythae.trainers import BaseTrainer, BaseTrainerConfig
from pythae.trainers.training_callbacks import CallbackHandler, TrainingCallback
from torch import Tensor

import silentgrad as sg
from silentgrad.lab.data import load
from silentgrad.schedules import constant

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from pythae_vae import SilentVAE

LIMIT, BATCH, STEPS = 1.15, BaseTrainerConfig().per_device_train_batch_size, 20
GUIDES = {
    "fixed variance, for squared error": ("mse", {"variance": 1.0}),
    "learned precision": ("mse", {"link": "exp"}),
    "Bernoulli, for cross-entropy": ("bce", {"likelihood": sg.likelihoods.Bernoulli()}),
}


class Side:
    """One model under pythae's trainer, whose progress bar is left out."""

    def __init__(self, model: VAE, x: Tensor, folder: str) -> None:
        data = BaseDataset(x, torch.zeros(len(x)))
        self.trainer = BaseTrainer(model, data, training_config=BaseTrainerConfig(output_dir=folder))
        self.trainer.set_optimizer()
        self.trainer.callback_handler = CallbackHandler([TrainingCallback()], model)

    def seconds(self) -> float:
        """Return the seconds of all steps of one epoch."""
        start = time.perf_counter()
        self.trainer.train_step(epoch=1)
        return time.perf_counter() - start


def images() -> Tensor:
    if "SILENTGRAD_DATA" in os.environ:
        return load("mnist").train[: STEPS * BATCH] / 255
    return torch.rand(STEPS * BATCH, 1, 28, 28)


def ratio(name: str, x: Tensor, rounds: int) -> float:
    loss, options = GUIDES[name]
    config = VAEConfig(input_dim=(1, 28, 28), reconstruction_loss=loss)
    guided = SilentVAE(config)
    guided.guide = sg.SilentGuide(config.latent_dim, (1, 28, 28), constant(0.5), "mean", **options)
    guided.guide.init_from_data(x)
    with TemporaryDirectory() as folder:
        sides = {"without": Side(VAE(config), x, folder), "with": Side(guided, x, folder)}
    times: dict[str, list[float]] = {way: [side.seconds()] for way, side in sides.items()}  # the first warms up
    for turn in range(rounds):
        for way in sides if turn % 2 else reversed(sides):
            times[way].append(sides[way].seconds())
    result = statistics.median(after / before for before, after in list(zip(*times.values(), strict=True))[1:])
    medians = ", ".join(f"{way} {1e3 * statistics.median(spent) / STEPS:.2f} ms" for way, spent in times.items())
    print(f"{name}: a step {medians}; ratio {result:.2f}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31, help=f"of {STEPS} steps each (31)")
    given = parser.parse_args()
    keep_freed_memory()
    logging.disable(logging.INFO)  # pythae's announcements
    judged, *_ = [ratio(name, images(), given.rounds) for name in GUIDES]
    print(f"limit {LIMIT}, for the first row: {judged:.2f}")
    sys.exit(judged > LIMIT)


if __name__ == "__main__":
    main()
