"""The guide beside a VAE that knows nothing of it: Algorithm 1, what it refuses, how it comes and goes."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from refusals import Refusals, refusals, refused
from silentgrad import likelihoods
from silentgrad.guide import SilentGuide, freeze
from silentgrad.schedules import constant, linear_decay

BATCH, LATENTS, SHAPE = 32, 3, (4, 4)
pytestmark = pytest.mark.filterwarnings("ignore:the guide starts at random")


class Encoder(nn.Sequential):
    def forward(self, x: Tensor) -> td.Normal:
        loc, log_scale = super().forward(x).chunk(2, dim=-1)
        return td.Normal(loc, log_scale.exp())


class Decoder(nn.Sequential):
    def forward(self, z: Tensor) -> td.Independent:
        return td.Independent(td.Normal(super().forward(z), 0.5), 2)


class Host(nn.Module):
    """Somebody's VAE, with a fixed standard deviation of 0.5."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6))
        self.decoder = Decoder(nn.Linear(LATENTS, 8), nn.Tanh(), nn.Linear(8, 16), nn.Unflatten(1, SHAPE))

    def forward(self, x: Tensor) -> tuple[td.Normal, Tensor]:
        q = self.encoder(x)
        return q, -self.decoder(q.rsample()).log_prob(x)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(BATCH, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def host() -> Host:
    torch.manual_seed(0)
    return Host()


def gradients(loss: Tensor, *modules: nn.Module) -> list[Tensor | None]:
    parameters = [p for module in modules for p in module.parameters()]
    return list(torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True))


def test_is_the_algorithm_of_the_guided_model(host: Host, x: Tensor) -> None:
    guide, schedule = SilentGuide(LATENTS, SHAPE, linear_decay(0.1), "mean"), linear_decay(0.1)
    model = sg.GuidedVAE(host.encoder, guide.decoder, host.decoder, estimator=sg.Reparameterized(), schedule=schedule)
    torch.manual_seed(1)
    losses = model(x, epoch=3)
    torch.manual_seed(1)
    q, nll = host(x)
    loss = guide(x, q, nll.mean(), epoch=3) + td.kl_divergence(q, td.Normal(0.0, 1.0)).sum(-1).mean()
    torch.testing.assert_close(loss, losses.total)
    for ours, theirs in zip(gradients(loss, host, guide), gradients(losses.total, host, guide), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gives_back_the_reduction_it_was_given(reduction: str, host: Host, x: Tensor) -> None:
    guide = SilentGuide(LATENTS, SHAPE, constant(0.3), reduction)
    q, nll = host(x)
    truth = -0.3 * guide.decoder.expected_log_prob(x, q) + 0.7 * nll
    reduce: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda t: t, "mean": torch.mean, "sum": torch.sum}
    torch.testing.assert_close(guide(x, q, reduce[reduction](nll), epoch=1), reduce[reduction](truth))


def test_costs_nothing_once_its_weight_is_zero(host: Host, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = SilentGuide(LATENTS, SHAPE, linear_decay(0.25))
    q, nll = host(x)
    monkeypatch.setattr(guide.decoder, "expected_log_prob", None)  # as soon as it is evaluated, that shows
    for epoch in (4, 5, 100):
        assert guide(x, q, nll, epoch=epoch) is nll
    refused(TypeError, "not callable", lambda: guide(x, q, nll, epoch=3))


def test_follows_epochs_or_steps() -> None:
    guide = SilentGuide(LATENTS, SHAPE, linear_decay(0.1))
    assert guide.weight(epoch=3) == guide.weight(step=3) == pytest.approx(0.7)
    assert guide.weight(step=10) == 0
    for said, asked in (("steps", "epoch"), ("epochs", "step")):
        guide = SilentGuide(LATENTS, SHAPE, linear_decay(**{said: 10}))
        assert guide.weight(**{said.removesuffix("s"): 6}) == 0.5
        refused(sg.DomainError, f"the schedule is over {said}", partial(guide.weight, **{asked: 5}))


def test_both_decoders_and_the_encoder_learn_and_nothing_is_drawn(host: Host, x: Tensor) -> None:
    guide, (q, nll) = SilentGuide(LATENTS, SHAPE, constant(0.5)), host(x)
    state = torch.get_rng_state()
    loss = guide(x, q, nll, epoch=1)
    assert torch.equal(loss, guide(x, q, nll, epoch=1))
    assert torch.equal(state, torch.get_rng_state())
    found = gradients(loss.sum(), host, guide)
    assert all(g is not None and g.abs().sum() > 0 for g in found[-3:])  # precision weights start at zero, not stuck
    assert all(g is not None for g in found)


def test_copies_and_pickles() -> None:
    guide = SilentGuide(LATENTS, SHAPE, linear_decay(0.3), likelihood=likelihoods.Laplace(SHAPE))
    for other in (copy.deepcopy(guide), pickle.loads(pickle.dumps(guide))):
        assert other.weight(epoch=2) == guide.weight(epoch=2)
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), guide.parameters(), strict=True))


