"""The guide inside pythae, Pyro, diffusers and transformers: each host between its own loss and the closed form.

The closed form is written out by hand for each, and so is the ELBO that is its figure.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyro
import pytest
import torch
import transformers as hf
from diffusers import AutoencoderKL
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pythae.data.datasets import BaseDataset, DatasetOutput
from pythae.models import VAE, AutoModel, VAEConfig
from pythae.trainers import BaseTrainer, BaseTrainerConfig
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn.functional import softplus

import comparison
import diffusers_autoencoder
import hf_trainer
import lightning_module
import pyro_svi
import pythae_vae
import silentgrad as sg
from pyro_svi import SilentELBO
from pythae_vae import SilentVAE
from refusals import Refusals, refusals, refused
from silentgrad.lab.data import Levels, load_images, mixed
from silentgrad.schedules import constant, linear_decay

pytestmark = pytest.mark.filterwarnings(
    "ignore:'pin_memory' argument is set as true:UserWarning:torch.utils.data",
    "ignore:.*LeafSpec:FutureWarning",  # Lightning's use of torch
    "ignore:.*many workers:UserWarning",  # Lightning's advice
    "ignore:the guide starts at random",  # of which the examples as commands have to be free
)
BATCH, VARIANCE, LOG_VARIANCE = 16, 0.3, torch.tensor(-1.5)
DIGITS = load_images("digits")
IMAGES = Levels(DIGITS.train[:192], DIGITS.valid[:40], DIGITS.test[:30], "digits", levels=DIGITS.levels)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
RULE = list(zip(NODES, WEIGHTS / WEIGHTS.sum(), strict=True))  # E f(t) of a standard normal t


class Host(NamedTuple):
    """A host on a batch: its loss of a seed with the guide and by itself, and the closed form by hand; per example."""

    guided: nn.Module
    loss: Callable[[], Tensor]
    own: Callable[[], Tensor]
    by_hand: Callable[[], Tensor]
    encoder: list[Tensor]
    decoder: list[Tensor]


def standard_kld(mean: Tensor, log_variance: Tensor) -> Tensor:
    return (mean.square() + log_variance.exp() - log_variance - 1).flatten(1).sum(1) / 2


def gaussian_nll(squares: Tensor, log_variance: Tensor) -> Tensor:
    return (squares / log_variance.exp() + log_variance + math.log(2 * math.pi)).flatten(1).sum(1) / 2


def expected_squares(x: Tensor, mean: Tensor, variance: Tensor, linear: Any) -> Tensor:
    """E (x - u)^2 of u = Wz + b, of each output."""
    mean, variance = mean.flatten(1), variance.flatten(1)
    return (x.flatten(1) - linear(mean)).square() + variance @ linear.weight.square().T


def of_pythae(weight: float, loss: str = "mse") -> Host:
    config = VAEConfig(input_dim=(1, 8, 8), latent_dim=3, reconstruction_loss=loss)
    model, x = SilentVAE(config, schedule=constant(weight)), IMAGES.train[:BATCH] / 16
    host = VAE(config, model.encoder, model.decoder)

    def by_hand() -> Tensor:
        q, linear = model.encoder(x), model.guide.decoder.affine
        mean, variance, kld = q.embedding, q.log_covariance.exp(), standard_kld(q.embedding, q.log_covariance)
        if loss == "mse":  # without the constant of the Gaussian
            return (expected_squares(x, mean, variance, linear).sum(-1) / 2 + kld).mean()
        u, deviation = linear(mean), (variance @ linear.weight.square().T).sqrt()
        return (sum(w * softplus(u + t * deviation) for t, w in RULE) - x.flatten(1) * u).sum(-1).add(kld).mean()

    losses = [lambda each=each: each(DatasetOutput(data=x), epoch=1).loss for each in (model, host)]
    return Host(model, *losses, by_hand, list(model.encoder.parameters()), list(model.decoder.parameters()))


class Pair:
    """Somebody's model and guide in Pyro; sites, names and the prior are theirs."""

    def __init__(self, weight: float = 1.0, subsample: int | None = None) -> None:
        pyro.clear_param_store()
        self.encoder, self.decoder = nn.Linear(64, 2 * 3), nn.Linear(3, 64)
        self.x, self.subsample = IMAGES.train[:BATCH].flatten(1) / 16, subsample
        self.silent = SilentELBO(sg.SilentGuide(3, 64, constant(weight), variance=VARIANCE), "code", "image")

    def guide(self, data: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", len(data), subsample_size=self.subsample) as rows:
            loc, log_scale = self.encoder(data[rows]).chunk(2, dim=-1)
            pyro.sample("code", dist.Normal(loc, log_scale.exp()).to_event(1))

    def model(self, data: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(data), subsample_size=self.subsample) as rows:
            code = pyro.sample("code", dist.Normal(torch.full((3,), 0.2), 1.5).to_event(1))
            pyro.sample("image", dist.Normal(self.decoder(code), 0.8).to_event(1), obs=data[rows])

    def by_hand(self) -> Tensor:
        """Of each example: the closed form, and the divergence of N(m, s) from N(0.2, 1.5)."""
        m, log_s = self.encoder(self.x).chunk(2, dim=-1)
        squares = expected_squares(self.x, m, log_s.mul(2).exp(), self.silent.silent_guide.decoder.affine)
        kld = math.log(1.5) - log_s + (log_s.mul(2).exp() + (m - 0.2).square()) / (2 * 1.5**2) - 0.5
        return gaussian_nll(squares, torch.tensor(VARIANCE).log()) + kld.sum(-1)


def of_pyro(weight: float, subsample: int | None = None, handler: Callable[[Any], Any] = lambda f: f) -> Host:
    pair = Pair(weight, subsample)
    objectives = pair.silent, TraceMeanField_ELBO().differentiable_loss
    losses = [lambda each=each: each(handler(pair.model), handler(pair.guide), pair.x) / BATCH for each in objectives]
    networks = [list(network.parameters()) for network in (pair.encoder, pair.decoder)]
    return Host(pair.silent.silent_guide, *losses, lambda: pair.by_hand().mean(), *networks)


def of_diffusers(weight: float) -> Host:
    vae, x = diffusers_autoencoder.build(IMAGES), IMAGES.train[:BATCH] / 16
    guide = sg.SilentGuide(16, (1, 8, 8), constant(weight), likelihood=sg.likelihoods.Normal(()))

    def loss() -> Tensor:
        q, nll, kld = diffusers_autoencoder.losses(vae, LOG_VARIANCE, x)
        return (guide(x, q, nll, epoch=1) + kld).mean()

    def own() -> Tensor:
        """Of images between 0 and 1, where diffusers' are between -1 and 1."""
        mean, log_variance = vae.quant_conv(vae.encoder(2 * x - 1)).chunk(2, dim=1)
        posterior = vae.encode(2 * x - 1).latent_dist
        y = vae.decode(mean + posterior.std * torch.randn(BATCH, 4, 2, 2)).sample
        return (gaussian_nll((x - (y + 1) / 2).square(), LOG_VARIANCE) + standard_kld(mean, log_variance)).mean()

    def by_hand() -> Tensor:
        mean, log_variance = vae.quant_conv(vae.encoder(2 * x - 1)).chunk(2, dim=1)
        squares = expected_squares(x, mean, log_variance.exp(), guide.decoder.affine)
        nll = gaussian_nll(squares, 2 * guide.decoder.likelihood.log_scale)
        return (nll + standard_kld(mean, log_variance)).mean()

    encoder, decoder = ([*a.parameters(), *b.parameters()] for a, b in (
        (vae.encoder, vae.quant_conv), (vae.decoder, vae.post_quant_conv)
    ))  # fmt: skip
    return Host(guide, loss, own, by_hand, encoder, decoder)


def vae_of_hf(schedule: Callable[[float], float]) -> hf_trainer.VAE:
    model = hf_trainer.VAE(hf_trainer.VAEConfig(pixels=64, levels=17, latents=2, hidden=16))
    model.guide = sg.SilentGuide(2, 64, schedule, link="exp")
    nn.init.normal_(model.guide.decoder.precision_affine.weight, std=0.1)
    return model


def of_hf(weight: float) -> Host:
    model, image = vae_of_hf(constant(weight)), IMAGES.train[:BATCH]
    model.step = 1

    def own() -> Tensor:
        guide, model.guide = model.guide, None
        loss = model(image)["loss"]
        model.guide = guide
        return loss

    def by_hand() -> Tensor:
        """By quadrature over the two latents."""
        x = (image.flatten(1) + 0.5) / 17
        loc, log_scale = model.encoder(x).chunk(2, dim=-1)
        u, g, nll = model.guide.decoder.affine, model.guide.decoder.precision_affine, torch.zeros(BATCH)
        for (s, v), (t, w) in itertools.product(RULE, RULE):
            z = loc + log_scale.exp() * torch.tensor([s, t], dtype=torch.float32)
            nll = nll - v * w * Independent(Normal(u(z), (-g(z) / 2).exp()), 1).log_prob(x)
        return (nll + standard_kld(loc, 2 * log_scale)).mean()

    networks = [list(network.parameters()) for network in (model.encoder, model.decoder)]
    return Host(model, lambda: model(image)["loss"], own, by_hand, *networks)


HOSTS: dict[str, Callable[[float], Host]] = {
    "pythae": of_pythae,
    "pythae, bce": partial(of_pythae, loss="bce"),
    "Pyro": of_pyro,
    "diffusers": of_diffusers,
    "transformers": of_hf,
}
PYRO: dict[str, Callable[[float], Host]] = {
    "Pyro, scale": partial(of_pyro, handler=lambda f: poutine.scale(f, 0.25)),
    "Pyro, mask": partial(of_pyro, handler=lambda f: poutine.mask(f, torch.arange(BATCH) % 3 > 0)),
    "Pyro, subsample": partial(of_pyro, subsample=BATCH // 2),
}


@pytest.fixture
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Host]]:
    """Each host anew with the same numbers; the noise of dequantization is fixed."""
    monkeypatch.setattr(hf_trainer, "dequantize", lambda image, levels: (image + 0.5) / levels)

    def built(weight: float) -> Host:
        torch.manual_seed(0)
        return (HOSTS | PYRO)[request.param](weight)

    yield built
    pyro.clear_param_store()


