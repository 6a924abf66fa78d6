"""Context: normalized over all x, closed forms by quadrature, causality, samples, and what is refused."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import class_conditional
import silentgrad as sg
from oracles import every, require_distribution
from refusals import refused
from silentgrad.decoders.context import causal_order, require_causal, set_context_weight

DOUBLE = torch.float64
SHAPES = [(5,), (3, 3), (1, 3, 2), (2, 2, 2)]


def randomized(decoder: nn.Module, seed: int) -> nn.Module:
    """The decoder in double precision, with random numbers for all that it learns."""
    torch.manual_seed(seed)
    decoder = decoder.double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(0.7 * torch.randn_like(parameter))
        for module in decoder.modules():
            if isinstance(module, sg.DiscretizedLogistic):
                module.center.copy_(torch.rand_like(module.center) * (module.levels - 1))
    return decoder


def levels_decoder(shape: tuple[int, ...], levels: int, components: int, seed: int) -> nn.Module:
    """A decoder of levels with a context: a circuit, or, of one component, a logistic by itself."""
    context = sg.CausalContext(shape, radius=1 + seed % 2, hidden=6)
    if components == 1:
        return randomized(sg.DiscretizedLogistic(2, shape, levels, context=context), seed)
    leaves = sg.DiscretizedLogistic(2, (*shape, components), levels, context=context)
    return randomized(sg.Circuit(2, shape, components, gates="all", leaves=leaves), seed)


@pytest.mark.parametrize(("shape", "levels"), [((3, 3), 2), ((2, 2, 2), 2), ((2, 3), 3), ((1, 3, 3), 3)])
def test_probabilities_of_all_images_sum_to_one(shape: tuple[int, ...], levels: int) -> None:
    x = every(levels, *shape)
    for seed, components in itertools.product(range(4 if levels == 3 else 12), (1, 3)):
        p = levels_decoder(shape, levels, components, seed)(torch.randn(1, 2, dtype=DOUBLE))
        assert p.log_prob(x).exp().sum().item() == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_circuit_is_below_its_expectation_and_equal_without_variance(shape: tuple[int, ...]) -> None:
    for seed in range(5):
        decoder = levels_decoder(shape, 3, 3, seed)
        x, loc = torch.randint(3, (6, *shape)).double(), torch.randn(6, 2, dtype=DOUBLE)
        surest = decoder.expected_log_prob(x, td.Normal(loc, 1e-7))
        torch.testing.assert_close(surest, decoder(loc).log_prob(x), rtol=0, atol=1e-5)
        q = td.Normal(loc, 0.8)
        draws = decoder(q.sample(torch.Size([4000]))).log_prob(x)
        error = draws.std(0) / math.sqrt(len(draws))
        assert (decoder.expected_log_prob(x, q) < draws.mean(0) + 5 * error).all()


@pytest.mark.parametrize("shape", [*SHAPES, (3, 6, 7)])
@pytest.mark.parametrize("radius", [1, 3])
def test_fronts_see_only_what_was_drawn_before(shape: tuple[int, ...], radius: int) -> None:
    context = sg.CausalContext(shape, radius, hidden=8).double()
    fronts = list(context.fronts())
    assert torch.cat(fronts).sort().values.tolist() == list(range(math.prod(shape)))
    x = torch.randn(1, math.prod(shape), dtype=DOUBLE)
    slopes = torch.autograd.functional.jacobian(lambda x: context(x.reshape(1, *shape)).sum(-1).flatten(), x)[:, 0]
    later = torch.zeros(math.prod(shape), dtype=torch.bool)
    for front in reversed(fronts):
        later[front] = True
        assert not slopes[front][:, later].any()


CONDITIONS = {
    "labels": (lambda: nn.Embedding(3, 6), torch.tensor([0, 2, 1])),
    "another image": (lambda: nn.Sequential(nn.Unflatten(-1, (2, 1)), nn.Linear(1, 6)), torch.randn(3, 2, 2).double()),
}


@pytest.mark.parametrize("kind", CONDITIONS)
@pytest.mark.parametrize("components", [1, 3])
def test_a_conditional_decoder_is_a_density_given_what_it_is_told(kind: str, components: int) -> None:
    """It sums to one, draws by its probabilities, and every estimator takes it like any other."""
    network, told = CONDITIONS[kind]
    shape, context = (2, 2), sg.CausalContext((2, 2), hidden=6, given=network())
    leaf = sg.DiscretizedLogistic(2, shape if components == 1 else (*shape, components), 2, context=context)
    decoder = randomized(leaf if components == 1 else sg.Circuit(2, shape, components, leaves=leaf), 5)
    x, z, given = every(2, *shape), torch.randn(3, 2, dtype=DOUBLE), decoder.given(sg.SideInfo(context=told))
    p = given(z)
    require_distribution(p, x, moments=False)
    chances = p.log_prob(x.unsqueeze(1)).exp()
    assert (chances[:, 0] - chances[:, 1]).abs().max() > 0.01
    row, q = x[[3, 9, 14]], td.Normal(z, 1e-8)
    torch.testing.assert_close(sg.Exact()(q, sg.integrand_of(given, row)), p.log_prob(row), rtol=0, atol=1e-6)
    torch.testing.assert_close(given(z.expand(2, 3, 2)).log_prob(row), p.log_prob(row).expand(2, 3))
    for example in range(3):
        alone = decoder.given(sg.SideInfo(context=told[example : example + 1]))(z[example : example + 1])
        torch.testing.assert_close(alone.log_prob(x.unsqueeze(1))[:, 0], p.log_prob(x.unsqueeze(1))[:, example])


def test_the_class_conditional_example_learns() -> None:
    _, bits = class_conditional.train(told=True, epochs=1)
    assert bits < 3  # a uniform level has 4.09


class Peeking(nn.Module):
    """A network that sees what it should not, behind a last layer that starts at zero."""

    def __init__(self, event_shape: tuple[int, ...], shift: int) -> None:
        super().__init__()
        self.event_shape, self.features, self.shift = torch.Size(event_shape), 2, shift
        self.last = nn.Linear(1, 2)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        order = causal_order(self.event_shape)
        seen = x.flatten(-len(self.event_shape))[..., order].roll(self.shift, -1)
        if self.shift > 0:
            seen = seen.index_fill(-1, torch.arange(self.shift), 0)
        return self.last(seen[..., order.argsort()].unflatten(-1, self.event_shape).unsqueeze(-1))


@pytest.mark.parametrize("shape", [(5,), (20, 20), (3, 4, 4)])
def test_a_network_that_peeks_is_refused_by_name(shape: tuple[int, ...]) -> None:
    require_causal(Peeking(shape, shift=1))  # the output before
    for shift in (0, -1):
        peeking = partial(sg.DiscretizedLogistic, 2, shape, context=Peeking(shape, shift))
        refused(sg.DomainError, "Peeking is not causal: its features of output", peeking)


def test_the_context_comes_in_by_its_weight() -> None:
    leaves = sg.DiscretizedLogistic(2, (1, 4, 4, 3), context=sg.CausalContext((1, 4, 4)))
    circuit, data = sg.Circuit(2, (1, 4, 4), 3, leaves=leaves), torch.randint(256, (50, 1, 4, 4)).float()
    circuit.init_from_data(data)
    assert leaves.context.spread.item() == pytest.approx(data.std().item())
    x, q = data[:5], td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
    without = circuit.expected_log_prob(x, q)
    torch.testing.assert_close(circuit.expected_log_prob(x, q), without)  # starts as if there were none
    nn.init.normal_(leaves.shifts.weight)
    assert not torch.allclose(circuit.expected_log_prob(x, q), without)
    set_context_weight(circuit, 0.0)
    torch.testing.assert_close(circuit.expected_log_prob(x, q), without)
    set_context_weight(circuit, 0.5)
    circuit.expected_log_prob(x, q).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in leaves.context.mix.parameters())


def test_what_a_context_does_not_allow_is_named() -> None:
    context = sg.CausalContext((4,))
    decoder = sg.StandardizedGaussian(2, 4, context=context)
    q, mask = td.Normal(torch.zeros(3, 2), torch.ones(3, 2)), torch.ones(3, 4, dtype=torch.bool)
    refused(sg.IntractableError, "of an output depends on the outputs before it", lambda: decoder(q.loc).mean)
    taken, shape = "with a context takes no side information", r"examples of shape \(4,\) is not for outputs of shape"
    refused(sg.IntractableError, taken, lambda: decoder.expected_log_prob(q.loc.repeat(1, 2), q, mask=mask))
    refused(sg.ShapeError, shape, lambda: sg.StandardizedGaussian(2, 5, context=context))
    leaves, theirs = sg.StandardizedGaussian(2, (4, 2)), "context belong to the leaves that were given"
    refused(sg.DomainError, theirs, lambda: sg.Circuit(2, 4, 2, leaves=leaves, context=context))
    given = sg.SideInfo(context=torch.zeros(3, dtype=torch.long))
    told = sg.StandardizedGaussian(2, 4, context=sg.CausalContext((4,), given=nn.Embedding(2, 48)))
    gaussian, poisson, x = sg.LinearGaussian(2, 4), sg.likelihoods.Poisson(), torch.zeros(3, 4)
    circuits = sg.Circuit(2, 4, 2), sg.Circuit(2, 4, 2, leaves=[gaussian, gaussian])
    for other in (decoder, gaussian, sg.LinearLikelihood(2, 4, poisson), *circuits):
        calls = (lambda d=other: d.given(given)(q.loc), lambda d=other: d.given(given).expected_log_prob(x, q))
        for call in calls:
            refused(sg.IntractableError, "takes no context: a decoder does whose", call)
    refused(sg.IntractableError, "has to be told something", lambda: told.expected_log_prob(x, q))
    short = sg.SideInfo(context=torch.zeros(2, dtype=torch.long))
    refused(sg.ShapeError, "one row for each", lambda: told.given(short).expected_log_prob(x, q))
    refused(sg.IntractableError, "Circuit takes no offset", lambda: circuits[0].given(sg.SideInfo(x[:, 0]))(q.loc))
    circuit = sg.Circuit(2, 4, 2, leaves=sg.StandardizedGaussian(2, (4, 2), context=context))
    refused(sg.DomainError, "x is torch.float64", lambda: circuit.expected_log_prob(x.double(), q))
    refused(sg.DomainError, "radius and hidden", lambda: sg.CausalContext((4,), radius=0))
    refused(sg.ShapeError, "for vectors and images", lambda: sg.CausalContext((1, 2, 3, 4)))