def test_options_choose_the_linear_decoder() -> None:
    for options, kind in (
        ({}, sg.StandardizedGaussian), ({"link": "linear"}, sg.LinearPrecisionGaussian),
        ({"variance": 0.1}, sg.LinearGaussian), ({"likelihood": likelihoods.Bernoulli()}, sg.LinearLikelihood),
    ):  # fmt: skip
        decoder = SilentGuide(LATENTS, SHAPE, constant(1.0), **options).decoder
        assert (type(decoder), getattr(decoder, "link", "linear")) == (kind, "linear")
        assert float(getattr(decoder, "variance", 0.1)) == pytest.approx(0.1)


def test_freeze_stops_learning_and_batch_statistics(host: Host, x: Tensor) -> None:
    assert freeze(host.encoder) is host.encoder
    before = {k: v.clone() for k, v in host.encoder.state_dict().items()}
    guide = SilentGuide(LATENTS, SHAPE, linear_decay(0.3))
    optimizer = torch.optim.AdamW(nn.ModuleList([host, guide]).parameters(), lr=1e-2)
    for epoch in range(1, 5):
        q, nll = host(x)
        optimizer.zero_grad()
        guide(x, q, nll, epoch=epoch).mean().backward()
        optimizer.step()
    assert all(torch.equal(v, before[k]) for k, v in host.encoder.state_dict().items())
    assert host.decoder.training


@refusals
def test_bad_input_is_named() -> Refusals:
    x, nll = torch.rand(2, *SHAPE), torch.full((2,), 20.0)
    q = td.Normal(torch.zeros(2, 3), torch.ones(2, 3))
    bits, build = td.Bernoulli(torch.full((2, 3), 0.3)), partial(SilentGuide, 3, SHAPE)
    guide, linear = (build(constant(0.5), link=link) for link in (None, "linear"))
    return {
        "no place": (sg.DomainError, "pass epoch= or step=", lambda: guide(x, q, nll)),
        "two places": (sg.DomainError, "pass epoch= or step=", lambda: guide(x, q, nll, epoch=1, step=1)),
        "from zero": (sg.DomainError, "counted from 1", lambda: guide(x, q, nll, epoch=0)),
        "weight": (sg.DomainError, "between 0 and 1", lambda: build(constant(1.5)).weight(epoch=1)),
        "reduction": (sg.DomainError, "none, mean, sum", lambda: build(constant(1.0), "max")),
        "two decoders": (sg.DomainError, "exclude", lambda: build(constant(1.0), link="exp", variance=0.1)),
        "an approximation": (sg.IntractableError, "allow_approximation", lambda: linear(x, bits, nll, epoch=1)),
    }


def test_a_batch_without_examples() -> None:
    """A sum over it is zero; a mean over it is refused."""
    x, q, nll = torch.zeros(0, *SHAPE), td.Normal(torch.zeros(0, LATENTS), 1.0), torch.zeros(0)
    assert SilentGuide(LATENTS, SHAPE, constant(0.5))(x, q, nll, epoch=1).shape == (0,)
    assert SilentGuide(LATENTS, SHAPE, constant(0.5), "sum")(x, q, nll.sum(), epoch=1) == 0
    with pytest.raises(sg.ShapeError, match=r"x of shape \(0, 4, 4\) holds no examples: there is no mean"):
        SilentGuide(LATENTS, SHAPE, constant(0.5), "mean")(x, q, nll.mean(), epoch=1)


@pytest.mark.parametrize("options", [{"link": "exp"}, {"link": "linear", "allow_approximation": True}])
def test_an_approximation_is_taken_if_it_is_allowed_or_there_is_none(options: dict[str, Any], x: Tensor) -> None:
    q, nll = td.Bernoulli(torch.full((BATCH, LATENTS), 0.3)), torch.full((BATCH,), 20.0)
    assert SilentGuide(LATENTS, SHAPE, constant(0.5), **options)(x, q, nll, epoch=1).isfinite().all()
