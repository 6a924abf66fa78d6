"""The check-up names what is wrong, calls nothing healthy wrong, changes nothing, and its numbers are right."""

import copy
import html
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyro
import pytest
import torch
from pythae.models import VAE, BetaVAE, BetaVAEConfig, VAEConfig
from torch import Tensor, nn
from torch import distributions as td

import sick
import silentgrad as sg
from diffusers_autoencoder import build
from oracles import textbook
from refusals import refused
from runs import Cli, train
from silentgrad.analysis import amortization_gap, decoder_variance, implied_kl_weight, measurable, mutual_information
from silentgrad.checkup.checks import CHECKS
from silentgrad.checkup.measurements import Measurements


@pytest.mark.parametrize("name", [*sick.SICK, *sick.HEALTHY])
def test_the_disease_is_named_first_and_nothing_healthy_is_called_wrong(name: str) -> None:
    case = {**sick.SICK, **sick.HEALTHY}[name](0)
    found = sg.check_up(case.model, case.data[:400], test=case.data[400:], examples=100, **case.options)
    if name in sick.HEALTHY:
        assert found.verdict != "wrong", found
        return
    first = found.findings[0]
    assert (first.name, first.verdict) == (case.name, case.verdict), found
    assert case.cause in first.cause
    assert first.change
    if "amortization gap" not in found.skipped:
        assert found["amortization gap"].number >= 0
    if case.name == "weight of the KL divergence":
        (gain,) = [advice.gain for advice in found.advice if "KL divergence of weight 1" in advice.action]
        assert gain == found["amortization gap"].number > 1


# A linear Gaussian VAE, of which everything is known: x = W z + b + noise, with orthogonal columns of W

SCALES = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
NOISE = 0.3


