"""A plain PyTorch loop: a VAE whose decoder learns the mean and the variance of every pixel."""

import itertools
import math

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

import comparison
import silentgrad as sg
from silentgrad.lab.data import Levels, dequantize

LATENTS, HIDDEN, BATCH = 64, 512, 64
FLOOR = -math.log(12 * 256**2) / 2  # a pixel of 256 levels is never sharper than its level


def train(images: Levels, seed: int, guided: bool, epochs: int) -> float:
    torch.manual_seed(seed)
    images = comparison.flat(images)
    pixels = images.event_shape.numel()
    encoder = nn.Sequential(nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENTS))
    decoder = nn.Sequential(nn.Linear(LATENTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * pixels))
    count, steps = itertools.count(1), epochs * math.ceil(len(images.train) / BATCH)
    quarter = sg.linear_decay(steps=steps / 4)  # w falls from 1 to 0 in a quarter of the steps
    guide = sg.SilentGuide(LATENTS, pixels, quarter)  # 1.
    guide.init_from_data(images.train / images.levels)
    host = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam([{"params": host, "lr": 1e-3}, {"params": guide.parameters(), "lr": 5e-3}])  # 2.

    def latent(x: Tensor) -> Normal:  # q(z|x)
        loc, log_scale = encoder(x).chunk(2, dim=-1)
        return Normal(loc, log_scale.exp())

    def likelihood(z: Tensor) -> Independent:  # p(x|z)
        mean, log_deviation = decoder(z).chunk(2, dim=-1)
        return Independent(Normal(mean, log_deviation.clamp(min=FLOOR).exp()), 1)

    for epoch in range(1, epochs + 1):
        for batch in images.train[torch.randperm(len(images.train))].split(BATCH):
            x = dequantize(batch, images.levels)
            q = latent(x)
            nll, kld = -likelihood(q.rsample()).log_prob(x), kl_divergence(q, Normal(0.0, 1.0)).sum(-1)
            if guided:
                nll = guide(x, q, nll, step=next(count))  # 3.
            optimizer.zero_grad()
            (nll + kld).mean().backward()
            optimizer.step()
        print(f"epoch {epoch}: ELBO of the last batch {-(nll + kld).mean():.1f}", flush=True)
    return comparison.judge(nn.ModuleList([encoder, decoder]), latent, likelihood, images)


if __name__ == "__main__":
    comparison.main(train, "BPD", epochs=10)
