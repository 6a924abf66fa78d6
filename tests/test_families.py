"""Families of latents and the priors that stand against them, each member against its definition."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from oracles import deviation
from refusals import refused
from silentgrad.evaluation import evaluate
from silentgrad.lab.networks import Encoder, mlp_body
from silentgrad.lab.settings import ModelConfig, resolve_model
from silentgrad.lab.training.export import outputs_of
from silentgrad.latents.families import FAMILIES, Family, family_of
from silentgrad.latents.independent import base_of
from silentgrad.objective import scale_gradient

SHAPE = (1, 2, 2)
REPLICATES = 20_000
MEMBERS = {  # mean and variance of the standard prior, and what an exported encoder gives
    "bernoulli": (0.5, 0.25, ["probs"]),
    "categorical": (0.1, 0.09, ["probs"]),
    "full-gaussian": (0.0, 1.0, ["mean", "scale_tril"]),
    "gaussian": (0.0, 1.0, ["mean", "std"]),
    "laplace": (0.0, 2.0, ["loc", "scale"]),
    "poisson": (1.0, 1.0, ["rate"]),
}
EACH = pytest.mark.parametrize("name", MEMBERS)


def small(name: str) -> Family:
    """Two latents; of three categories each."""
    return FAMILIES[name](2, categories=3) if name == "categorical" else FAMILIES[name](2)


def numbers_of(family: Family, examples: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 0.6 * torch.randn(examples, family.numbers, dtype=torch.float64, generator=generator)


def vae(family: Family, **options: object) -> sg.GuidedVAE:
    torch.manual_seed(1)
    encoder = Encoder(mlp_body(SHAPE, family.numbers, (5,)), family)
    return sg.GuidedVAE(encoder, sg.LinearGaussian(family.shape.numel(), SHAPE, 0.3), **options).double()


@EACH
def test_numbers_make_a_latent_and_zeros_the_standard_prior(name: str) -> None:
    """A latent is taken apart and built again, and an exported encoder has names for all that it gives."""
    family, default = small(name), FAMILIES[name](4)
    prior, (mean, variance, exported) = default.prior()(), MEMBERS[name]
    torch.testing.assert_close(prior.mean, torch.full(default.shape, mean))
    torch.testing.assert_close(prior.variance, torch.full(default.shape, variance))
    assert (prior.batch_shape, prior.event_shape) == ((), default.shape)
    numbers = numbers_of(family).requires_grad_()
    q = family.latent(numbers)
    assert (type(base_of(q)), q.batch_shape, q.event_shape) == (family.distribution, (4,), family.shape)
    again, z = family.rebuild(q, family.parameters(q)), q.sample()
    results = [torch.autograd.grad(p.log_prob(z).sum(), numbers, retain_graph=True)[0] for p in (q, again)]
    assert again.event_shape == q.event_shape
    torch.testing.assert_close(results[1], results[0])
    assert results[0].abs().max() > 0
    outputs = outputs_of(q)
    assert list(outputs) == exported
    torch.testing.assert_close(next(iter(outputs.values())), q.mean)


@EACH
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_scaled_latent_is_the_same_and_passes_its_part_of_the_gradient(name: str, weight: float) -> None:
    family = small(name)
    numbers = numbers_of(family).requires_grad_()
    q = family.latent(numbers)
    scaled, z = scale_gradient(q, weight, family), q.sample()
    assert (type(base_of(scaled)), scaled.event_shape) == (type(base_of(q)), q.event_shape)
    torch.testing.assert_close((scaled.mean, scaled.variance), (q.mean, q.variance))
    losses = (p.log_prob(z).sum() + 0 * numbers.sum() for p in (scaled, q))
    part, whole = (torch.autograd.grad(loss, numbers, retain_graph=True)[0] for loss in losses)
    torch.testing.assert_close(part, weight * whole)


@pytest.mark.parametrize("name", [n for n in MEMBERS if n != "full-gaussian"])
def test_latents_may_have_a_shape(name: str) -> None:
    flat, grid = FAMILIES[name](6), FAMILIES[name]((2, 3))
    numbers = numbers_of(flat)
    row, laid_out = flat.latent(numbers), grid.latent(numbers)
    assert laid_out.event_shape == grid.shape
    torch.testing.assert_close(laid_out.mean.reshape(4, -1), row.mean.reshape(4, -1))
    of_row, of_grid = flat.prior().double(), grid.prior().double()
    torch.testing.assert_close(of_grid.divergence(laid_out), of_row.divergence(row))
    torch.testing.assert_close(of_grid.divergence_per_latent(laid_out), of_row.divergence_per_latent(row))


def test_a_full_covariance_is_what_its_numbers_say() -> None:
    family = FAMILIES["full-gaussian"](2)
    q = family.latent(torch.tensor([[1.0, 2.0, math.log(2.0), 3.0, 0.0]]))
    torch.testing.assert_close(q.mean, torch.tensor([[1.0, 2.0]]))
    torch.testing.assert_close(base_of(q).covariance_matrix, torch.tensor([[[4.0, 6.0], [6.0, 10.0]]]))


FOREIGN = {
    "gaussian": td.Normal(torch.zeros(5, 3), torch.ones(5, 3)),
    "bernoulli": td.Independent(td.Independent(td.Bernoulli(logits=torch.zeros(5, 2, 3)), 1), 1),
    "categorical": td.Independent(td.OneHotCategorical(logits=torch.zeros(5, 2, 3)), 1),
    "full-gaussian": td.MultivariateNormal(torch.zeros(5, 3), torch.eye(3)),
    "laplace": td.Laplace(torch.zeros(5, 2, 3), torch.ones(5, 2, 3)),
    "poisson": td.Independent(td.Poisson(torch.ones(5, 3)), 1),
}


@EACH
def test_a_foreign_latents_family_is_known(name: str) -> None:
    q = FOREIGN[name]
    family = family_of(q)
    assert (family.name, family.shape) == (name, q.sample().shape[1:])
    assert family.prior().divergence(q).abs().max() < 1e-6
    again = family.rebuild(q, family.parameters(q))
    assert (again.batch_shape, again.event_shape) == (q.batch_shape, q.event_shape)


def test_what_families_and_priors_refuse() -> None:
    refused(sg.DomainError, "at least one latent, got 0", lambda: FAMILIES["gaussian"](0))
    refused(sg.DomainError, "at least two categories, got 1", lambda: FAMILIES["categorical"](3, categories=1))
    square = r"one row of latents, got latents of shape \(2, 2\)"
    refused(sg.ShapeError, square, lambda: FAMILIES["full-gaussian"]((2, 2)))
    refused(sg.DomainError, "at least one component, got 0", lambda: sg.MixturePrior(FAMILIES["gaussian"](2), 0))
    model = sg.GuidedVAE(nn.Identity(), sg.LinearGaussian(2, 3))  # a foreign model, whose prior has to be given
    refused(sg.DomainError, "prior=", lambda: model.generate(1))


def sampled_divergence(q: td.Distribution, prior: sg.latents.Prior, draws: int = REPLICATES) -> Tensor:
    """log q(z) - log p(z) for draws from q, one row each."""
    torch.manual_seed(0)
    z = q.sample((draws,))
    return q.log_prob(z) - prior.log_prob(z)


@EACH
@pytest.mark.parametrize("kind", [sg.latents.StandardPrior, sg.LearnedPrior])
def test_the_divergence_is_its_definition(name: str, kind: type[sg.latents.Prior]) -> None:
    """And a learned prior starts as the standard one."""
    family = small(name)
    prior, q = kind(family).double(), family.latent(numbers_of(family))
    if isinstance(prior, sg.LearnedPrior):
        torch.testing.assert_close(prior.divergence(q), family.prior().double().divergence(q))
        nn.init.uniform_(prior.numbers, -0.5, 0.5)
    assert prior.exactness is sg.Exactness.EXACT
    assert deviation(sampled_divergence(q, prior), prior.divergence(q)) < 5
    per_latent = prior.divergence_per_latent(q)
    assert per_latent.shape == (4, 2)
    if name == "full-gaussian":
        assert (per_latent.sum(1) < prior.divergence(q)).all()  # what the latents tell of each other is in none of them
    else:
        torch.testing.assert_close(per_latent.sum(1), prior.divergence(q))


@EACH
def test_the_mixtures_divergence_is_a_bound(name: str) -> None:
    """With one component it has no gap."""
    family = small(name)
    torch.manual_seed(4)
    prior, q = sg.MixturePrior(family, 3).double(), family.latent(numbers_of(family))
    nn.init.normal_(prior.numbers)
    nn.init.normal_(prior.logits)
    sampled = sampled_divergence(q, prior)
    state, bound = torch.get_rng_state(), prior.divergence(q)
    assert torch.equal(state, torch.get_rng_state())
    error = sampled.std(0) / len(sampled) ** 0.5
    assert prior.exactness is sg.Exactness.LOWER_BOUND
    assert (bound > sampled.mean(0) - 5 * error).all()
    assert (bound > sampled.mean(0) + 5 * error).any()
    assert prior.divergence_per_latent(q).shape == (4, 2)
    mixture, single, z = sg.MixturePrior(family, 1).double(), sg.LearnedPrior(family).double(), q.sample()
    with torch.no_grad():
        single.numbers.copy_(mixture.numbers[0])
    torch.testing.assert_close(mixture.divergence(q), single.divergence(q))
    torch.testing.assert_close(mixture.divergence_per_latent(q), single.divergence_per_latent(q))
    torch.testing.assert_close(mixture.log_prob(z), single.log_prob(z))


def test_distant_components_leave_the_bound_tight() -> None:
    """A latent inside one component far from the others has the divergence from it, and that of choosing it."""
    family = FAMILIES["gaussian"](1)
    prior = sg.MixturePrior(family, 2).double()
    with torch.no_grad():
        prior.numbers.copy_(torch.tensor([[-50.0, 0.0], [50.0, 0.0]]))
    q = family.latent(torch.tensor([[50.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(prior.divergence(q), torch.tensor([math.log(2)], dtype=torch.float64))


@EACH
@pytest.mark.parametrize("kind", [sg.latents.StandardPrior, sg.MixturePrior])
def test_a_model_draws_from_its_prior(name: str, kind: type[sg.latents.Prior]) -> None:
    family = small(name)
    model = vae(family, prior=kind(family))
    torch.manual_seed(0)
    assert model.generate(7).mean.shape == (7, *SHAPE)
    assert model.prior is not None
    draws = model.prior.sample(REPLICATES)
    assert deviation(draws, model.prior().mean.detach()) < 5


@EACH
def test_the_objective_and_the_figures_have_the_models_prior(name: str) -> None:
    """And a prior that was evaluated first trains, and follows its model to another precision."""
    family = small(name)
    model, standard = vae(family, prior=sg.LearnedPrior(family)), vae(family)
    x = torch.rand(5, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    assert model.prior is not None
    nn.init.uniform_(model.prior.numbers, -0.5, 0.5)
    q = model.encoder(x)
    divergence = model.prior.divergence(q)
    losses = model(x, epoch=1)
    torch.testing.assert_close(losses.kld, divergence.mean())
    torch.autograd.grad(losses.total, model.prior.numbers)
    found = evaluate(model, x)
    assert model.tractable is not None
    torch.testing.assert_close(found.elbo, (model.tractable.expected_log_prob(x, q) - divergence).sum())
    torch.testing.assert_close(found.kld_per_latent, model.prior.divergence_per_latent(q).sum(0))
    with torch.inference_mode():
        standard(x, epoch=1)
    standard(x, epoch=1).total.backward()
    assert standard.float()(x.float(), epoch=1).kld.dtype == torch.float32
    assert not any(key.startswith("prior") for key in standard.state_dict())


def test_asking_for_a_closed_form_draws_nothing() -> None:
    state = torch.get_rng_state()
    resolve_model(ModelConfig(tractable="exp"), "gaussian")
    assert torch.equal(state, torch.get_rng_state())
