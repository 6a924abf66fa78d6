"""diffusers' AutoencoderKL with the guide: its latents as the guide takes them, its losses in nats, its own files."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import diffusers_autoencoder as example
import silentgrad as sg
from silentgrad.lab.data import Levels, load_images, mixed
from silentgrad.schedules import constant

pytestmark = pytest.mark.filterwarnings("ignore:the guide starts at random")
SHAPE, LATENTS, LOG_VARIANCE = (1, 8, 8), 16, torch.tensor(-1.5)


@pytest.fixture(scope="module")
def images() -> Levels:
    digits = load_images("digits")
    return Levels(digits.train[:64], digits.valid, digits.test[:40], "digits", levels=digits.levels)


@pytest.fixture
def vae(images: Levels) -> AutoencoderKL:
    torch.manual_seed(0)
    return example.build(images)


@pytest.fixture
def x(images: Levels) -> Tensor:
    return images.train[:8] / images.levels


def gaussian_nll(squares: Tensor, log_variance: Tensor) -> Tensor:
    return (squares / log_variance.exp() + log_variance + math.log(2 * math.pi)).flatten(1).sum(1) / 2


def test_losses_are_nats_of_images_between_zero_and_one(vae: AutoencoderKL, x: Tensor) -> None:
    torch.manual_seed(1)
    q, nll, kld = example.losses(vae, LOG_VARIANCE, x)
    posterior = vae.encode(2 * x - 1).latent_dist
    torch.manual_seed(1)
    z = posterior.mean + posterior.std * torch.randn(8, example.CHANNELS, 2, 2)
    y = vae.decode(z).sample
    torch.testing.assert_close(nll, gaussian_nll((x - (y + 1) / 2).square(), LOG_VARIANCE))
    torch.testing.assert_close(kl_divergence(q, Normal(0.0, 1.0)).flatten(1).sum(1), kld)
    torch.testing.assert_close((q.mean, q.stddev), (posterior.mode(), posterior.std))


def test_alone_the_guide_gives_the_encoder_a_gradient_without_noise(vae: AutoencoderKL, x: Tensor) -> None:
    guide = sg.SilentGuide(LATENTS, SHAPE, constant(1.0), likelihood=sg.likelihoods.Normal(()))
    encoder = [*vae.encoder.parameters(), *vae.quant_conv.parameters()]

    def gradient(loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss.sum(), encoder))

    def sampled(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        q, nll, kld = example.losses(vae, LOG_VARIANCE, x)
        return gradient(guide(x, q, nll, epoch=1) + kld)

    m, log_s2 = (t.flatten(1) for t in vae.quant_conv(vae.encoder(2 * x - 1)).chunk(2, dim=1))
    W, b, s2 = guide.decoder.affine.weight, guide.decoder.affine.bias, log_s2.exp()
    squares = (x.flatten(1) - m @ W.T - b).square() + s2 @ W.square().T  # E(x - u)^2 of u = Wz + b
    nll = gaussian_nll(squares, 2 * guide.decoder.likelihood.log_scale)
    truth = gradient(nll + (m.square() + s2 - 1 - log_s2).sum(1) / 2)
    first, second = sampled(1), sampled(2)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    torch.testing.assert_close(first, truth, rtol=1e-4, atol=1e-3)


def test_linear_decoder_starts_as_ppca_of_patches(images: Levels) -> None:
    guide = sg.SilentGuide(LATENTS, SHAPE, constant(1.0), likelihood=sg.likelihoods.Normal(()))
    x = images.train / images.levels
    example.start_from_patches(guide, x)
    centered = (x - x.mean(0)).double().numpy()
    corners = [(0, 0), (0, 4), (4, 0), (4, 4)]
    patches = np.concatenate([centered[:, 0, i : i + 4, j : j + 4].reshape(len(x), 16) for i, j in corners])
    _, deviations, directions = np.linalg.svd(patches, full_matrices=False)
    variances = deviations**2 / len(patches)
    noise = variances[4:].mean()
    truth = directions[:4].T @ np.diag(variances[:4] - noise) @ directions[:4]  # W W^T of one patch
    W = guide.decoder.affine.weight.detach().unflatten(0, SHAPE).unflatten(-1, (example.CHANNELS, 2, 2))[0]
    for i, j in corners:
        own = W[i : i + 4, j : j + 4, :, i // 4, j // 4].flatten(0, 1).double().numpy()
        np.testing.assert_allclose(own @ own.T, truth, atol=1e-6)
        assert float(W[i : i + 4, j : j + 4].abs().sum()) == pytest.approx(float(np.abs(own).sum()))  # no other latent
    assert float(guide.decoder.likelihood.scale.detach()) ** 2 == pytest.approx(noise)
    torch.testing.assert_close(guide.decoder.affine.bias.detach(), x.mean(0).flatten())


def test_figure_is_in_bits_per_dimension(images: Levels) -> None:
    figure = example.train(images, seed=0, guided=True, epochs=3)
    vae, log_variance = example.fit(images, seed=0, guided=True, epochs=3)
    with torch.no_grad():
        x = (images.test + 0.5) / 17
        m, log_s2 = vae.quant_conv(vae.encoder(2 * x - 1)).chunk(2, dim=1)
        torch.manual_seed(mixed(2, 0, 1))
        y = vae.decoder(vae.post_quant_conv(m + (log_s2 / 2).exp() * torch.randn(m.shape)))
        kld = (m.square() + log_s2.exp() - 1 - log_s2).flatten(1).sum(1) / 2
        nats = float((gaussian_nll((x - (y + 1) / 2).square() + 1 / (12 * 17**2), log_variance) + kld).mean())
    assert figure == pytest.approx(nats / 64 / math.log(2) + math.log2(17), rel=1e-5)


def test_training_follows_the_schedule_from_one_start(images: Levels, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int | None] = []
    guides: list[sg.SilentGuide] = []
    start: list[Tensor] = []
    forward = sg.SilentGuide.forward

    def watched(self: sg.SilentGuide, *args: object, epoch: int | None = None) -> Tensor:
        if not guides:
            guides.append(self)
            start.extend(p.detach().clone() for p in self.parameters())
        epochs.append(epoch)
        return forward(self, *args, epoch=epoch)

    monkeypatch.setattr(sg.SilentGuide, "forward", watched)
    example.fit(images, seed=0, guided=True, epochs=3)
    assert epochs == [1, 1, 2, 2, 3, 3]
    assert not any(torch.equal(*pair) for pair in zip(guides[0].parameters(), start, strict=True))
    example.start_from_patches(guides[0], images.train / images.levels)
    assert all(torch.equal(*pair) for pair in zip(guides[0].parameters(), start, strict=True))

    monkeypatch.setattr(sg, "linear_decay", lambda epochs: constant(0.0))
    runs = [example.fit(images, seed=0, guided=way, epochs=2) for way in (True, False)]
    torch.testing.assert_close(runs[0][0].state_dict(), runs[1][0].state_dict())
    torch.testing.assert_close(runs[0][1], runs[1][1])
    assert epochs[6:] == [1, 1, 2, 2]


def test_is_saved_and_loaded_as_a_model_of_diffusers(images: Levels, tmp_path: Path, x: Tensor) -> None:
    vae, _ = example.fit(images, seed=0, guided=True, epochs=3)
    vae.save_pretrained(tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    assert set(load_file(weights)) == set(example.build(images).state_dict())
    loaded, found = AutoencoderKL.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values())
    with torch.no_grad():
        assert torch.equal(loaded(x).sample, vae(x).sample)
        assert torch.equal(loaded.encode(x).latent_dist.std, vae.encode(x).latent_dist.std)