def seeded(loss: Callable[[], Tensor], seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return loss()


def gradients(loss: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True, allow_unused=True))


@pytest.mark.parametrize("build", HOSTS, indirect=True)
def test_full_weight_gives_the_encoder_the_gradient_of_the_closed_form(build: Callable[[float], Host]) -> None:
    host = build(1.0)
    truth, found, again = host.by_hand(), seeded(host.loss, 1), seeded(host.loss, 2)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-4)
    exact = gradients(found, host.encoder)
    torch.testing.assert_close(exact, gradients(truth, host.encoder), rtol=1e-3, atol=1e-4)
    assert all(map(torch.equal, exact, gradients(again, host.encoder)))
    assert not any(g.any() for g in gradients(found, host.decoder))


@pytest.mark.parametrize("build", HOSTS, indirect=True)
def test_a_weight_between_mixes_the_two_losses(build: Callable[[float], Host]) -> None:
    host = build(0.3)
    expected = 0.3 * host.by_hand() + 0.7 * seeded(host.own)
    torch.testing.assert_close(seeded(host.loss), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("build", HOSTS | PYRO, indirect=True)
@pytest.mark.parametrize(("weight", "training"), [(0.0, True), (1.0, False)])
def test_without_weight_or_training_it_is_the_hosts_own_loss(
    weight: float, training: bool, build: Callable[[float], Host], request: pytest.FixtureRequest
) -> None:
    host = build(weight)
    host.guided.train(training)
    ours, theirs = seeded(host.loss), seeded(host.own)
    exact = {"rtol": 0, "atol": 0} if "pythae" in request.node.name or "transformers" in request.node.name else {}
    torch.testing.assert_close(ours, theirs, **exact)
    for parameters in (host.encoder, host.decoder):
        torch.testing.assert_close(gradients(ours, parameters), gradients(theirs, parameters), **exact)


def test_masks_and_scales_of_pyro_weigh_the_closed_form_too() -> None:
    torch.manual_seed(0)
    pair, kept = Pair(), torch.arange(BATCH) % 3 > 0
    for handler, truth in (
        (lambda f: poutine.scale(f, 0.25), 0.25 * pair.by_hand().sum()),
        (lambda f: poutine.mask(f, kept), pair.by_hand()[kept].sum()),
    ):
        torch.testing.assert_close(pair.silent(handler(pair.model), handler(pair.guide), pair.x), truth)


def test_pythae_sees_the_parts_of_its_loss() -> None:
    host, x = of_pythae(0.3), DatasetOutput(data=IMAGES.train[:BATCH] / 16)
    plain = VAE(host.guided.model_config, host.guided.encoder)
    found, own = (seeded(partial(each, x)) for each in (host.guided, plain))
    assert torch.equal(found.reg_loss, own.reg_loss)
    torch.testing.assert_close(found.loss, found.recon_loss + found.reg_loss)


class Run(NamedTuple):
    """What `train` did: the host and the functions that it was judged by, the figure, and how the guide was asked."""

    host: nn.Module
    judged: tuple[Any, ...]
    figure: float
    times: list[int]
    guide: sg.SilentGuide | None
    start: list[Tensor]

    @property
    def weights(self) -> list[Tensor]:
        return [p for name, p in self.host.named_parameters() if not name.startswith("guide.")]


EXAMPLES: dict[str, Any] = {
    "pythae": pythae_vae, "Pyro": pyro_svi, "diffusers": diffusers_autoencoder, "transformers": hf_trainer,
    "Lightning": lightning_module,
}  # fmt: skip
TIMES = {
    "pythae": [1, *(epoch for epoch in (1, 2, 3, 4) for _ in range(3))],  # first the trainer's check of a new model
    "Pyro": [epoch for epoch in (1, 2, 3, 4) for _ in range(2)],
    "diffusers": [epoch for epoch in (1, 2, 3, 4) for _ in range(6)],
    "transformers": list(range(1, 13)),
    "Lightning": list(range(1, 13)),
}


def run(name: str, guided: bool, schedule: Callable[..., Any] | None = None) -> Run:
    judged, times, seen = list[tuple[Any, ...]](), list[int](), list[tuple[sg.SilentGuide, list[Tensor]]]()
    judge, forward = comparison.judge, sg.SilentGuide.forward

    def watched(self: sg.SilentGuide, *args: Any, **time: int) -> Tensor:
        seen[:] = seen or [(self, [p.detach().clone() for p in self.parameters()])]
        times.extend(time.values())
        return forward(self, *args, **time)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sg.SilentGuide, "forward", watched)
        patch.setattr(comparison, "judge", lambda *given: judged.append(given) or judge(*given))
        if schedule is not None:
            patch.setattr(sg, "linear_decay", schedule)
        figure = EXAMPLES[name].train(IMAGES, 0, guided, 4)
    return Run(judged[0][0], judged[0][1:], figure, times, *(seen[0] if seen else (None, [])))


