"""The guide inside pythae's VAE: what its trainer, its files and its evaluation see of it."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pythae.data.datasets import BaseDataset, DatasetOutput
from pythae.models import VAE, AutoModel, VAEConfig
from pythae.trainers import BaseTrainer, BaseTrainerConfig
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import comparison
import pythae_vae
import silentgrad as sg
from pythae_vae import SilentVAE
from silentgrad.lab.data import Levels, Observations, load_images, mixed
from silentgrad.schedules import Schedule, constant, linear_decay

pytestmark = pytest.mark.filterwarnings("ignore:the guide starts at random")
LOSSES = ["mse", "bce"]


@pytest.fixture(scope="module")
def images() -> Levels:
    digits = load_images("digits")
    return dataclasses.replace(digits, train=digits.train[:128], valid=digits.valid[:40], test=digits.test[:30])


@pytest.fixture(scope="module")
def x(images: Levels) -> Tensor:
    return images.train[:32] / (images.levels - 1)


def config(loss: str = "mse") -> VAEConfig:
    return VAEConfig(input_dim=(1, 8, 8), latent_dim=3, reconstruction_loss=loss)


def silent_vae(schedule: Schedule, loss: str = "mse") -> SilentVAE:
    torch.manual_seed(0)
    return SilentVAE(config(loss), schedule=schedule)


def host_of(model: SilentVAE) -> VAE:
    """pythae's own model with the same networks."""
    return VAE(config(model.model_config.reconstruction_loss), model.encoder, model.decoder)


def output(model: VAE, x: Tensor, seed: int = 1) -> DatasetOutput:
    torch.manual_seed(seed)
    return model(DatasetOutput(data=x), epoch=1)


def gradients(loss: Tensor, module: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(module.parameters()), retain_graph=True))


def linear_loss(model: SilentVAE, x: Tensor) -> tuple[Tensor, Tensor]:
    """The linear decoder's loss, without the Gaussian constant, and the KL divergence: from their definitions."""
    q = model.encoder(x)
    mean, variance, linear = q.embedding, q.log_covariance.exp(), model.guide.decoder.affine
    kld = (mean.square() + variance - q.log_covariance - 1).sum(-1) / 2
    u, var_u, flat = linear(mean), variance @ linear.weight.square().T, x.flatten(1)
    if model.model_config.reconstruction_loss == "mse":
        return ((flat - u).square() + var_u).sum(-1).mean() / 2, kld.mean()
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    softplus = [w * nn.functional.softplus(u + t * var_u.sqrt()) for t, w in zip(nodes, weights, strict=True)]
    return (sum(softplus) / math.sqrt(2 * math.pi) - flat * u).sum(-1).mean(), kld.mean()


