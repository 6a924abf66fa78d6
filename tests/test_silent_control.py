"""The silent control variate on decoders: their statistics against enumeration and quadrature, and the noise it leaves.

`test_check_estimator.py` measures that it is unbiased for every function of statistics whose expectations are right.
"""

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


@pytest.mark.parametrize("family", ["bits", "gaussian"])
@pytest.mark.parametrize(("name", "seed"), PROBLEMS)
def test_statistics_make_the_log_probability_and_have_the_expectations_that_are_told(
    name: str, seed: int, family: str
) -> None:
    """And so have their gradients, in the latents' parameters and the decoder's."""
    decoder, x = problem(name, seed)
    leaf = torch.randn(1, LATENTS, dtype=DOUBLE, requires_grad=True)
    if family == "bits":
        q, z = td.Bernoulli(logits=leaf), STATES
        chances = q.log_prob(z).sum(-1).exp()
    else:
        nodes, weights = (torch.cartesian_prod(a, a) for a in oracles.hermite(40))
        q, z, chances = td.Normal(leaf, 0.5), leaf + 0.5 * nodes, weights.prod(1)
    integrand = sg.integrand_of(decoder, x.expand(len(z), -1))
    statistics = integrand.statistics(z)
    torch.testing.assert_close(integrand.from_statistics(statistics), integrand(z))
    told = sg.integrand_of(decoder, x).expected_statistics(q)
    for at_z, expected in zip(statistics, told, strict=True):
        mean = torch.tensordot(chances, at_z, 1)
        torch.testing.assert_close(expected.squeeze(0), mean)
        leaves, along = [leaf, *decoder.parameters()], torch.randn_like(mean)
        found, truth = (
            torch.autograd.grad((along * value).sum(), leaves, None, True, allow_unused=True, materialize_grads=True)
            for value in (expected, mean)
        )
        torch.testing.assert_close(found, truth)


def gradients(estimator: sg.Estimator, decoder: torch.nn.Module, x: Tensor, q: td.Distribution, in_: Tensor) -> Tensor:
    """One gradient per draw: the same example in every row."""
    value = estimator(q, sg.integrand_of(decoder, x.expand(len(in_), -1)))
    (found,) = torch.autograd.grad(value.sum(), in_)
    return found


def test_it_takes_off_most_of_the_noise_where_statistics_vary_little() -> None:
    decoder, x = problem("circuit", 0)
    rows = torch.zeros(4000, LATENTS, dtype=DOUBLE, requires_grad=True)
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


def test_levels_are_controlled_with_gaussian_latents() -> None:
    circuit = sg.Circuit(LATENTS, OUTPUTS, 2, leaves=sg.DiscretizedLogistic(LATENTS, (OUTPUTS, 2), 8))
    x = torch.randint(8, (5, OUTPUTS)).float()
    loc = torch.zeros(5, LATENTS, requires_grad=True)
    value = sg.SilentControlVariate(sg.Reparameterized())(td.Normal(loc, 0.3), sg.integrand_of(circuit, x))
    value.sum().backward()
    assert loc.grad is not None
    assert loc.grad.isfinite().all()
