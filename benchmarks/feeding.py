"""The cost of fetching and dequantizing a batch, as a fraction of the training step that it feeds.

    python benchmarks/feeding.py                      # about ten seconds; the target is under 5 %

The model is an MLP VAE 784-512-200 with Adam, batches are of 64 from as many images as MNIST has for training. Fetching
and training take turns, so that both see the same machine; medians are compared. A new epoch's permutation, paid once
per epoch, is in the second figure: a whole epoch of batches, per batch.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

import torch
from closed_form import keep_freed_memory
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.lab.data import Batches, dequantize

BATCH, IMAGES, LIMIT = 64, 55_000, 0.05


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 2 * 200))
        self.decoder = nn.Sequential(nn.Linear(200, 512), nn.ReLU(), nn.Linear(512, 784))

    def forward(self, x: Tensor) -> Tensor:
        loc, log_scale = self.encoder(x).chunk(2, -1)
        q = td.Normal(loc, log_scale.exp(), validate_args=False)
        error = (self.decoder(q.rsample()) - x).square().sum(-1) / (2 * 0.01)
        kl = td.kl_divergence(q, td.Normal(torch.zeros_like(loc), torch.ones_like(loc), validate_args=False)).sum(-1)
        return (error + kl).mean()


def endless(batches: Batches) -> Iterator[Tensor]:
    for epoch in itertools.count():
        batches.epoch = epoch
        for _, images in batches:
            yield dequantize(images, 256).flatten(1)


def measure(seconds: float) -> tuple[float, float]:
    """Median milliseconds of fetching a batch and of training on it."""
    feed, model = endless(mnist_sized()), Vae()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fetching, training = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        x = next(feed)
        fetched = time.perf_counter()
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        fetching.append(fetched - start)
        training.append(time.perf_counter() - fetched)
    return 1e3 * statistics.median(fetching[10:]), 1e3 * statistics.median(training[10:])


def epoch_per_batch() -> float:
    """Milliseconds per batch of an epoch that is only fetched, its permutation included."""
    batches, times = mnist_sized(), []
    for _ in range(3):
        start = time.perf_counter()
        for _, images in batches:
            dequantize(images, 256)
        times.append(1e3 * (time.perf_counter() - start) / len(batches))
    return statistics.median(times)


def mnist_sized() -> Batches:
    return Batches(torch.randint(0, 256, (IMAGES, 1, 28, 28), dtype=torch.uint8), BATCH, shuffle=True, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long to train")
    keep_freed_memory()
    fetch, train = measure(parser.parse_args().seconds)
    print(f"fetch and dequantize {fetch:.3f} ms, training step {train:.2f} ms: {fetch / train:.1%} (limit {LIMIT:.0%})")
    whole = epoch_per_batch()
    print(f"a whole epoch with its permutation: {whole:.3f} ms per batch, {whole / train:.1%} of a training step")


if __name__ == "__main__":
    main()
