"""The objective against its definition, and measurements of models that inherit from nothing of ours, in every family.

The reference is always the plain one: the loss written out, and one backward pass of autograd through all of it.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import oracles
import silentgrad as sg
from oracles import flat_gradient
from refusals import Refusals, refusals, refused
from silentgrad.decoders import is_tractable
from silentgrad.estimators import RLOO, Estimator, Exact, Integrand, Reparameterized, base_of
from silentgrad.evaluation import evaluate
from silentgrad.latents import families
from silentgrad.objective import Objective, Term, Weighting
from silentgrad.schedules import constant, linear_decay

LATENTS, OUTPUTS, CATEGORIES = 2, 5, 3
EACH = pytest.mark.parametrize("name", families.FAMILIES)
ENUMERATED = {"bernoulli": oracles.on_grid(oracles.bits), "categorical": oracles.categories}


def family_named(name: str) -> families.Family:
    return families.FAMILIES[name](LATENTS, **({"categories": CATEGORIES} if name == "categorical" else {}))


class Encoder(nn.Module):
    """An encoder of somebody's, from rows to a plain torch distribution."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.latent, numbers = family_named(name).latent, family_named(name).numbers
        self.body = nn.Sequential(nn.Linear(OUTPUTS, 4), nn.Tanh(), nn.Linear(4, numbers))

    def forward(self, x: Tensor) -> td.Distribution:
        return self.latent(self.body(x))


class Decoder(nn.Module):
    """A network of somebody's, from latents to a distribution whose event is one row."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, OUTPUTS))

    def forward(self, z: Tensor) -> td.Distribution:
        return td.Independent(td.Normal(self.body(z.reshape(len(z), -1)), 0.7), 1)


class Tractable(nn.Module):
    """N(W z, 0.49) of somebody's, which knows its expectation for latents without dependence between them."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(OUTPUTS, inputs))

    def forward(self, z: Tensor) -> td.Distribution:
        return td.Independent(td.Normal(z @ self.weight.T, 0.7), 1)

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        return self(q.mean).log_prob(x) - q.variance @ self.weight.square().sum(0) / (2 * 0.7**2)

    def exactness(self, q: td.Distribution) -> sg.Exactness:
        return sg.Exactness.APPROXIMATION if isinstance(q, td.MultivariateNormal) else sg.Exactness.EXACT


class Foreign:
    """A model that inherits from nothing at all."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        self.encoder, self.decoder = encoder.double(), decoder.double()


def foreign(name: str, decoder: Callable[[int], nn.Module] = Decoder) -> Foreign:
    torch.manual_seed(2)
    inputs = LATENTS * CATEGORIES if name == "categorical" else LATENTS
    return Foreign(Encoder(name), decoder(inputs))


def batches(count: int = 4, size: int = 6) -> Tensor:
    return torch.randn(count, size, OUTPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def divergence(name: str, q: td.Distribution) -> Tensor:
    """The KL divergence to the standard prior, one number per example."""
    family = family_named(name)
    prior = family.latent(torch.zeros(len(q.mean), family.numbers, dtype=torch.float64))
    return td.kl_divergence(base_of(q), base_of(prior)).reshape(len(q.mean), -1).sum(-1)


class AtTheMean(Estimator):
    """f(E z): biased, and the same in every call."""

    unbiased = False
    exact = True

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        return integrand(q.mean)


@pytest.mark.parametrize("weighting", ["loss", "encoder"])
def test_the_objective_is_the_sum_of_its_terms(weighting: Weighting) -> None:
    """Three decoders: what reaches the encoder has the weights in either way, the decoders' losses in one only."""
    encoder, x = Encoder("gaussian").double(), batches(1)[0]
    decoders = [Tractable(LATENTS).double() for _ in range(3)]
    weights, q = (0.5, 0.2, 0.0), encoder(x)
    terms = {str(w): Term(decoder, Exact(), w) for decoder, w in zip(decoders, weights, strict=True)}
    prior = sg.latents.StandardPrior(sg.families.Gaussian(LATENTS)).double()
    found = Objective(terms, prior, kl_weight=0.3, weighting=weighting)(x, q)
    losses = [-decoder.expected_log_prob(x, q).mean() for decoder in decoders]
    kld = divergence("gaussian", q).mean()
    weighted = sum(w * loss for w, loss in zip(weights, losses, strict=True)) + 0.3 * kld
    total = weighted if weighting == "loss" else sum(losses) + 0.3 * kld
    torch.testing.assert_close([found.total, found.kld, *found.losses.values()], [total, kld, *losses])
    for module, truth in ((encoder, weighted), *((decoder, total) for decoder in decoders)):
        torch.testing.assert_close(flat_gradient(found.total, module), flat_gradient(truth, module))