@pytest.fixture(scope="module", params=EXAMPLES)
def runs(request: pytest.FixtureRequest) -> tuple[str, Run, Run]:
    return request.param, run(request.param, guided=True), run(request.param, guided=False)


def test_the_guide_learns_and_follows_the_time_of_the_trainer(runs: tuple[str, Run, Run]) -> None:
    name, guided, unguided = runs
    assert (guided.times, unguided.times) == (TIMES[name], [])
    assert guided.start
    assert not any(map(torch.equal, guided.guide.parameters(), guided.start))


def test_one_seed_is_one_start_and_one_order_of_data(runs: tuple[str, Run, Run]) -> None:
    name, guided, unguided = runs
    assert not any(map(torch.equal, guided.weights, unguided.weights))
    if name != "Lightning":  # where the guide draws its weights from the random numbers of the latents
        weightless = run(name, guided=True, schedule=lambda **_: constant(0.0))
        torch.testing.assert_close(weightless.weights, unguided.weights)


def test_the_figure_is_the_elbo_by_its_definition(runs: tuple[str, Run, Run]) -> None:
    """With the seeds of the one evaluation, and the variance 1 / (12 L^2) of dequantization integrated out."""
    if runs[0] == "Lightning":
        pytest.skip("judged as the host of transformers is")
    (name, run, _), share, x = runs, IMAGES.test / 16, (IMAGES.test + 0.5) / 17
    host, noise = run.host, 1 / (12 * 17**2)
    if name == "pythae":
        code = host.encoder(share)
        loc, log_variance = code.embedding, code.log_covariance
    elif name == "Pyro":
        x = torch.rand(30, 64, generator=torch.Generator().manual_seed(mixed(2, 0, 0))) < share.flatten(1)
        loc, log_variance = (host[0](x.float()) * torch.tensor([1.0, 2.0]).repeat_interleave(50)).chunk(2, -1)
    elif name == "diffusers":
        loc, log_variance = host.quant_conv(host.encoder(2 * x - 1)).chunk(2, 1)
    else:
        loc, log_variance = (host.encoder(x.flatten(1)) * torch.tensor([1.0, 2.0]).repeat_interleave(64)).chunk(2, -1)
    torch.manual_seed(mixed(2, 0, 1))
    z = loc + (log_variance / 2).exp() * torch.randn(loc.shape)
    if name == "pythae":
        nll = gaussian_nll((share - host.decoder(z).reconstruction).square(), torch.tensor(0.0))
    elif name == "Pyro":
        nll = (softplus(host[1](z)) - x * host[1](z)).sum(-1)
    elif name == "diffusers":
        mean = (host.decoder(host.post_quant_conv(z)) + 1) / 2
        nll = gaussian_nll((x - mean).square() + noise, run.judged[1].args[-1])
    else:
        mean, log_deviation = host.decoder(z).chunk(2, -1)
        nll = gaussian_nll((x.flatten(1) - mean).square() + noise, 2 * log_deviation)
    elbo = -float((nll + standard_kld(loc, log_variance)).detach().mean())
    in_bits = name in ("diffusers", "transformers")
    assert run.figure == pytest.approx(math.log2(17) - elbo / 64 / math.log(2) if in_bits else elbo, rel=1e-5)


