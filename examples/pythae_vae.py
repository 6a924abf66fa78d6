"""pythae's own VAE under pythae's own trainer, with the guide as a subclass of a few lines."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pythae.data.datasets import BaseDataset, DatasetOutput
from pythae.models import VAE, VAEConfig
from pythae.models.base.base_utils import ModelOutput
from pythae.models.nn import BaseDecoder, BaseEncoder
from pythae.trainers import BaseTrainer, BaseTrainerConfig
from torch import Tensor
from torch.distributions import Bernoulli, Independent, Normal

import comparison
import silentgrad as sg
from silentgrad.lab.data import Levels, Observations, Part, Rows
from silentgrad.lab.kinds import NATS_PER_EXAMPLE
from silentgrad.schedules import Schedule

TEN_EPOCHS = sg.linear_decay(epochs=10)


class SilentVAE(VAE):
    """Guided in training only: by evaluation, which is the host's own loss, pythae chooses the best model.

    The loss stays on pythae's scale, without the constant of N(reconstruction, I), which the guide has to be given.
    """

    def __init__(
        self,
        model_config: VAEConfig,
        encoder: BaseEncoder | None = None,
        decoder: BaseDecoder | None = None,
        schedule: Schedule = TEN_EPOCHS,
    ) -> None:
        super().__init__(model_config, encoder, decoder)
        gaussian = model_config.reconstruction_loss == "mse"
        likeness: dict[str, Any] = {"variance": 1.0} if gaussian else {"likelihood": sg.likelihoods.Bernoulli()}
        # 1. and 2.: as an attribute it is among the parameters that pythae's trainer gives to the optimizer
        self.guide = sg.SilentGuide(model_config.latent_dim, model_config.input_dim, schedule, "mean", **likeness)

    def forward(self, inputs: DatasetOutput, epoch: int = 1, **options: Any) -> ModelOutput:
        self.epoch = epoch  # the trainer's; its check of a new model gives none
        return super().forward(inputs, **options)

    def loss_function(self, recon_x: Tensor, x: Tensor, mu: Tensor, log_var: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        loss, nll, kld = super().loss_function(recon_x, x, mu, log_var, z)
        if not self.training:
            return loss, nll, kld
        q, nats = Normal(mu, (log_var / 2).exp(), validate_args=False), nll + constant(self.model_config)
        change = self.guide(x, q, nats, epoch=self.epoch) - nats  # 3.
        return loss + change, nll + change, kld


def constant(config: VAEConfig) -> float:
    """The nats per example that pythae's loss leaves out."""
    return math.prod(config.input_dim) * math.log(2 * math.pi) / 2 if config.reconstruction_loss == "mse" else 0.0


def without_guide(model: SilentVAE, folder: str | Path) -> VAE:
    """The model in pythae's own class, by way of a folder that pythae loads without knowing of any guide."""
    del model.guide
    model.save(folder)
    return VAE.load_from_folder(folder)


def latent(host: VAE, x: Tensor) -> Normal:
    """q(z|x)."""
    code = host.encoder(x)
    return Normal(code.embedding, (code.log_covariance / 2).exp())


def likelihood(host: VAE, z: Tensor) -> Independent:
    """p(x|z), whose negative logarithm is pythae's reconstruction loss and its constant."""
    mean = host.decoder(z).reconstruction
    if host.model_config.reconstruction_loss == "mse":
        return Independent(Normal(mean, 1.0), 3)
    return Independent(Bernoulli(mean, validate_args=False), 3)  # whose x is a grey value, not a bit


@dataclass(frozen=True)
class Greys(Observations):
    """Images as pythae sees them: grey values between 0 and 1, without noise.

    Args:
        levels: Number of levels of a pixel.
    """

    levels: int = 256

    unit = NATS_PER_EXAMPLE

    def as_seen(self, rows: Rows, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
        return rows.stored / (self.levels - 1)

    def figure(self, elbo: float) -> float:
        return -elbo


def train(images: Levels, seed: int, guided: bool, epochs: int, loss: str = "mse") -> float:
    torch.manual_seed(seed)
    config = VAEConfig(input_dim=tuple(images.event_shape), reconstruction_loss=loss)
    greys = Greys(images.train, images.valid, images.test, images.name, levels=images.levels)
    data = []
    for split in ("train", "valid"):
        x = greys.as_seen(greys.rows(split))
        data.append(BaseDataset(x, torch.zeros(len(x))))
    if guided:
        model = SilentVAE(config, schedule=sg.linear_decay(epochs=epochs / 2))  # w falls from 1 to 0 in the first half
        model.guide.init_from_data(data[0].data)
    else:
        model = VAE(config)
    with TemporaryDirectory() as folder:
        trainer = BaseTrainer(model, *data, BaseTrainerConfig(output_dir=folder, num_epochs=epochs, seed=seed))
        trainer.train()
        best = type(model).load_from_folder(f"{trainer.training_dir}/final_model")
        host = without_guide(best, f"{folder}/host") if guided else best
    return -comparison.judge(host, partial(latent, host), partial(likelihood, host), greys)


if __name__ == "__main__":
    comparison.main(train, "ELBO")
