"""Dequantization noise drawn anew at every step, or integrated out of a circuit's leaves: the test bound of each.

    python benchmarks/noise.py                    # MNIST, three seeds, about half an hour on one core
    python benchmarks/noise.py --data digits --epochs 40

The encoder sees an image with noise, or the centres of its bins; the decoder is a silent circuit built without noise,
or with that of a bin, `sg.Circuit(..., noise=...)`. Both are judged by the same bound of the same decoder, with one
noise drawn around the test images; each encoder sees what it was trained on.
"""

import argparse
import math
import statistics
import time

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import silentgrad as sg
from silentgrad.lab.data import Levels, load_images

LATENTS, COMPONENTS, HIDDEN, BATCH = 32, 8, 512, 128
RATE, NETWORK_RATE = 1e-2, 1e-3


class Model(nn.Module):
    """A silent circuit with an encoder.

    Args:
        images: The data.
        integrated: Whether noise is integrated out.
    """

    def __init__(self, images: Levels, integrated: bool) -> None:
        super().__init__()
        self.images, self.integrated = images, integrated
        pixels = images.event_shape.numel()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENTS))
        noise = images.noise_deviation if integrated else 0.0
        self.decoder = sg.Circuit(LATENTS, images.event_shape, COMPONENTS, gates="all", noise=noise)

    def elbo(self, seen: Tensor, decoder: sg.Circuit, x: Tensor) -> Tensor:
        loc, log_scale = self.body(seen).chunk(2, dim=-1)
        q = Normal(loc, log_scale.exp(), validate_args=False)
        return decoder.expected_log_prob(x, q) - kl_divergence(q, Normal(0.0, 1.0)).sum(-1)

    def training_elbo(self, levels: Tensor) -> Tensor:
        centres = (levels.float() + 0.5) / self.images.levels
        if self.integrated:
            return self.elbo(centres, self.decoder, centres)
        x = with_noise(levels, self.images.levels)
        return self.elbo(x, self.decoder, x)

    @torch.no_grad()
    def test(self) -> float:
        """Test bits per dimension with noise drawn around the images; the encoder sees what it was trained on."""
        judge = sg.Circuit(LATENTS, self.images.event_shape, COMPONENTS, gates="all")
        judge.load_state_dict(self.decoder.state_dict())
        generator = torch.Generator().manual_seed(0)
        total = 0.0
        for levels in self.images.test.split(250):
            x = with_noise(levels, self.images.levels, generator)
            seen = (levels.float() + 0.5) / self.images.levels if self.integrated else x
            total += float(self.elbo(seen, judge, x).double().sum())
        return self.images.figure(total / len(self.images.test))


def with_noise(levels: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
    return (levels.float() + torch.rand(levels.shape, generator=generator)) / count


def train(images: Levels, seed: int, integrated: bool, epochs: int) -> tuple[float, float]:
    """Return the test figure and the seconds of a run."""
    torch.manual_seed(seed)
    model = Model(images, integrated)
    model.decoder.init_from_data(with_noise(images.train[:5000], images.levels))
    groups = [
        {"params": model.body.parameters(), "lr": NETWORK_RATE},
        {"params": model.decoder.parameters(), "lr": RATE},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    steps = epochs * math.ceil(len(images.train) / BATCH)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 200) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    start = time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(images.train)).split(BATCH):
            loss = -model.training_elbo(images.train[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
    return model.test(), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist", help="images (mnist)")
    parser.add_argument("--epochs", type=int, default=3, help="of each run (3)")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 (3)")
    given = parser.parse_args()
    images = load_images(given.data)
    for name, integrated in {"drawn at every step": False, "integrated out": True}.items():
        runs = [train(images, seed, integrated, given.epochs) for seed in range(given.seeds)]
        figures, seconds = zip(*runs, strict=True)
        told = f"{statistics.fmean(figures):.4f}"
        if given.seeds > 1:
            told += f" ± {statistics.stdev(figures):.4f}"
        print(f"noise {name}: test BPD {told}, {statistics.fmean(seconds):.0f} s a run", flush=True)


if __name__ == "__main__":
    main()
