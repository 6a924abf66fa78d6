"""The cost of the training loop beyond the training: one step of `Loop` against one in a hand-written loop.

    python benchmarks/training.py             # about two minutes on two cores

The same model (784-512-200, fixed variance, exact gradient, batch 64) on random images of MNIST's size. Epochs of both
loops take turns; medians of the time per step are compared. Validation comes before, as in every epoch of a run but the
first: what it frees tells the C library not to give a step's memory back to the system, from which the next step would
have it page by page. Checkpoints are left out of both.
"""

import argparse
import statistics
import time

import torch
from torch import distributions as td
from torch.nn.functional import hardtanh

from silentgrad import LinearGaussian
from silentgrad.lab.build import build_model
from silentgrad.lab.data import Levels, dequantize
from silentgrad.lab.networks import mlp_body
from silentgrad.lab.training import Loop, ModelConfig, TrainConfig
from silentgrad.lab.training.fabric import fabric_for
from silentgrad.latents.families import LARGEST_LOG
from silentgrad.schedules import constant

IMAGES = torch.randint(256, (64 * 300, 1, 28, 28), dtype=torch.uint8)
VALIDATION = 1000
LIMIT = 1.05


def by_the_loop() -> float:
    config, train = (
        ModelConfig(latent_dim=200, tractable="fixed", nonlinear=False, estimator="exact"),
        TrainConfig(epochs=1, accelerator="cpu"),
    )
    images = Levels(IMAGES, IMAGES[:VALIDATION], IMAGES[:1], "noise")
    model = build_model(config, images.event_shape, images.levels)
    loop = Loop(fabric_for(train), model, train, images, 64, constant(0.01))
    loop.evaluate("valid")
    start = time.perf_counter()
    loop.run([], lambda loop: None)
    return (time.perf_counter() - start) / (len(IMAGES) // 64)


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
        q = td.Normal(mean, hardtanh(log_std, -LARGEST_LOG, LARGEST_LOG).exp())
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
    times: dict[str, list[float]] = {"the loop": [], "by hand": []}
    for _ in range(rounds):
        times["by hand"].append(by_hand())
        times["the loop"].append(by_the_loop())
    median = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    ratio = median["the loop"] / median["by hand"]
    print(f"a step by hand {median['by hand']:.2f} ms, in the loop {median['the loop']:.2f} ms")
    print(f"ratio {ratio:.2f} (limit {LIMIT})")


if __name__ == "__main__":
    main()