class Linear(nn.Module):
    """A decoder, and the encoder that is best at a weight beta of the KL divergence: exact at the variance beta s^2."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        basis = torch.linalg.qr(torch.randn(6, 3, generator=g, dtype=torch.float64)).Q
        self.W = nn.Parameter(basis * SCALES)
        self.b = nn.Parameter(torch.randn(6, generator=g, dtype=torch.float64))
        total = SCALES.square() + beta * NOISE**2
        self.gain = nn.Parameter((self.W / total).detach())
        self.deviation = nn.Parameter((beta * NOISE**2 / total).sqrt())

    def encode(self, x: Tensor) -> td.Distribution:
        return td.Normal((x - self.b) @ self.gain, self.deviation.expand(len(x), 3))

    def decode(self, z: Tensor) -> td.Distribution:
        return td.Normal(z @ self.W.T + self.b, NOISE)

    def data(self) -> Tensor:
        g = torch.Generator().manual_seed(1)
        z, noise = (torch.randn(4000, n, generator=g, dtype=torch.float64) for n in (3, 6))
        return (z @ self.W.T + self.b + NOISE * noise).detach()


@torch.no_grad()
def test_figures_of_a_linear_gaussian_model() -> None:
    model = Linear()
    torch.manual_seed(0)
    x = model.data()
    m, q = Measurements(measurable(model, x[:4]), x, x, "training", None, None), model.encode(x)
    by_hand = 0.5 * (q.loc.square() + q.scale.square() - 1) - q.scale.log()
    assert torch.allclose(m.kld_per_latent, by_hand)
    marginal = td.MultivariateNormal(model.b, model.W @ model.W.T + NOISE**2 * torch.eye(6, dtype=torch.float64))
    truth = float(marginal.log_prob(x).mean())
    assert float(m.elbo.mean()) == pytest.approx(truth, abs=0.02)  # the ELBO of the exact posterior is log p(x)
    least, most = mutual_information(q)
    information = 0.5 * math.log(torch.det(torch.eye(3) + torch.diag(SCALES.float() ** 2) / NOISE**2))
    assert information == pytest.approx(float((0.5 * (1 + SCALES.square() / NOISE**2).log()).sum()), abs=1e-5)
    assert least == pytest.approx(information, abs=0.1)
    assert most == pytest.approx(information, abs=0.02)
    squares = CHECKS["variance of the likelihood"](m).number  # z of the exact posterior: x - W z has variance s^2
    assert squares.value == pytest.approx(1.0, abs=0.02)
    assert m.of_use == 3
    assert [float(bound.mean()) for bound in m.linear_models.values()] == pytest.approx([truth, truth], abs=0.05)


@pytest.mark.parametrize("beta", [0.2, 1.0, 5.0])
@torch.no_grad()
def test_weight_of_the_kl_divergence_and_amortization_gap(beta: float) -> None:
    """At the weight 1 the optimal q is the exact posterior, from which the others have a KL divergence."""
    torch.manual_seed(0)
    model, exact = Linear(beta), Linear()
    x = model.data()[:2000]
    m = measurable(model, x[:4])
    weight = implied_kl_weight(m, x)
    assert weight.value == pytest.approx(beta, abs=4 * weight.error + 0.02 * beta)
    assert weight.error < 0.1 * beta
    gap, expected = amortization_gap(m, x[:200]), td.kl_divergence(model.encode(x[:200]), exact.encode(x[:200])).sum(1)
    assert gap.min() >= 0
    assert float(gap.mean()) == pytest.approx(float(expected.mean()), rel=0.05, abs=0.01)


REDUCTIONS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], float, float, str]] = {
    "mean": (lambda nll, kld, _: nll.sum(1).mean() + kld.sum(1).mean(), 1.0, 1.0, "have one unit"),
    "sum": (lambda nll, kld, _: nll.sum() + kld.sum(), 1.0, 2.0, "have one unit"),
    "outputs": (lambda nll, kld, _: nll.mean() + kld.sum(1).mean(), 6.0, 1.0, "mean over the 6 outputs"),
    "latents": (lambda nll, kld, _: nll.sum(1).mean() + kld.mean(), 1 / 3, 1.0, "mean over the 3 latents"),
    "both": (
        lambda nll, kld, _: nll.mean() + kld.mean(),
        2.0,
        1.0,
        "6 outputs, the KL divergence one over the 3 latents",
    ),
    "squares": (lambda _, kld, e: e.sum(1).mean() + kld.sum(1).mean(), 1 / (2 * NOISE**2), 1.0, ""),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_check_loss(reduction: str) -> None:
    model, (reduced, beta, growth, cause) = Linear(), REDUCTIONS[reduction]

    def loss(x: Tensor) -> dict[str, Tensor]:
        q = model.encode(x)
        p = model.decode(q.rsample())
        return {"loss": reduced(-p.log_prob(x), td.kl_divergence(q, sick.STANDARD), (x - p.mean).square())}

    found = sg.check_loss(model, model.data(), loss)
    assert found.beta.value == pytest.approx(beta, rel=1e-3)
    assert cause in found.cause
    assert found.reconstruction_growth == pytest.approx(growth, rel=1e-3)
    refused(sg.DomainError, "loss takes a batch alone", lambda: sg.check_loss(model, model.data(), lambda out, x: x))


def test_noise_of_the_gradients() -> None:
    """The decoder's from every gradient of a hundred draws; the encoder's from the same model written by hand."""
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(6, 4), nn.Linear(2, 6)
    data, parameters, grads = torch.randn(64, 6), list(decoder.parameters()), list[Tensor]()
    model = (lambda x: encoder(x).chunk(2, -1)), (lambda z: td.Normal(decoder(z), 1.0))
    for x in data.split(8):
        mu, logvar = encoder(x).detach().chunk(2, -1)
        for z in td.Normal(mu, (logvar / 2).exp()).sample((100,)):
            nll = -td.Normal(decoder(z), 1.0).log_prob(x).sum(1).mean()
            grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(nll, parameters)]))
    snr = textbook(torch.stack(grads).unflatten(0, (8, 100)).double())["snr"]
    torch.manual_seed(0)
    subject, found = measurable(model, data[:4]), sg.check_up(model, data)["gradient noise"]
    assert decoder_variance(subject, data.split(8), 50).snr == pytest.approx(snr, rel=0.1)
    plain = SimpleNamespace(encoder=subject.encoder, decoder=lambda z: td.Independent(td.Normal(decoder(z), 1.0), 1))
    own = sg.gradient_variance(plain, data.split(8), 100, [sg.Reparameterized()], "every")["Reparameterized"]
    assert found.number == pytest.approx(own.est_percent, abs=4 * found.error + 2)


# Hosts that nobody here wrote: what is measured is what their own code says


class Pyro(nn.Module):
    """A model and a guide, with a prior that is not standard."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 4), nn.Linear(2, 64)

    def q(self, x: Tensor) -> td.Distribution:
        loc, log_scale = self.encoder(x.flatten(1)).chunk(2, -1)
        return pyro.distributions.Normal(loc, log_scale.exp())

    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("code", self.q(x).to_event(1))

    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            code = pyro.sample("code", pyro.distributions.Normal(torch.full((2,), 0.2), 1.5).to_event(1))
            pyro.sample("image", pyro.distributions.Normal(self.decoder(code), 0.8).to_event(1), obs=x.flatten(1))


