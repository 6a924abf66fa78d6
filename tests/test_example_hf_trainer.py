"""The guide under the Trainer of transformers: its steps, its optimizer, its checkpoints and its files."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

import hf_trainer
import silentgrad as sg
from hf_trainer import VAE, TellStep, VAEConfig
from silentgrad.lab.data import Levels, load_images, mixed
from silentgrad.schedules import Schedule, constant, linear_decay

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning:torch.utils.data"),
    pytest.mark.filterwarnings("ignore:the guide starts at random"),
]
LATENTS = 2


@pytest.fixture(scope="module")
def images() -> Levels:
    digits = load_images("digits")
    return dataclasses.replace(digits, train=digits.train[:160], test=digits.test[:30])


@pytest.fixture
def image(images: Levels, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """A batch whose noise is fixed, so that the sample of z is all that is random."""
    monkeypatch.setattr(hf_trainer, "dequantize", lambda image, levels: (image + 0.5) / levels)
    return images.train[:32]


def vae(schedule: Schedule | None = None) -> VAE:
    torch.manual_seed(0)
    model = VAE(VAEConfig(pixels=64, levels=17, latents=LATENTS, hidden=16))
    if schedule is not None:
        model.guide = sg.SilentGuide(LATENTS, 64, schedule, link="exp")
        torch.nn.init.normal_(model.guide.decoder.precision_affine.weight, std=0.1)
    return model


def loss(model: VAE, image: Tensor, seed: int = 1) -> Tensor:
    model.step = 1
    torch.manual_seed(seed)
    return model(image)["loss"]


def gradients(value: Tensor, model: VAE) -> list[Tensor]:
    host = [*model.encoder.parameters(), *model.decoder.parameters()]
    return list(torch.autograd.grad(value, host, retain_graph=True, materialize_grads=True))


def silent_loss(model: VAE, x: Tensor) -> Tensor:
    """The linear decoder's loss by quadrature over the two latents, and the KL divergence."""
    loc, log_scale = model.encoder(x).chunk(2, dim=-1)
    u, g = model.guide.decoder.affine, model.guide.decoder.precision_affine
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)
    rule = list(zip(nodes, weights / weights.sum(), strict=True))
    nll = torch.zeros(len(x))
    for (s, v), (t, w) in itertools.product(rule, rule):
        z = loc + log_scale.exp() * torch.tensor([s, t], dtype=torch.float32)
        nll = nll - v * w * Independent(Normal(u(z), (-g(z) / 2).exp()), 1).log_prob(x)
    kld = (loc.square() + (2 * log_scale).exp() - 2 * log_scale - 1).sum(-1) / 2
    return (nll + kld).mean()


def test_full_weight_gives_the_encoder_the_gradient_of_the_closed_form(image: Tensor) -> None:
    model = vae(constant(1.0))
    truth, found = silent_loss(model, (image.flatten(1) + 0.5) / 17), loss(model, image)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-4)
    exact = gradients(found, model)
    for ours, theirs in zip(exact, gradients(truth, model), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    again = gradients(loss(model, image, seed=2), model)
    assert all(torch.equal(a, b) for a, b in zip(exact, again, strict=True))


@pytest.mark.parametrize(("weight", "training"), [(0.0, True), (1.0, False)])
def test_without_weight_or_training_it_is_the_host_bit_for_bit(weight: float, training: bool, image: Tensor) -> None:
    model = vae(constant(weight)).train(training)
    ours = loss(model, image)
    model.guide = None
    theirs = loss(model, image)
    assert torch.equal(ours, theirs)
    assert all(torch.equal(a, b) for a, b in zip(gradients(ours, model), gradients(theirs, model), strict=True))


def trainer_of(model: VAE, images: Levels, folder: Path, *callbacks: hf.TrainerCallback, **options: Any) -> hf.Trainer:
    settings = hf.TrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=32, gradient_accumulation_steps=2, save_steps=4,
        report_to="none", logging_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    data, optimizer = [{"image": image} for image in images.train], torch.optim.Adam(model.parameters(), lr=1e-3)
    return hf.Trainer(model, settings, train_dataset=data, optimizers=(optimizer, None), callbacks=list(callbacks))


def test_the_schedule_follows_the_steps_of_the_trainer_and_goes_on_from_a_checkpoint(
    images: Levels, tmp_path: Path
) -> None:
    asked: list[int] = []

    def schedule(step: int) -> float:
        asked.append(step)
        return linear_decay(0.2)(step)

    whole = vae(schedule)
    trainer_of(whole, images, tmp_path, TellStep()).train()
    assert asked == [1, 1, 2, 2, 3, 4, 4, 5, 5, 6]  # five batches an epoch, two to a step
    asked.clear()
    resumed = vae(schedule)
    trainer_of(resumed, images, tmp_path, TellStep()).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert asked == [5, 5, 6]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_guide_that_nobody_tells_the_step_is_an_error(images: Levels, tmp_path: Path) -> None:
    with pytest.raises(sg.DomainError, match="counted from 1"):
        trainer_of(vae(constant(0.5)), images, tmp_path).train()


def test_what_was_saved_with_a_guide_loads_without_it(image: Tensor, tmp_path: Path) -> None:
    model = vae(constant(0.5))
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("guide.") for name in weights)
    dropped = VAE(model.config)
    dropped.load_state_dict({k: v for k, v in weights.items() if not k.startswith("guide.")})
    for host in (dropped, VAE.from_pretrained(tmp_path)):
        assert host.guide is None
        assert torch.equal(loss(host.eval(), image), loss(model.eval(), image))


