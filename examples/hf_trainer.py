"""A VAE under the Trainer of Hugging Face's transformers, whose count of steps a callback tells the guide."""

import math
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

import comparison
import silentgrad as sg
from silentgrad.lab.data import Levels, dequantize

BATCH, FLOOR = 64, -math.log(12 * 256**2) / 2  # a pixel of 256 levels is never sharper than its level


class VAEConfig(hf.PreTrainedConfig):
    model_type = "pixel_vae"
    pixels: int = 784
    levels: int = 256
    latents: int = 64
    hidden: int = 512


class VAE(hf.PreTrainedModel):
    """A host whose decoder learns the mean and the variance of every pixel. A guide helps in training only."""

    config_class = VAEConfig
    _keys_to_ignore_on_load_unexpected = (r"^guide\.",)  # what was saved with a guide loads without one

    def __init__(self, config: VAEConfig) -> None:
        super().__init__(config)
        pixels, hidden, latents = config.pixels, config.hidden, config.latents
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latents))
        self.decoder = nn.Sequential(nn.Linear(latents, hidden), nn.ReLU(), nn.Linear(hidden, 2 * pixels))
        self.guide: sg.SilentGuide | None = None
        self.step = 0
        self.post_init()  # would start a guide's layers anew too: it comes after

    def latent(self, x: Tensor) -> Normal:  # q(z|x)
        loc, log_scale = self.encoder(x).chunk(2, dim=-1)
        return Normal(loc, log_scale.exp())

    def likelihood(self, z: Tensor) -> Independent:  # p(x|z)
        mean, log_deviation = self.decoder(z).chunk(2, dim=-1)
        return Independent(Normal(mean, log_deviation.clamp(min=FLOOR).exp()), 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        x = dequantize(image, self.config.levels).flatten(1)
        q = self.latent(x)
        nll, kld = -self.likelihood(q.rsample()).log_prob(x), kl_divergence(q, Normal(0.0, 1.0)).sum(-1)
        if self.training and self.guide is not None:
            nll = self.guide(x, q, nll, step=self.step)  # 3.
        return {"loss": (nll + kld).mean()}


class TellStep(hf.TrainerCallback):
    """The trainer's own count: one for all batches whose gradients add up, and it goes on when a run is resumed."""

    def on_step_begin(
        self, args: hf.TrainingArguments, state: hf.TrainerState, control: hf.TrainerControl, **kwargs: Any
    ) -> None:
        kwargs["model"].step = state.global_step + 1


def train(images: Levels, seed: int, guided: bool, epochs: int) -> float:
    torch.manual_seed(seed)
    model = VAE(VAEConfig(pixels=images.event_shape.numel(), levels=images.levels))
    groups = [{"params": list(model.parameters()), "lr": 1e-3}]
    if guided:
        steps = epochs * math.ceil(len(images.train) / BATCH)  # in a quarter of them w falls from 1 to 0
        model.guide = sg.SilentGuide(model.config.latents, model.config.pixels, sg.linear_decay(steps=steps / 4))  # 1.
        model.guide.init_from_data(images.train.flatten(1) / images.levels)
        groups += [{"params": list(model.guide.parameters()), "lr": 5e-3}]  # 2.
    with TemporaryDirectory() as folder:
        settings = hf.TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=BATCH, seed=seed, logging_strategy="epoch",
            save_strategy="no", report_to="none", max_grad_norm=0,  # in nats, every gradient would be clipped
        )  # fmt: skip
        data, optimizers = [{"image": image} for image in images.train], (torch.optim.Adam(groups), None)
        hf.Trainer(model, settings, train_dataset=data, optimizers=optimizers, callbacks=[TellStep()]).train()
    return comparison.judge(model, model.latent, model.likelihood, comparison.flat(images))


if __name__ == "__main__":
    comparison.main(train, "BPD", epochs=5)