@pytest.mark.parametrize("name", ["gaussian", "bernoulli"])
def test_a_decoder_that_inherits_from_nothing_is_trained_evaluated_measured_and_guides(name: str) -> None:
    """Like a linear one of the same weights, whose every use is tested elsewhere."""
    torch.manual_seed(2)
    own, linear, x = Tractable(LATENTS).double(), sg.LinearGaussian(LATENTS, OUTPUTS).double(), batches(1)[0]
    linear.set_variance(0.7**2)
    nn.init.zeros_(linear.affine.bias)
    linear.affine.weight.data.copy_(own.weight)
    nll, results = torch.full((len(x),), 5.0, dtype=torch.float64), []
    for decoder in (own, linear):
        torch.manual_seed(3)
        encoder, nonlinear = Encoder(name), Decoder(LATENTS)
        model = sg.GuidedVAE(encoder, decoder).double()
        optimizer, start = torch.optim.Adam(encoder.parameters(), lr=0.05), evaluate(model, x).elbo
        for _ in range(20):
            optimizer.zero_grad()
            model(x, epoch=1).total.backward()
            optimizer.step()
        assert evaluate(model, x).elbo > start + 1
        (found,) = sg.gradient_variance(model, batches(), 5, [Exact()]).values()
        assert found.est == 0 < found.batch
        guiding = sg.GuidedVAE(encoder, decoder, nonlinear, estimator=RLOO(), schedule=constant(0.7)).double()
        guided = sg.Guide(decoder, constant(0.7))(x, encoder(x), nll, epoch=1)
        losses = guiding(x, epoch=1).tractable, guided.sum()
        results.append([evaluate(model, x).elbo, *losses, torch.tensor(found.batch)])
    assert is_tractable(own)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", [name for name in families.FAMILIES if name != "full-gaussian"])
def test_the_bias_on_a_foreign_model_is_that_of_autograd(name: str) -> None:
    """The truth is by all configurations of discrete latents, or by the decoder's own expectation."""
    model, x = foreign(name, Decoder if name in ENUMERATED else Tractable), batches(1)[0]
    found = sg.gradient_bias(model, x, [AtTheMean(), RLOO()], draws=200)
    q = model.encoder(x)
    if name in ENUMERATED:
        expectation = ENUMERATED[name](q if name == "categorical" else base_of(q))
        expected = expectation(lambda states: torch.stack([model.decoder(z).log_prob(x) for z in states]))
    else:
        expected = model.decoder.expected_log_prob(x, q)
    losses = ((divergence(name, q) - value).mean() for value in (expected, model.decoder(q.mean).log_prob(x)))
    truth, at_mean = (flat_gradient(loss, model.encoder) for loss in losses)
    distance = (at_mean - truth).norm().item()
    biased, relative = found["AtTheMean"], distance / truth.norm().item()
    assert (biased.deviation, biased.relative) == pytest.approx((distance, relative), rel=1e-8)
    assert distance > 1e-3
    assert 0 < found["RLOO"].deviation < 3 * found["RLOO"].noise


@EACH
def test_a_closed_form_has_no_bias_where_the_decoder_is_exact(name: str) -> None:
    model = foreign(name, lambda inputs: sg.LinearGaussian(inputs, OUTPUTS))
    sampling: Estimator = Reparameterized() if model.encoder(batches(1)[0]).has_rsample else RLOO()
    found = sg.gradient_bias(model, batches(1)[0], {"exact": Exact(), "sampling": sampling}, draws=400)
    assert found["exact"].deviation < 1e-12
    assert 0 < found["sampling"].deviation < 3 * found["sampling"].noise


def test_a_foreign_models_prior_is_in_its_gradient() -> None:
    model, data = foreign("gaussian"), batches()
    standard, same = (sg.gradient_variance(model, data, 5, [RLOO()])["RLOO"] for _ in range(2))
    prior = sg.LearnedPrior(sg.families.Gaussian(LATENTS)).double()
    model.prior = prior  # type: ignore[attr-defined]
    learned = sg.gradient_variance(model, data, 5, [RLOO()])["RLOO"]
    nn.init.constant_(prior.numbers, 0.5)
    moved = sg.gradient_variance(model, data, 5, [RLOO()])["RLOO"]
    assert standard == same
    assert learned.batch == pytest.approx(standard.batch)  # it starts as the standard one
    assert moved.batch != pytest.approx(standard.batch, rel=1e-3)
    assert moved.est == pytest.approx(standard.est)


