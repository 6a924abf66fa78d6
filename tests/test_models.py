"""The guided VAE: Algorithm 1 against its parts computed by hand, and its figures against exact likelihoods.

Statistical tests repeat one example along the batch under fixed seeds; means agree within 5 standard errors.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from members import Posterior
from oracles import flat_gradient
from refusals import Refusals, refusals, refused
from silentgrad.estimators import RLOO, Enumerate, Estimator, GumbelSoftmax, Reinforce, Reparameterized, StraightThrough
from silentgrad.evaluation import evaluate
from silentgrad.guided import GuidedVAE
from silentgrad.lab.networks import Encoder, NonlinearGaussian, mlp_body, mlp_network
from silentgrad.latents.families import FAMILIES
from silentgrad.schedules import constant, geometric, linear_decay, linear_rise

SHAPE, LATENTS = (1, 2, 3), 2
MODELS: list[tuple[str, Callable[[], Estimator]]] = [
    ("gaussian", Reparameterized),
    ("gaussian", Reinforce),
    ("bernoulli", GumbelSoftmax),
    ("bernoulli", StraightThrough),
    ("bernoulli", RLOO),
]
EACH = pytest.mark.parametrize(("family", "estimator"), MODELS, ids=[f"{f}, {e.__name__}" for f, e in MODELS])
EACH_FAMILY = pytest.mark.parametrize("family", ["gaussian", "bernoulli"])


def images(examples: int = 5) -> Tensor:
    return torch.rand(examples, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(8))


def encoder_of(family: str) -> Encoder:
    latents = FAMILIES[family](LATENTS)
    return Encoder(mlp_body(SHAPE, latents.numbers, (7,)), latents)


def guided(family: str, estimator: Estimator | None = None, **options: object) -> GuidedVAE:
    torch.manual_seed(9)
    parts: dict[str, object] = {
        "encoder": encoder_of(family),
        "tractable": sg.LinearGaussian(LATENTS, SHAPE, variance=0.3),
        "nonlinear": NonlinearGaussian(mlp_network(LATENTS, SHAPE, hidden=(8,)), SHAPE),
        "estimator": estimator or (Reparameterized() if family == "gaussian" else StraightThrough()),
    }
    return GuidedVAE(**{**parts, **options}).double()


def kld_by_hand(q: td.Independent) -> Tensor:
    base = q.base_dist
    if isinstance(base, td.Bernoulli):
        p = base.probs
        return (p * (2 * p).log() + (1 - p) * (2 * (1 - p)).log()).sum(1)
    return 0.5 * (base.loc**2 + base.scale**2 - 1 - 2 * base.scale.log()).sum(1)


gradient = partial(flat_gradient, allow_unused=True, materialize_grads=True)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@EACH
@pytest.mark.parametrize(("weighting", "w"), [("loss", 0.7), ("encoder", 0.7), ("encoder", 1.0)])
def test_the_loss_is_algorithm_1(family: str, estimator: Callable[[], Estimator], weighting: str, w: float) -> None:
    """Weighting the encoder leaves the decoders alone; with the whole weight that is the paper's "None + SG"."""
    schedule = linear_decay((1 - w) / 3) if w < 1 else constant(w)
    model, x = guided(family, estimator(), schedule=schedule, weighting=weighting).eval(), images()
    torch.manual_seed(1)
    losses = model(x, epoch=3)
    torch.manual_seed(1)
    q, kld = model.encoder(x), kld_by_hand(model.encoder(x)).mean()
    linear = -model.tractable.expected_log_prob(x, q).mean()  # in closed form
    nonlinear = -model.estimator(q, lambda z: model.nonlinear(z).log_prob(x)).mean()  # with whatever the seed draws
    weighted = w * linear + (1 - w) * nonlinear + kld
    total = weighted if weighting == "loss" else linear + nonlinear + kld
    for actual, expected in zip(losses, (total, kld, linear, nonlinear), strict=True):
        close(actual, expected)
    assert min(gradient(loss, model.encoder).norm() for loss in (linear, nonlinear, kld)) > 1e-6
    close(gradient(losses.total, model.encoder), gradient(weighted, model.encoder))
    for module in (model.tractable, model.nonlinear):
        close(gradient(losses.total, module), gradient(total, module))


def refuse(*args: object) -> None:
    raise AssertionError("evaluated")


