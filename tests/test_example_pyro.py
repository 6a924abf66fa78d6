"""SilentELBO: between the linear decoder's closed form and Pyro's own loss, and what it refuses."""

import math
from collections.abc import Callable, Iterator

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.optim import Adam
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

import pyro_svi
import silentgrad as sg
from pyro_svi import SilentELBO
from silentgrad.lab.data import Levels, load_images, mixed
from silentgrad.schedules import constant, linear_decay

pytestmark = pytest.mark.filterwarnings("ignore:the guide starts at random")
BATCH, LATENTS, PIXELS, VARIANCE = 16, 3, 20, 0.3


class Pair:
    """Somebody's model and guide; sites and names are theirs."""

    def __init__(self, subsample: int | None = None) -> None:
        self.encoder, self.decoder = nn.Linear(PIXELS, 2 * LATENTS), nn.Linear(LATENTS, PIXELS)
        self.subsample = subsample

    def guide(self, data: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", len(data), subsample_size=self.subsample) as rows:
            loc, log_scale = self.encoder(data[rows]).chunk(2, dim=-1)
            pyro.sample("code", dist.Normal(loc, log_scale.exp()).to_event(1))

    def model(self, data: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(data), subsample_size=self.subsample) as rows:
            code = pyro.sample("code", dist.Normal(torch.full((LATENTS,), 0.2), 1.5).to_event(1))
            pyro.sample("image", dist.Normal(self.decoder(code), 0.8).to_event(1), obs=data[rows])

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.encoder.parameters(), *self.decoder.parameters()]


@pytest.fixture(autouse=True)
def pair() -> Iterator[Pair]:
    pyro.clear_param_store()
    torch.manual_seed(0)
    yield Pair()
    pyro.clear_param_store()


@pytest.fixture
def x() -> Tensor:
    return torch.rand(BATCH, PIXELS, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def images() -> Levels:
    digits = load_images("digits")
    return Levels(digits.train[:256], digits.valid, digits.test[:40], "digits", levels=digits.levels)


def silent(weight: float) -> SilentELBO:
    torch.manual_seed(2)
    return SilentELBO(sg.SilentGuide(LATENTS, PIXELS, constant(weight), variance=VARIANCE), "code", "image")


def value(loss: Callable[..., Tensor], pair: Pair, x: Tensor, seed: int = 3) -> Tensor:
    pyro.set_rng_seed(seed)
    return loss(pair.model, pair.guide, x)


def weighted(pair: Pair, how: str) -> Pair:
    handlers: dict[str, Callable[[Callable], Callable]] = {
        "as it is": lambda f: f,
        "scale": lambda f: poutine.scale(f, 0.25),
        "mask": lambda f: poutine.mask(f, torch.arange(BATCH) % 3 > 0),
        "subsample": lambda f: f,
    }
    pair.subsample = BATCH // 2 if how == "subsample" else None
    pair.model, pair.guide = handlers[how](pair.model), handlers[how](pair.guide)
    return pair


@pytest.mark.parametrize("how", ["as it is", "scale", "mask", "subsample"])
def test_at_weight_zero_it_is_pyros_own_loss(how: str, pair: Pair, x: Tensor) -> None:
    pair = weighted(pair, how)
    ours, theirs = value(silent(0.0), pair, x), value(TraceMeanField_ELBO().differentiable_loss, pair, x)
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(loss, pair.parameters) for loss in (ours, theirs))
    torch.testing.assert_close(*gradients)


def by_hand(pair: Pair, guide: sg.SilentGuide, x: Tensor) -> Tensor:
    """Of each example: E|x - Wz - b|^2 / 2v and its constant, and the divergence of N(m, s) from N(0.2, 1.5)."""
    (m, log_s), W, b = pair.encoder(x).chunk(2, dim=-1), guide.decoder.affine.weight, guide.decoder.affine.bias
    s2 = log_s.mul(2).exp()
    squares = (x - m @ W.T - b).square().sum(-1) + (s2 * W.square().sum(0)).sum(-1)
    nll = squares / (2 * VARIANCE) + PIXELS / 2 * math.log(2 * math.pi * VARIANCE)
    return nll + (math.log(1.5) - log_s + (s2 + (m - 0.2).square()) / (2 * 1.5**2) - 0.5).sum(-1)


def test_at_weight_one_the_encoders_gradient_is_the_closed_forms(pair: Pair, x: Tensor) -> None:
    loss, encoder = silent(1.0), list(pair.encoder.parameters())
    truth = by_hand(pair, loss.silent_guide, x).sum()
    first, second = (value(loss, pair, x, seed) for seed in (3, 4))
    torch.testing.assert_close(first, truth)
    gradients = [torch.autograd.grad(sampled, encoder, retain_graph=True) for sampled in (first, second, truth)]
    assert all(torch.equal(*pair) for pair in zip(*gradients[:2], strict=True))
    torch.testing.assert_close(gradients[0], gradients[2])