def kld_by_pythae(model: VAE, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return model({"data": x}).reg_loss


BETA = partial(BetaVAEConfig, beta=4.0, reconstruction_loss="bce")
HOSTS: dict[str, tuple[Callable[[], Any], float | None, Callable[[Any, Tensor], Tensor]]] = {
    "pythae's VAE": (lambda: VAE(VAEConfig(input_dim=(1, 8, 8), latent_dim=3)), 1.0, kld_by_pythae),
    "pythae's BetaVAE": (lambda: BetaVAE(BETA(input_dim=(1, 8, 8), latent_dim=3)), 4.0, kld_by_pythae),
    "diffusers": (lambda: build(SimpleNamespace(event_shape=(1, 8, 8))), None,
                  lambda model, x: model.encode(x).latent_dist.kl().mean()),
    "Pyro": (Pyro, None, lambda model, x: td.kl_divergence(model.q(x), td.Normal(0.2, 1.5)).sum(1).mean()),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTS)
def test_hosts_of_others(name: str) -> None:
    build, beta, kld = HOSTS[name]
    torch.manual_seed(0)
    model, x = build(), sick.images(0)[:16].unflatten(1, (1, 8, 8))
    x = x.round() if beta == 4 else x
    found = sg.check_up(model, x, examples=8)
    with torch.no_grad():
        assert found.measurements.kld.mean() == pytest.approx(float(kld(model.eval(), x[:8])), rel=1e-4)
    assert found["training"].verdict != "fine"  # none is trained
    assert math.isfinite(found["gradient noise"].number)
    if beta is not None:
        assert found["weight of the KL divergence"].number == pytest.approx(beta, rel=1e-3)


def test_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    host, data = nn.Module(), torch.randn(64, 6)
    host.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    host.body = nn.Linear(2, 6)
    host.encode, host.decode = (lambda x: host.encoder(x).chunk(2, -1)), (lambda z: td.Normal(host.body(z), 1.0))
    host.encoder[2].eval()
    host.body.weight.grad = torch.ones(6, 2)
    before, state = copy.deepcopy(host.state_dict()), torch.get_rng_state()
    reports, functions = [], (lambda x: host.encode(x), lambda z: host.decode(z))
    for validated, model in ((True, host), (False, functions)):  # a first `torch.compile` switches it off
        monkeypatch.setattr(td.Distribution, "_validate_args", validated)
        reports.append(sg.check_up(model, data, loss=lambda x: host.encode(x)[0].mean(), examples=32).to_dict())
        assert td.Distribution._validate_args is validated
    assert reports[0] == reports[1] | {"model": "Module"}
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in host.state_dict().items())
    assert [m.training for m in host.modules()] == [m is not host.encoder[2] for m in host.modules()]
    assert torch.equal(host.body.weight.grad, torch.ones(6, 2))
    assert all(p.grad is None for p in host.encoder.parameters())


def test_forms_and_that_a_weight_that_was_measured_comes_before_graver_findings(tmp_path: Path) -> None:
    case = sick.SICK["untrained"](0)

    def loss(x: Tensor) -> Tensor:
        nll, kld = case.model.terms(x)
        return nll.sum(1).mean() + kld.mean()

    found = sg.check_up(case.model, case.data[:100], loss=loss)
    assert max(map(len, str(found).splitlines())) <= 80
    first, second, *_ = json.loads(json.dumps(found.to_dict()))["findings"]
    assert (first["name"], second["name"]) == ("weight of the KL divergence", "training")
    assert (first["verdict"], second["verdict"], found.verdict) == ("suspicious", "wrong", "wrong")
    page = found.to_html(tmp_path / "page.html").read_text()
    assert page.count("<img") == 5
    assert found._repr_html_() == f"<pre>{html.escape(str(found))}</pre>"
    refused(KeyError, "overfitting", lambda: found["overfitting"])