@EACH_FAMILY
def test_a_decoder_without_weight_is_not_evaluated(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = guided(family, schedule=linear_decay(0.5)), images()
    assert (model.weight(1), model.weight(2), model.weight(3)) == (0.5, 0.0, 0.0)
    assert model(x, epoch=1).tractable is not None
    monkeypatch.setattr(model.tractable, "expected_log_prob", refuse)
    refused(AssertionError, "evaluated", lambda: model(x, epoch=1))
    losses = model(x, epoch=2)
    assert losses.tractable is None
    close(losses.total, losses.nonlinear + losses.kld)
    unannealed = guided(family, schedule=constant(1.0))
    monkeypatch.setattr(unannealed.nonlinear, "forward", refuse)
    losses = unannealed(x, epoch=1)
    assert losses.nonlinear is None
    close(losses.total, losses.tractable + losses.kld)


@EACH_FAMILY
def test_one_decoder_makes_a_plain_vae(family: str) -> None:
    x = images()
    linear = guided(family, nonlinear=None, estimator=None, schedule=linear_decay(0.5))
    nonlinear = guided(family, tractable=None, schedule=linear_decay(0.01))
    for epoch in (1, 9):
        assert (linear.weight(epoch), nonlinear.weight(epoch)) == (1.0, 0.0)
    losses = linear(x, epoch=9)
    assert losses.nonlinear is None
    close(losses.total, -linear.tractable.expected_log_prob(x, linear.encoder(x)).mean() + losses.kld)
    losses = nonlinear(x, epoch=1)
    assert losses.tractable is None
    close(losses.total, losses.nonlinear + losses.kld)
    assert (linear.decoder, nonlinear.decoder) == (linear.tractable, nonlinear.nonlinear)


def test_the_linear_decoder_takes_any_estimator() -> None:
    """Enumeration of its expectation is its closed form."""
    x = images()
    exact = guided("bernoulli", schedule=constant(1.0), tractable_estimator=None)
    enumerated = guided("bernoulli", schedule=constant(1.0), tractable_estimator=Enumerate())
    first, second = exact(x, 1).total, enumerated(x, 1).total
    close(first, second)
    close(gradient(first, exact.encoder), gradient(second, enumerated.encoder))


@EACH_FAMILY
@pytest.mark.parametrize("kl_weight", [0.0, 0.25, 1.0, linear_rise(epochs=4)])
def test_the_kl_weight_scales_the_divergence_only(family: str, kl_weight: float | Callable[[float], float]) -> None:
    """A schedule of it can rise, and ends where the model is judged."""
    model, x = guided(family, schedule=constant(1.0), kl_weight=kl_weight), images()
    for epoch, risen in ((0.5, 0.125), (2, 0.5), (4, 1.0), (9, 1.0)):
        weight = risen if callable(kl_weight) else kl_weight
        losses = model(x, epoch)
        close(losses.total, losses.tractable + weight * losses.kld)
        close(losses.kld, kld_by_hand(model.encoder(x)).mean())
    assert model.objective(model.encoder(x), None).kl_weight == weight


@EACH_FAMILY
@pytest.mark.parametrize("weighting", ["loss", "encoder"])
def test_the_cutoff_freezes_the_encoder_and_nothing_else(family: str, weighting: str) -> None:
    """Momentum and weight decay included."""
    model = guided(family, schedule=constant(0.5), weighting=weighting, cutoff=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for epoch in range(1, 6):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.on_epoch(epoch)
        optimizer.zero_grad()
        model(images(), epoch).total.backward()
        optimizer.step()
        for name, p in model.named_parameters():
            assert torch.equal(p, before[name]) == (name.startswith("encoder") and epoch >= 3), (name, epoch)


def test_an_encoder_frozen_by_its_owner_stays_frozen() -> None:
    model = guided("gaussian", cutoff=3)
    first = next(model.encoder.parameters()).requires_grad_(False)
    model.on_epoch(1)
    assert not first.requires_grad
    assert sum(p.requires_grad for p in model.encoder.parameters()) == 3


def test_an_epoch_reaches_the_estimators() -> None:
    schedule = geometric(1.0, 0.5, 0.1)
    model = guided("bernoulli", GumbelSoftmax(schedule), tractable_estimator=GumbelSoftmax(schedule))
    model.on_epoch(3)
    assert model.estimator.temperature == model.tractable_estimator.temperature == 0.25


class Opaque(nn.Module):
    """A linear decoder in disguise: nobody can tell that it has a closed form."""

    def __init__(self, decoder: sg.LinearDecoder) -> None:
        super().__init__()
        self.inner = decoder

    def forward(self, z: Tensor) -> td.Independent:
        return self.inner(z)


def linear_gaussian(orthogonal: bool = False) -> sg.LinearGaussian:
    torch.manual_seed(2)
    decoder = sg.LinearGaussian(LATENTS, SHAPE, variance=0.3).double()
    if orthogonal:
        nn.init.orthogonal_(decoder.affine.weight)
    return decoder


def marginal(decoder: sg.LinearGaussian, x: Tensor) -> Tensor:
    """Return log p(x) under z ~ N(0, I)."""
    weight, bias = decoder.affine.weight, decoder.affine.bias
    covariance = weight @ weight.T + decoder.variance * torch.eye(len(bias), dtype=torch.float64)
    return td.MultivariateNormal(bias, covariance).log_prob(x.flatten(1))


def replicated(model: GuidedVAE, samples: int, replicates: int = 4000, groups: int = 20) -> tuple[float, float]:
    """Mean and standard error of one example's bound."""
    torch.manual_seed(0)
    size = replicates // groups
    x = images(1).expand(size, *SHAPE)
    means = torch.stack([evaluate(model, x, samples).elbo / size for _ in range(groups)])
    return means.mean().item(), means.std().item() / groups**0.5


@EACH_FAMILY
def test_the_divergence_of_each_latent_adds_up_and_a_draw_of_the_decoder_comes_with_it(family: str) -> None:
    model, x = guided(family), images()
    torch.manual_seed(1)
    result = evaluate(model, x)
    assert result.kld_per_latent.shape == (LATENTS,)
    close(result.kld_per_latent.sum(), result.kld)
    close(result.kld, kld_by_hand(model.encoder(x)).sum().detach())
    assert not any(figure.requires_grad for figure in (*result[:-1], result.likelihood.mean))
    torch.manual_seed(1)
    close(result.likelihood.mean, model.nonlinear(model.encoder(x).sample()).mean.detach())


@EACH_FAMILY
def test_importance_weighting_climbs_from_the_bound_to_the_likelihood(family: str) -> None:
    """The bound of one sample has the mean of its closed form; of several, a linear decoder's is that of any other."""
    decoder, x = linear_gaussian(), images(1)
    model = guided(family, tractable=decoder, nonlinear=None, estimator=None)
    opaque = guided(family, tractable=None, nonlinear=Opaque(decoder))
    if family == "gaussian":
        likelihood = marginal(decoder, x).item()
    else:
        bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=LATENTS)), dtype=torch.float64)
        likelihood = (decoder(bits).log_prob(x).logsumexp(0) - LATENTS * math.log(2)).item()
    elbo = (decoder.expected_log_prob(x, model.encoder(x)) - kld_by_hand(model.encoder(x))).item()
    assert evaluate(model, x).elbo.item() == pytest.approx(elbo)
    (one, error), (some, error_some), (many, error_many) = (replicated(opaque, n) for n in (1, 8, 64))
    assert abs(one - elbo) < 5 * error
    assert elbo + 5 * error_some < some < likelihood - 5 * error_some
    assert one + 5 * error < some + 5 * error_some < many < likelihood + 5 * error_many
    assert likelihood - many < (likelihood - one) / 5
    tractable, error_tractable = replicated(model, 8)
    assert abs(tractable - some) < 5 * math.hypot(error_some, error_tractable)