def test_masks_and_scales_weigh_the_closed_form_too(pair: Pair, x: Tensor) -> None:
    loss, truth = silent(1.0), by_hand(pair, silent(1.0).silent_guide, x)
    torch.testing.assert_close(value(loss, weighted(pair, "scale"), x), 0.25 * truth.sum())
    torch.testing.assert_close(value(loss, weighted(pair, "mask"), x), 0.25 * truth[torch.arange(BATCH) % 3 > 0].sum())


def test_in_between_the_losses_are_weighted(pair: Pair, x: Tensor) -> None:
    one, zero, between = (value(silent(w), pair, x) for w in (1.0, 0.0, 0.3))
    torch.testing.assert_close(between, 0.3 * one + 0.7 * zero)
    loss = SilentELBO(sg.SilentGuide(LATENTS, PIXELS, linear_decay(0.35), variance=VARIANCE), "code", "image")
    loss.silent_guide.load_state_dict(silent(1.0).silent_guide.state_dict())
    loss.epoch = 2
    torch.testing.assert_close(value(loss, pair, x), between)


def test_svi_trains_the_linear_decoder_beside_the_pair(pair: Pair, x: Tensor) -> None:
    loss = silent(0.5)
    modules = loss.silent_guide, pair.encoder, pair.decoder
    before = [p.clone() for module in modules for p in module.parameters()]
    svi = SVI(pair.model, pair.guide, Adam({"lr": 1e-2}), loss=loss)
    losses = [svi.step(x) for _ in range(100)]
    after = [p for module in modules for p in module.parameters()]
    assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert sum(losses[-10:]) < sum(losses[:10])
    with torch.no_grad():
        assert by_hand(pair, loss.silent_guide, x).mean() < by_hand(pair, silent(0.5).silent_guide, x).mean()
    assert svi.evaluate_loss(x) == pytest.approx(losses[-1], rel=0.2)


def other_sites() -> dict[str, tuple[str, Callable[[Tensor], None], Callable[[Tensor], None]]]:
    pair = Pair()

    def nothing(data: Tensor) -> None:
        pass

    def and_another(data: Tensor) -> None:
        pair.model(data)
        pyro.sample("another", dist.Normal(0.0, 1.0))

    def only_latent(data: Tensor) -> None:
        pyro.sample("code", dist.Normal(torch.zeros(BATCH, LATENTS), 1.0).to_event(1))

    def discrete(data: Tensor) -> None:
        pyro.sample("code", dist.Bernoulli(torch.full((BATCH, LATENTS), 0.5)).to_event(1))

    return {
        "not in the guide": ("'code', but the guide samples nothing", pair.model, nothing),
        "two in the model": ("'code', but the model samples code, another", and_another, pair.guide),
        "nothing observed": ("'image', but the model observes nothing", only_latent, pair.guide),
        "no reparameterization": ("'code' is not reparameterized", pair.model, discrete),
    }


@pytest.mark.parametrize("case", other_sites())
def test_other_sites_are_named(case: str, x: Tensor) -> None:
    message, model, guide = other_sites()[case]
    with pytest.raises(sg.DomainError, match=message):
        silent(0.5)(model, guide, x)


def test_figure_is_the_elbo_of_the_one_evaluation(images: Levels) -> None:
    """From its definition, with the seeds that the evaluation gives to the bits and the latents of its first batch."""
    figure = pyro_svi.train(images, seed=0, guided=True, epochs=8)
    store, share = pyro.get_param_store(), images.test.flatten(1) / 16
    x = (torch.rand(share.shape, generator=torch.Generator().manual_seed(mixed(2, 0, 0))) < share).float()

    def layers(name: str, t: Tensor) -> Tensor:
        (W0, b0), (W2, b2) = ([store[f"{name}$$${i}.{part}"] for part in ("weight", "bias")] for i in (0, 2))
        return linear(softplus(linear(t, W0, b0)), W2, b2)

    m, log_s = layers("encoder", x).chunk(2, dim=-1)
    torch.manual_seed(mixed(2, 0, 1))
    logits = layers("decoder", m + log_s.exp() * torch.randn(m.shape))
    log_p = (x * logits - softplus(logits)).sum(-1)
    elbo = log_p - 0.5 * (m.square() + (2 * log_s).exp() - 1 - 2 * log_s).sum(-1)
    assert figure == pytest.approx(float(elbo.detach().mean()), rel=1e-5)


def test_training_follows_the_schedule_from_one_start(images: Levels, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int | None] = []
    forward = sg.SilentGuide.forward

    def watched(self: sg.SilentGuide, *args: object, epoch: int | None = None) -> Tensor:
        epochs.append(epoch)
        return forward(self, *args, epoch=epoch)

    monkeypatch.setattr(sg.SilentGuide, "forward", watched)
    guided = pyro_svi.train(images, seed=0, guided=True, epochs=8)
    assert epochs == [epoch for epoch in range(1, 9) for _ in range(2)]
    assert pyro_svi.train(images, seed=0, guided=True, epochs=8) == guided  # no parameter outlives its run
    assert pyro_svi.train(images, seed=0, guided=False, epochs=8) != guided
    monkeypatch.setattr(sg, "linear_decay", lambda epochs: constant(0.0))
    runs = [pyro_svi.train(images, seed=0, guided=way, epochs=4) for way in (True, False)]
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)