@EACH
@pytest.mark.parametrize("method", ["every", "sketch"])
def test_a_foreign_module_is_measured_like_the_guided_one(name: str, method: str) -> None:
    """The same encoder, decoder and prior: the same figures to the last bit."""
    model = foreign(name)
    twin = sg.GuidedVAE(model.encoder, nonlinear=model.decoder, estimator=RLOO())
    estimators: list[Estimator] = [RLOO(), *([sg.Enumerate()] if name in ENUMERATED else [])]
    found, same = (sg.gradient_variance(each, batches(), 7, estimators, method) for each in (model, twin))  # type: ignore[arg-type]
    assert found == same
    assert found["RLOO"].est > 0
    assert all(figures.est == 0 for exact, figures in found.items() if exact != "RLOO")
    assert list(found["RLOO"].groups) == ["body.0", "body.2"]


@pytest.mark.parametrize("kind", [tuple, list, dict, Tensor])
def test_a_hierarchy_is_refused_by_name(kind: type) -> None:
    model, x = foreign("bernoulli"), batches()
    levels = {tuple: lambda q: (q, q), list: lambda q: [q, q], dict: lambda q: {"top": q}, Tensor: lambda q: q.mean}
    model.encoder.register_forward_hook(lambda module, given, q: levels[kind](q))
    expected = rf"one torch\.distributions\.Distribution, got {kind.__name__}: a hierarchy"
    twin = sg.GuidedVAE(model.encoder, nonlinear=model.decoder, estimator=RLOO())
    for measure in (
        lambda: sg.gradient_variance(model, x, 2, [RLOO()]),
        lambda: sg.gradient_bias(model, x[0], [RLOO()]),
        lambda: twin(x[0], epoch=1),
    ):
        refused(sg.errors.UnregisteredLatentError, expected, measure)


@refusals
def test_what_a_foreign_model_lacks_is_named() -> Refusals:
    """Neither a sample nor an approximation takes the place of a truth that is not known."""
    x, (model, function, other) = batches(), (foreign("gaussian") for _ in range(3))
    function.encoder, other.prior = function.encoder.forward, td.Normal(0.0, 1.0)  # type: ignore[assignment, attr-defined]
    opaque, approximate = (foreign("full-gaussian", decoder) for decoder in (Decoder, Tractable))
    of_model, unknown = sg.gradient_variance, "MultivariateNormal latents cannot be enumerated"
    no_prior, no_module = r"has to be a silentgrad\.latents\.Prior.*got Normal", r"a torch\.nn\.Module, got method"
    return {
        "no schedule": (sg.DomainError, "of Foreign has no schedule", lambda: of_model(model, x, 2, [RLOO()], epoch=1)),
        "a function": (sg.DomainError, no_module, lambda: of_model(function, x, 2, [RLOO()])),
        "another's prior": (sg.DomainError, no_prior, lambda: of_model(other, x, 5, [RLOO()])),
        "no closed form": (sg.IntractableError, unknown, lambda: sg.gradient_bias(opaque, x[0], [RLOO()], draws=5)),
        "no exact one": (sg.IntractableError, unknown, lambda: sg.gradient_bias(approximate, x[0], [RLOO()], draws=5)),
    }


def guided(tractable_estimator: Estimator) -> sg.GuidedVAE:
    torch.manual_seed(2)
    decoders = [sg.LinearGaussian(LATENTS, OUTPUTS, variance) for variance in (0.3, 2.0)]
    return sg.GuidedVAE(Encoder("gaussian"), *decoders, tractable_estimator, Exact(), linear_decay(0.1)).double()


def test_the_closed_form_of_a_guided_objective_has_the_weights() -> None:
    found = sg.gradient_variance(guided(Exact()), batches(), 4, [Exact()], epoch=3)["Exact"]
    assert (found.cosine, found.est) == (pytest.approx(1, abs=1e-12), 0)


def test_the_guide_beside_a_measured_estimator_may_not_draw() -> None:
    model = guided(Reparameterized())
    assert sg.gradient_variance(model, batches(), 4, [Exact()])["Exact"].est == 0  # the guide takes no part
    told = "Reparameterized of another decoder draws too"
    refused(sg.DomainError, told, lambda: sg.gradient_variance(model, batches(), 4, [Exact()], epoch=3))