@pytest.mark.parametrize("samples", [1, 3, 10])
def test_with_the_exact_posterior_every_bound_is_the_likelihood(samples: int) -> None:
    decoder, x = linear_gaussian(orthogonal=True), images()
    truth = marginal(decoder, x).sum().detach()
    close(evaluate(GuidedVAE(Posterior(decoder), tractable=decoder), x, samples).elbo, truth)
    sampled = GuidedVAE(Posterior(decoder), nonlinear=Opaque(decoder), estimator=Reparameterized())
    if samples > 1:
        # Each importance weight is the likelihood, so this holds without any average.
        close(evaluate(sampled, x, samples).elbo, truth)


class Gammas(nn.Module):
    """Latents of no family."""

    def forward(self, x: Tensor) -> td.Gamma:
        return td.Gamma(torch.ones(len(x), 3), torch.ones(len(x), 3))


@refusals
def test_what_makes_no_model_is_refused() -> Refusals:
    encoder, bare, x = encoder_of("gaussian"), nn.Identity(), images()
    poisson, steps = sg.latents.StandardPrior(sg.families.Poisson(LATENTS)), linear_decay(steps=1000)
    foreign, wrong = GuidedVAE(Gammas(), sg.LinearGaussian(3, 4)), guided("gaussian", prior=poisson)
    no_family = sg.errors.UnregisteredLatentError
    return {
        "no decoder": (sg.DomainError, "tractable, nonlinear or both", lambda: GuidedVAE(encoder)),
        "no estimator": (sg.DomainError, r"such as Reparameterized\(\)", lambda: GuidedVAE(encoder, nonlinear=bare)),
        "weighting": (sg.DomainError, "or \"encoder\", got 'both'", lambda: guided("gaussian", weighting="both")),
        "steps": (sg.DomainError, "its schedule counts steps", lambda: guided("gaussian", schedule=steps)),
        "latent": (no_family, "Gamma latents .* no family: .* Normal", lambda: foreign(torch.zeros(2, 4), epoch=1)),
        "divergence": (sg.IntractableError, "of Normal latents from a prior of Poisson", lambda: wrong(x, epoch=1)),
    }
