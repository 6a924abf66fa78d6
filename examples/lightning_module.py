"""A LightningModule: a convolutional VAE whose decoder learns the mean and the variance of every pixel."""

import math
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils.data import DataLoader

import comparison
import silentgrad as sg
from silentgrad.lab.data import Levels, dequantize

LATENTS, CHANNELS, BATCH = 32, 16, 64
FLOOR = -math.log(12 * 256**2) / 2  # a pixel of 256 levels is never sharper than its level


class ConvVAE(lightning.LightningModule):
    """Any module of this kind: an encoder, a decoder, and a training step that returns the loss."""

    def __init__(self, images: Levels, guide: sg.SilentGuide | None = None) -> None:
        super().__init__()
        channels, height, width = images.event_shape
        inner = (2 * CHANNELS, height // 4, width // 4)
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, CHANNELS, 4, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(CHANNELS, 2 * CHANNELS, 4, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(math.prod(inner), 2 * LATENTS),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(LATENTS, math.prod(inner)), nn.Unflatten(1, inner), nn.ReLU(),
            nn.ConvTranspose2d(2 * CHANNELS, CHANNELS, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(CHANNELS, 2 * channels, 4, stride=2, padding=1),
        )  # fmt: skip
        self.levels, self.guide = images.levels, guide  # 1. as a submodule it is moved, saved and loaded with the host

    def latent(self, x: Tensor) -> Normal:  # q(z|x)
        loc, log_scale = self.encoder(x).chunk(2, dim=-1)
        return Normal(loc, log_scale.exp())

    def likelihood(self, z: Tensor) -> Independent:  # p(x|z)
        mean, log_deviation = self.decoder(z).chunk(2, dim=1)
        return Independent(Normal(mean, log_deviation.clamp(min=FLOOR).exp()), 3)

    def training_step(self, batch: Tensor) -> Tensor:
        x = dequantize(batch, self.levels)
        q = self.latent(x)
        nll, kld = -self.likelihood(q.rsample()).log_prob(x), kl_divergence(q, Normal(0.0, 1.0)).sum(-1)
        if self.guide is not None:
            nll = self.guide(x, q, nll, step=self.global_step + 1)  # 2. Lightning counts from 0
        loss = (nll + kld).mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        groups = [{"params": [*self.encoder.parameters(), *self.decoder.parameters()]}]
        if self.guide is not None:
            groups.append({"params": self.guide.parameters(), "lr": 5e-3})  # 3.
        optimizer = torch.optim.Adam(groups, lr=1e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, steps
        )  # or the last steps' noise is in the figure
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}


def train(images: Levels, seed: int, guided: bool, epochs: int) -> float:
    lightning.seed_everything(seed, verbose=False)
    host = ConvVAE(images)
    if guided:
        steps = epochs * math.ceil(len(images.train) / BATCH)
        quarter = sg.linear_decay(steps=steps / 4)  # w falls from 1 to 0 in a quarter of the steps
        host.guide = sg.SilentGuide(LATENTS, images.event_shape, quarter)
        host.guide.init_from_data(images.train / images.levels)
    trainer = lightning.Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False, enable_model_summary=False)
    order = torch.Generator().manual_seed(seed)
    trainer.fit(host, DataLoader(images.train, batch_size=BATCH, shuffle=True, generator=order))
    return comparison.judge(host, host.latent, host.likelihood, images)


if __name__ == "__main__":
    comparison.main(train, "BPD", epochs=5)
