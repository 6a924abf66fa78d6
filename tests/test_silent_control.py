"""The silent control variate: unbiased against enumeration and quadrature, with less noise than its base."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import oracles
import silentgrad as sg
from random_circuits import random_region_graph

DOUBLE = torch.float64
DRAWS = 4000
LATENTS, OUTPUTS = 2, 4
STATES = torch.tensor(list(itertools.product([0.0, 1.0], repeat=LATENTS)), dtype=DOUBLE)

DECODERS: dict[str, Callable[[int], torch.nn.Module]] = {
    "circuit": lambda seed: sg.Circuit(
        LATENTS, OUTPUTS, 3, random_region_graph("binary", OUTPUTS, seed), ("all", "leaves", "none")[seed % 3]
    ),
    "mixture": lambda seed: sg.Mixture(LATENTS, OUTPUTS, 3, per=("output", "example")[seed % 2]),
    "multinomial": lambda seed: sg.LinearLikelihood(LATENTS, OUTPUTS, sg.likelihoods.Multinomial()),
    "zero-inflated": lambda seed: sg.LinearLikelihood(LATENTS, OUTPUTS, sg.likelihoods.ZeroInflatedPoisson(OUTPUTS)),
}
SEEDS = {"circuit": 25, "mixture": 25, "multinomial": 5, "zero-inflated": 5}
PROBLEMS = [(name, seed) for name, count in SEEDS.items() for seed in range(count)]


def problem(name: str, seed: int) -> tuple[torch.nn.Module, Tensor]:
    """Make a decoder with large weights, and one example."""
    torch.manual_seed(seed)
    decoder = DECODERS[name](seed).double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    if name in ("multinomial", "zero-inflated"):
        return decoder, torch.randint(4, (1, OUTPUTS)).to(DOUBLE)
    return decoder, torch.randn(1, OUTPUTS, dtype=DOUBLE)


def gradients(estimator: sg.Estimator, decoder: torch.nn.Module, x: Tensor, q: td.Distribution, in_: Tensor) -> Tensor:
    """One gradient per draw: the same example in every row."""
    value = estimator(q, sg.integrand_of(decoder, x.expand(DRAWS, -1)))
    (found,) = torch.autograd.grad(value.sum(), in_)
    return found


def over_bits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Both values of each bit, and their probabilities."""
    probs = logits.sigmoid()
    return STATES, (probs * STATES + (1 - probs) * (1 - STATES)).prod(-1)


def over_gaussian(loc: Tensor) -> tuple[Tensor, Tensor]:
    nodes, weights = (torch.cartesian_prod(a, a) for a in oracles.hermite(40))
    return loc + 0.5 * nodes, weights.prod(1)


def expected(decoder: torch.nn.Module, x: Tensor, z: Tensor, chances: Tensor) -> Tensor:
    return (chances * sg.integrand_of(decoder, x.expand(len(z), -1))(z)).sum()


@pytest.mark.parametrize("family", ["bits", "gaussian"])
@pytest.mark.parametrize(("name", "seed"), PROBLEMS)
def test_it_is_unbiased_against_enumeration_and_quadrature(name: str, seed: int, family: str) -> None:
    decoder, x = problem(name, seed)
    leaf = torch.randn(1, LATENTS, dtype=DOUBLE, requires_grad=True)
    values = over_bits(leaf) if family == "bits" else over_gaussian(leaf)
    (truth,) = torch.autograd.grad(expected(decoder, x, *values), leaf)
    rows = leaf.detach().expand(DRAWS, -1).clone().requires_grad_()
    q = td.Bernoulli(logits=rows) if family == "bits" else td.Normal(rows, 0.5)
    base = (sg.RLOO(), sg.Reinforce(), sg.DisARM())[seed % 3] if family == "bits" else sg.Reparameterized()
    found = gradients(sg.SilentControlVariate(base), decoder, x, q, rows)
    error = found.std(0) / DRAWS**0.5
    assert ((found.mean(0) - truth[0]).abs() <= 4 * error + 1e-9).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_decoders_gradient_is_unbiased(seed: int) -> None:
    decoder, x = problem("circuit", seed)
    probs = torch.tensor([0.3, 0.8], dtype=DOUBLE)
    parameters = list(decoder.parameters())
    truth = torch.autograd.grad(expected(decoder, x, *over_bits(probs.logit())), parameters)
    estimator, q = sg.SilentControlVariate(sg.RLOO()), td.Bernoulli(probs.expand(200, -1))
    rows = []
    for _ in range(40):
        value = estimator(q, sg.integrand_of(decoder, x.expand(200, -1))).mean()
        rows.append(torch.cat([each.flatten() for each in torch.autograd.grad(value, parameters)]))
    found = torch.stack(rows)
    error = found.std(0) / 40**0.5
    wanted = torch.cat([each.flatten() for each in truth])
    assert ((found.mean(0) - wanted).abs() <= 5.5 * error + 1e-9).all()