@pytest.mark.parametrize("loss", LOSSES)
def test_full_weight_gives_the_encoder_the_gradient_of_the_closed_form(loss: str, x: Tensor) -> None:
    model = silent_vae(constant(1.0), loss)
    silent, kld = linear_loss(model, x)
    trained = output(model, x).loss
    torch.testing.assert_close(trained, silent + kld, rtol=1e-5, atol=1e-4)
    found = gradients(trained, model.encoder)
    for ours, truth in zip(found, gradients(silent + kld, model.encoder), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-5)
    again = gradients(output(model, x, seed=2).loss, model.encoder)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    assert not any(g.any() for g in gradients(trained, model.decoder))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_between_mixes_the_two_losses(loss: str, x: Tensor) -> None:
    model = silent_vae(constant(0.3), loss)
    own, (silent, kld) = output(host_of(model), x), linear_loss(model, x)
    mixed = output(model, x)
    torch.testing.assert_close(mixed.recon_loss, 0.3 * silent + 0.7 * own.recon_loss, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(mixed.loss, mixed.recon_loss + kld, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(mixed.reg_loss, kld)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("weight", "training"), [(0.0, True), (1.0, False)])
def test_without_weight_or_training_it_is_pythae_bit_for_bit(
    loss: str, weight: float, training: bool, x: Tensor
) -> None:
    model = silent_vae(constant(weight), loss).train(training)
    host = host_of(model)
    ours, theirs = output(model, x), output(host, x)
    for name in ("loss", "recon_loss", "reg_loss", "recon_x", "z"):
        assert torch.equal(ours[name], theirs[name]), name
    for network in (model.encoder, model.decoder):
        pairs = zip(gradients(ours.loss, network), gradients(theirs.loss, network), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def trainer_of(model: VAE, images: Levels, folder: Path, epochs: int) -> BaseTrainer:
    data = [BaseDataset(split / (images.levels - 1), torch.zeros(len(split))) for split in (images.train, images.valid)]
    settings = BaseTrainerConfig(output_dir=str(folder), num_epochs=epochs, per_device_train_batch_size=32)
    return BaseTrainer(model, *data, settings)


def test_the_schedule_follows_the_epochs_of_the_trainer(images: Levels, tmp_path: Path) -> None:
    asked: list[int] = []

    def schedule(epoch: int) -> float:
        asked.append(epoch)
        return linear_decay(0.4)(epoch)

    trainer = trainer_of(silent_vae(schedule), images, tmp_path, epochs=3)
    assert asked == [1]  # the trainer's check of a new model
    trainer.train()
    assert asked == [1, *[1] * 4, *[2] * 4, *[3] * 4]  # four batches an epoch, none in evaluation


def test_the_guide_learns_in_the_optimizer_of_the_trainer(images: Levels, tmp_path: Path) -> None:
    model = silent_vae(constant(0.5))
    before = {name: value.clone() for name, value in model.guide.named_parameters()}
    trainer = trainer_of(model, images, tmp_path, epochs=1)
    trainer.train()
    optimized = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert before
    for name, value in model.guide.named_parameters():
        assert id(value) in optimized
        assert not torch.equal(value, before[name])


def test_what_the_trainer_saved_loads_with_and_without_the_guide(images: Levels, x: Tensor, tmp_path: Path) -> None:
    model = silent_vae(constant(0.5))
    trainer = trainer_of(model, images, tmp_path, epochs=1)
    trainer.train()
    saved = Path(trainer.training_dir) / "final_model"
    guided = SilentVAE.load_from_folder(saved)
    assert all(torch.equal(v, guided.state_dict()[k]) for k, v in model.state_dict().items())
    loss = output(guided.eval(), x).loss

    weights = torch.load(saved / "model.pt")["model_state_dict"]
    plain = VAE(config())
    plain.load_state_dict({k: v for k, v in weights.items() if not k.startswith("guide.")})
    assert torch.equal(output(plain.eval(), x).loss, loss)

    host = pythae_vae.without_guide(guided, tmp_path / "host")
    for other in (host, AutoModel.load_from_folder(tmp_path / "host")):
        assert type(other) is VAE
        assert torch.equal(output(other.eval(), x).loss, loss)


def trained(
    images: Levels, guided: bool, epochs: int, loss: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[VAE, Tensor, float]:
    """The host that `train` judged, the images it was judged on and the figure."""
    judged: list[tuple[VAE, Observations]] = []
    judge = comparison.judge
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "judge", lambda host, *rest: judged.append((host, rest[-1])) or judge(host, *rest))
        figure = pythae_vae.train(images, 0, guided, epochs, loss)
    host, greys = judged[0]
    return host, greys.as_seen(greys.rows("test")), figure


@pytest.mark.parametrize("loss", LOSSES)
def test_the_figure_is_the_elbo_in_nats(loss: str, images: Levels, monkeypatch: pytest.MonkeyPatch) -> None:
    host, x, figure = trained(images, True, 3, loss, monkeypatch)
    assert type(host) is VAE
    assert torch.equal(x, images.test / 16)
    code = host.encoder(x)
    q = Normal(code.embedding, code.log_covariance.exp().sqrt())
    torch.manual_seed(mixed(2, 0, 1))  # the evaluation's, for the latents of its first batch
    mean = host.decoder(q.loc + q.scale * torch.randn(30, 10)).reconstruction
    log_prob = Normal(mean, 1.0).log_prob(x) if loss == "mse" else x * mean.log() + (1 - x) * (1 - mean).log()
    nats = log_prob.flatten(1).sum(-1) - kl_divergence(q, Normal(0.0, 1.0)).sum(-1)
    assert figure == pytest.approx(nats.mean().item(), rel=1e-5)


def test_the_likelihood_is_that_of_pythaes_own_loss(images: Levels, x: Tensor) -> None:
    """Of the latents that pythae drew: its loss is the mean negative ELBO, but for a constant."""
    for loss in LOSSES:
        host = VAE(config(loss)).eval()
        own = output(host, x)
        q = pythae_vae.latent(host, x)
        kld = kl_divergence(q, Normal(0.0, 1.0)).sum(-1)
        elbo = pythae_vae.likelihood(host, own.z).log_prob(x) - kld
        torch.testing.assert_close(-elbo.mean(), own.loss + pythae_vae.constant(config(loss)))


def test_one_seed_is_one_start_and_one_order_of_data(images: Levels, monkeypatch: pytest.MonkeyPatch) -> None:
    def weights(guided: bool) -> list[Tensor]:
        return list(trained(images, guided, 4, "mse", monkeypatch)[0].parameters())

    before, after = weights(guided=False), weights(guided=True)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    monkeypatch.setattr(sg, "linear_decay", lambda epochs: constant(0.0))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(guided=True), strict=True))