def test_the_likelihood_is_that_of_pythaes_own_loss() -> None:
    """Of the latents that pythae drew: its loss is the mean negative ELBO, but for a constant."""
    for loss in ("mse", "bce"):
        config = VAEConfig(input_dim=(1, 8, 8), reconstruction_loss=loss)
        host, x = VAE(config).eval(), IMAGES.train[:BATCH] / 16
        own = host({"data": x})
        kld = kl_divergence(pythae_vae.latent(host, x), Normal(0.0, 1.0)).sum(-1)
        elbo = pythae_vae.likelihood(host, own.z).log_prob(x) - kld
        torch.testing.assert_close(-elbo.mean(), own.loss + pythae_vae.constant(config))


def test_diffusers_guide_starts_as_ppca_of_patches() -> None:
    guide = sg.SilentGuide(16, (1, 8, 8), constant(1.0), likelihood=sg.likelihoods.Normal(()))
    x = IMAGES.train[:64] / 17
    diffusers_autoencoder.start_from_patches(guide, x)
    centered = (x - x.mean(0)).double().numpy()
    corners = [(0, 0), (0, 4), (4, 0), (4, 4)]
    patches = np.concatenate([centered[:, 0, i : i + 4, j : j + 4].reshape(len(x), 16) for i, j in corners])
    _, deviations, directions = np.linalg.svd(patches, full_matrices=False)
    variances = deviations**2 / len(patches)
    noise = variances[4:].mean()
    truth = directions[:4].T @ np.diag(variances[:4] - noise) @ directions[:4]  # W W^T of one patch
    W = guide.decoder.affine.weight.detach().unflatten(0, (1, 8, 8)).unflatten(-1, (4, 2, 2))[0]
    for i, j in corners:
        own = W[i : i + 4, j : j + 4, :, i // 4, j // 4].flatten(0, 1).double().numpy()
        np.testing.assert_allclose(own @ own.T, truth, atol=1e-6)
        assert float(W[i : i + 4, j : j + 4].abs().sum()) == pytest.approx(float(np.abs(own).sum()))  # no other latent
    assert float(guide.decoder.likelihood.scale.detach()) ** 2 == pytest.approx(noise)
    torch.testing.assert_close(guide.decoder.affine.bias.detach(), x.mean(0).flatten())


def test_what_pythaes_trainer_saved_loads_with_and_without_the_guide(tmp_path: Path) -> None:
    model, x = of_pythae(0.5).guided, DatasetOutput(data=IMAGES.train[:BATCH] / 16)
    data = [BaseDataset(split / 16, torch.zeros(len(split))) for split in (IMAGES.train, IMAGES.valid)]
    trainer = BaseTrainer(model, *data, BaseTrainerConfig(output_dir=str(tmp_path), num_epochs=1))
    trainer.train()
    saved = Path(trainer.training_dir) / "final_model"
    guided = SilentVAE.load_from_folder(saved)
    assert all(torch.equal(v, guided.state_dict()[k]) for k, v in model.state_dict().items())
    loss, plain = seeded(lambda: guided.eval()(x).loss), VAE(model.model_config)
    weights = torch.load(saved / "model.pt")["model_state_dict"]
    plain.load_state_dict({k: v for k, v in weights.items() if not k.startswith("guide.")})
    host = pythae_vae.without_guide(guided, tmp_path / "host")
    for other in (plain, host, AutoModel.load_from_folder(tmp_path / "host")):
        assert type(other) is VAE
        assert torch.equal(seeded(lambda other=other: other.eval()(x).loss), loss)


def test_diffusers_saves_and_loads_a_model_of_its_own(tmp_path: Path) -> None:
    vae, x = diffusers_autoencoder.fit(IMAGES, seed=0, guided=True, epochs=1)[0], IMAGES.test / 17
    vae.save_pretrained(tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    assert set(load_file(weights)) == set(diffusers_autoencoder.build(IMAGES).state_dict())
    loaded, found = AutoencoderKL.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values())
    with torch.no_grad():
        assert torch.equal(loaded(x).sample, vae(x).sample)


def test_what_transformers_saved_with_a_guide_loads_without_it(tmp_path: Path) -> None:
    model, image = vae_of_hf(constant(0.5)), IMAGES.train[:BATCH]
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("guide.") for name in weights)
    dropped = hf_trainer.VAE(model.config)
    dropped.load_state_dict({k: v for k, v in weights.items() if not k.startswith("guide.")})
    for host in (dropped, hf_trainer.VAE.from_pretrained(tmp_path)):
        assert host.guide is None
        ours, theirs = (seeded(lambda each=each: each.eval()(image)["loss"]) for each in (host, model))
        assert torch.equal(ours, theirs)