class Run(NamedTuple):
    """What `train` did: its trainer, the weights before, and the figure."""

    trainer: hf.Trainer
    before: dict[str, Tensor]
    figure: float

    @property
    def host(self) -> list[Tensor]:
        return [*self.trainer.model.encoder.parameters(), *self.trainer.model.decoder.parameters()]


def run(images: Levels, guided: bool) -> Run:
    """Calls `train`."""
    kept: dict[str, Any] = {}

    class Trainer(hf.Trainer):
        def train(self) -> None:
            kept.update(trainer=self, before={k: v.clone() for k, v in self.model.state_dict().items()})
            super().train()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf, "Trainer", Trainer)
        return Run(figure=hf_trainer.train(images, 0, guided, 4), **kept)


@pytest.fixture(scope="module")
def guided(images: Levels) -> Run:
    return run(images, guided=True)


@pytest.fixture(scope="module")
def unguided(images: Levels) -> Run:
    return run(images, guided=False)


def test_the_guide_learns_at_a_rate_of_its_own(guided: Run) -> None:
    guide = dict(guided.trainer.model.guide.named_parameters(prefix="guide"))
    host, own = guided.trainer.optimizer.param_groups
    assert (host["initial_lr"], own["initial_lr"]) == (1e-3, 5e-3)
    assert {id(p) for p in own["params"]} == {id(p) for p in guide.values()}
    assert {id(p) for p in host["params"]} == {id(p) for p in guided.host}
    assert not any(torch.equal(value, guided.before[name]) for name, value in guide.items())


def test_the_figure_is_the_elbo_in_bits(unguided: Run, images: Levels) -> None:
    """With the noise of dequantization integrated out: its variance, 1 / (12 L^2), adds to the squared residual."""
    model, x = unguided.trainer.model, (images.test.flatten(1) + 0.5) / 17
    loc, log_scale = model.encoder(x).chunk(2, dim=-1)
    q = Normal(loc, log_scale.exp())
    torch.manual_seed(mixed(2, 0, 1))
    mean, log_deviation = model.decoder(loc + q.scale * torch.randn(30, 64)).chunk(2, dim=-1)
    squares = ((x - mean).square() + 1 / (12 * 17**2)) / log_deviation.exp().square()
    log_prob = -squares / 2 - log_deviation - math.log(2 * math.pi) / 2
    nats = log_prob.sum(-1) - kl_divergence(q, Normal(0.0, 1.0)).sum(-1)
    bits = math.log2(17) - nats.mean().item() / 64 / math.log(2)
    assert unguided.figure == pytest.approx(bits, rel=1e-5)


def test_one_seed_is_one_start_and_one_order_of_data(
    guided: Run, unguided: Run, images: Levels, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(torch.equal(a, b) for a, b in zip(guided.host, unguided.host, strict=True))
    monkeypatch.setattr(sg, "linear_decay", lambda steps: constant(0.0))
    weightless = run(images, guided=True)
    assert all(torch.equal(a, b) for a, b in zip(weightless.host, unguided.host, strict=True))