LINEAR = nn.Linear(4, 4)
HOST = (lambda x: LINEAR(x).chunk(2, -1)), (lambda z: td.Normal(z.repeat(1, 2), 1.0))
DATA = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
BAD = {
    "a tensor": ((LINEAR, LINEAR), DATA, "expected a torch.distributions object or"),
    "a mean": ((HOST[0], lambda z: z.repeat(1, 2)), DATA, "no p.x.z.: say of what"),
    "no examples": ((LINEAR, LINEAR), DATA[:0], "not examples"),
    "one number each": ((LINEAR, LINEAR), DATA[:, 0], "not examples"),
    "nothing": (object(), DATA, "neither encoder and decoder"),
    "one function": ((LINEAR,), DATA, "pair of functions"),
    "data of no kind": ((LINEAR, LINEAR), 3, "a tensor, an array"),
    "other outputs": ((HOST[0], lambda z: td.Normal(z, 1.0)), DATA, "outputs"),
    "no batch": ((lambda x: td.Normal(x.mean(), 1.0), lambda z: td.Normal(z, 1.0)), DATA, "expected .examples"),
}


@pytest.mark.parametrize(("model", "data", "said"), BAD.values(), ids=BAD)
def test_what_it_refuses(model: object, data: object, said: str) -> None:
    refused(sg.SilentgradError, said, lambda: sg.check_up(model, data))


def test_infinity_ends_the_list() -> None:
    data = DATA.clone()
    data[3, 2] = math.nan
    found = sg.check_up(HOST, data)
    assert (found.verdict, len(found.findings)) == ("wrong", 1)
    assert "the data" in found.findings[0].cause


def test_tracker_warns_once_of_each_trouble() -> None:
    track, x = sg.Tracker(), torch.randn(20, 3)

    def q(*means: float) -> td.Distribution:
        return td.Normal(torch.tensor(means).expand(20, 3), 1.0)

    assert track(x, q(1.0, 0.155, 0.1))["active"] == 2  # 0.5, 0.012 and 0.005 nats
    track(x, q(1.0, 0.14, 0.0))  # 0.0098 nats: noise around the threshold is no death
    with pytest.warns(UserWarning, match=r"latents \[1\] have died"):
        track(x, q(1.0, 0.05, 0.0), td.Normal(x, 1.0))
    with pytest.warns(UserWarning, match=r"latents \[0\] have died"):
        track(x, q(0.0, 0.05, 0.0), td.Normal(x, 1.0))
    track(x, q(0.0, 0.0, 0.0))
    with pytest.warns(UserWarning, match="variance runs away"):
        track(x, q(1.0, 1.0, 0.0), td.Normal(x, 1e-6))
    assert [row["active"] for row in track.history] == [2, 1, 1, 0, 0, 2]


def test_callback() -> None:
    module, callback = nn.Module(), sg.CheckUpCallback(every=2)
    module.encode, module.decode = HOST
    for step in range(4):
        callback.on_train_batch_end(None, module, None, (DATA, DATA), step)
    assert len(callback.history) == 2


def test_a_guide_for_a_model() -> None:
    q, x = td.Normal(torch.zeros(5, 3), torch.ones(5, 3)), torch.rand(100, 4, 4)
    guide = sg.SilentGuide.for_model(q, x, total_steps=400)
    assert not guide._starts_at_random()
    assert isinstance(sg.SilentGuide.for_model(q, x.round(), total_epochs=8).decoder, sg.LinearLikelihood)
    assert float(sg.SilentGuide.for_model(q, x, total_steps=4, variance=0.5).decoder.variance) == 0.5
    pixels, law = (255 * x).round(), r"Normal\(mu, \(logvar / 2\).exp\(\)\)"
    refused(sg.DomainError, "divide pixels by 255", lambda: sg.SilentGuide.for_model(q, pixels, total_steps=4))
    refused(sg.ShapeError, 'reduction="mean"', lambda: guide(x[:5], q, torch.tensor(1.0), step=1))
    refused(sg.ShapeError, r"pass data.reshape\(-1, ", lambda: guide.init_from_data(x.unsqueeze(1)))
    refused(sg.DomainError, "pass step=", lambda: guide(x, q, torch.ones(100), epoch=1))
    refused(sg.IntractableError, law, lambda: guide(x, (q.loc, q.scale), torch.ones(5), step=1))


def test_command(tmp_path: Path, cli: Cli) -> None:
    train(tmp_path / "run")
    said = cli("check", tmp_path / "run", "--examples=40")
    assert "bits per dimension" in said
    assert "histogram" in said
    assert (tmp_path / "run" / "check_up.html").read_text().startswith("<!DOCTYPE html>")