def trainer_of(model: hf_trainer.VAE, folder: Path, *callbacks: hf.TrainerCallback) -> hf.Trainer:
    settings = hf.TrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=32, gradient_accumulation_steps=2, save_steps=4,
        report_to="none", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    data, optimizer = [{"image": image} for image in IMAGES.train[:160]], torch.optim.Adam(model.parameters(), lr=1e-3)
    return hf.Trainer(model, settings, train_dataset=data, optimizers=(optimizer, None), callbacks=list(callbacks))


def test_the_schedule_follows_the_steps_of_transformers_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    asked: list[float] = []

    def schedule(step: float) -> float:
        asked.append(step)
        return linear_decay(0.2)(step)

    torch.manual_seed(0)
    whole = vae_of_hf(schedule)
    trainer_of(whole, tmp_path, hf_trainer.TellStep()).train()
    assert asked == [1, 1, 2, 2, 3, 4, 4, 5, 5, 6]  # five batches an epoch, two to a step
    asked.clear()
    resumed = vae_of_hf(schedule)
    trainer_of(resumed, tmp_path, hf_trainer.TellStep()).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert asked == [5, 5, 6]
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
    untold = trainer_of(vae_of_hf(constant(0.5)), tmp_path)
    refused(sg.DomainError, "counted from 1", untold.train)  # nobody tells the step


@refusals
def test_other_sites_of_pyro_are_named() -> Refusals:
    pair = Pair()

    def nothing(data: Tensor) -> None:
        pass

    def and_another(data: Tensor) -> None:
        pair.model(data)
        pyro.sample("another", dist.Normal(0.0, 1.0))

    def only_latent(data: Tensor) -> None:
        pyro.sample("code", dist.Normal(torch.zeros(BATCH, 3), 1.0).to_event(1))

    def discrete(data: Tensor) -> None:
        pyro.sample("code", dist.Bernoulli(torch.full((BATCH, 3), 0.5)).to_event(1))

    return {
        name: (sg.DomainError, message, partial(pair.silent, model, guide, pair.x))
        for name, message, model, guide in (
            ("not in the guide", "'code', but the guide samples nothing", pair.model, nothing),
            ("two in the model", "'code', but the model samples code, another", and_another, pair.guide),
            ("nothing observed", "'image', but the model observes nothing", only_latent, pair.guide),
            ("no reparameterization", "'code' is not reparameterized", pair.model, discrete),
        )
    }
