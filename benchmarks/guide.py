"""What the guide adds to a training step of somebody's VAE: pythae's default one on MNIST, with and without it.

    python benchmarks/guide.py                # about a minute on two cores

A step is forward, backward and optimiser, on batches that are already there; the guide comes as in
`examples/pythae_vae.py`, at a weight that needs both decoders. The two sides take turns, and the median of the rounds'
ratios is compared with the limit. Random images stand in for MNIST where SILENTGRAD_DATA is not set.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from pythae.data.datasets import DatasetOutput
from pythae.models import VAE, VAEConfig
from pythae.trainers import BaseTrainerConfig
from torch import Tensor

import silentgrad as sg
from silentgrad.data import load
from silentgrad.schedules import constant

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from pythae_vae import SilentVAE

LIMIT = 1.15
ROWS = {
    "learned precision, the default": ("mse", {"link": "exp"}),
    "fixed variance": ("mse", {"variance": 1.0}),
    "Bernoulli": ("bce", {"likelihood": sg.likelihoods.Bernoulli()}),
}


class Side:
    """One model in training."""

    def __init__(self, model: VAE, batches: list[DatasetOutput]) -> None:
        self.model = model.train()
        self.batches = itertools.cycle(batches)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=BaseTrainerConfig().learning_rate)

    def milliseconds(self, steps: int) -> float:
        """Of a step, the mean over so many."""
        start = time.perf_counter()
        for batch in itertools.islice(self.batches, steps):
            loss = self.model(batch, epoch=1).loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss.item()
        return 1e3 * (time.perf_counter() - start) / steps


def images() -> Tensor:
    if "SILENTGRAD_DATA" in os.environ:
        return load("mnist").train[: 64 * 30] / 255
    return torch.rand(64 * 30, 1, 28, 28)


def ratio(name: str, batches: list[DatasetOutput], rounds: int, steps: int) -> float:
    loss, options = ROWS[name]
    config = VAEConfig(input_dim=(1, 28, 28), reconstruction_loss=loss)
    guided = SilentVAE(config)
    guided.guide = sg.SilentGuide(config.latent_dim, (1, 28, 28), constant(0.5), "mean", **options)
    sides = {"without": Side(VAE(config), batches), "with": Side(guided, batches)}
    times: dict[str, list[float]] = {way: [] for way in sides}
    for way in sides:
        sides[way].milliseconds(steps)  # warms up
    for turn in range(rounds):
        for way in sides if turn % 2 else reversed(sides):
            times[way].append(sides[way].milliseconds(steps))
    result = statistics.median(after / before for before, after in zip(times["without"], times["with"], strict=True))
    medians = ", ".join(f"{way} the guide {statistics.median(values):.2f} ms" for way, values in times.items())
    print(f"{name}: a step {medians}; ratio {result:.2f} (limit {LIMIT})", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=81)
    parser.add_argument("--steps", type=int, default=10, help="of each side in a round")
    given = parser.parse_args()
    batches = [DatasetOutput(data=x) for x in images().split(BaseTrainerConfig().per_device_train_batch_size)]
    ratios = [ratio(name, batches, given.rounds, given.steps) for name in ROWS]
    sys.exit(max(ratios) > LIMIT)


if __name__ == "__main__":
    main()