def test_it_takes_off_most_of_the_noise_where_statistics_vary_little() -> None:
    decoder, x = problem("circuit", 0)
    rows = torch.zeros(DRAWS, LATENTS, dtype=DOUBLE, requires_grad=True)
    with torch.no_grad():
        for parameter in decoder.leaves.parameters():
            parameter.mul_(0.3)
    variances = {}
    for name, estimator in {"plain": sg.RLOO(), "controlled": sg.SilentControlVariate(sg.RLOO())}.items():
        variances[name] = gradients(estimator, decoder, x, td.Bernoulli(logits=rows), rows).var(0).sum()
    assert variances["controlled"] < 0.2 * variances["plain"]


def test_a_linear_function_of_statistics_has_no_noise_at_all() -> None:
    """One component: the circuit is the sum of its leaves' log-densities."""
    torch.manual_seed(0)
    decoder, x = sg.Circuit(LATENTS, OUTPUTS, 1).double(), torch.randn(5, OUTPUTS, dtype=DOUBLE)
    logits = torch.randn(5, LATENTS, dtype=DOUBLE, requires_grad=True)
    q = td.Bernoulli(logits=logits)
    value = sg.SilentControlVariate(sg.RLOO())(q, sg.integrand_of(decoder, x))
    exact = sg.Exact()(q, sg.integrand_of(decoder, x))
    torch.testing.assert_close(value, exact)
    found, wanted = (torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in (value, exact))
    torch.testing.assert_close(found, wanted)


def test_claims_and_refusals() -> None:
    assert sg.SilentControlVariate(sg.RLOO(3)).evaluations() == 4
    assert sg.SilentControlVariate(sg.RLOO()).unbiased
    q, x = td.Bernoulli(torch.full((5, LATENTS), 0.5)), torch.zeros(5, OUTPUTS)
    estimator = sg.SilentControlVariate(sg.RLOO())
    with pytest.raises(sg.IntractableError, match="needs an integrand with statistics"):
        estimator(q, lambda z: z.sum(-1))
    with pytest.raises(sg.IntractableError, match=r"LinearGaussian.* is no function of statistics"):
        estimator(q, sg.integrand_of(sg.LinearGaussian(LATENTS, OUTPUTS), x))
    bounded = sg.Circuit(LATENTS, OUTPUTS, 2, leaves=sg.DiscretizedLogistic(LATENTS, (OUTPUTS, 2)))
    with pytest.raises(sg.IntractableError, match="no exact expectation for Bernoulli latents"):
        estimator(q, sg.integrand_of(bounded, x))
    for base, message in [(sg.Exact(), "no noise"), (sg.GumbelSoftmax(), "unbiased"), (sg.VIMCO(2), "unbiased")]:
        with pytest.raises(sg.DomainError, match=message):
            sg.SilentControlVariate(base)


def test_levels_are_controlled_with_gaussian_latents() -> None:
    circuit = sg.Circuit(LATENTS, OUTPUTS, 2, leaves=sg.DiscretizedLogistic(LATENTS, (OUTPUTS, 2), 8))
    x = torch.randint(8, (5, OUTPUTS)).float()
    loc = torch.zeros(5, LATENTS, requires_grad=True)
    value = sg.SilentControlVariate(sg.Reparameterized())(td.Normal(loc, 0.3), sg.integrand_of(circuit, x))
    value.sum().backward()
    assert loc.grad is not None
    assert loc.grad.isfinite().all()
