"""The claims of every estimator on random problems, its evaluations, its state, and its kinship with the others.

A problem is a random network of z and random parameters of the latents. All problems and all replicates are one batch,
so that an estimator is called once. The policy of statistical tests is that of `test_estimators.py`, with a mean within
4 standard errors of the truth in every component of every problem. The truth is a sum over all configurations, which no
estimator had a part in.
"""

import copy
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from reinmax import reinmax
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from oracles import hermite
from silentgrad.estimators import Estimator, Learning, RelaxedIntegrand, choices
from silentgrad.lab.training import ModelConfig
from silentgrad.lab.training.build import build_model
from silentgrad.lab.training.suitable import suitable_estimators
from silentgrad.latents.families import FAMILIES

PROBLEMS, REPLICATES = 50, 2500
INSIDE, OUTSIDE = 4, 8  # standard errors
HIDDEN = 6


class Kind(NamedTuple):
    """Latents of one kind: their parameters' shape, how to build them, and all values of an example's z."""

    shape: tuple[int, ...]
    latent: Callable[[Tensor], td.Distribution]
    configurations: Callable[[], Tensor]
    latents: int
    values: int


def bits() -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)), dtype=torch.float64)


def one_hots() -> Tensor:
    picks = torch.tensor(list(itertools.product(range(3), repeat=2)))
    return torch.nn.functional.one_hot(picks, 3).double()


def subsets() -> Tensor:
    rows = []
    for members in itertools.combinations(range(5), 2):
        rows.append([float(i in members) for i in range(5)])
    return torch.tensor(rows, dtype=torch.float64)


KINDS = {
    "bits": Kind((4,), lambda p: td.Independent(td.Bernoulli(logits=p), 1), bits, 4, 2),
    "one-hot": Kind((2, 3), lambda p: td.Independent(td.OneHotCategorical(logits=p), 1), one_hots, 2, 3),
    "subsets": Kind((5,), lambda p: sg.KSubset(p, 2), subsets, 5, 2),
}
BOTH, ALL = ("bits", "one-hot"), ("bits", "one-hot", "subsets")


class Case(NamedTuple):
    """An estimator with default arguments, or few samples, and the kinds of latents that it takes."""

    build: Callable[[], Estimator]
    kinds: tuple[str, ...]
    samples: int = 1


CASES = {
    "Arm": Case(sg.Arm, ("bits",)),
    "Arms": Case(sg.Arms, ("bits",)),
    "Arms 3": Case(lambda: sg.Arms(3), ("bits",)),
    "DisArm": Case(sg.DisArm, ("bits",)),
    "DoubleCV": Case(sg.DoubleCV, BOTH),
    "Enumerate": Case(sg.Enumerate, BOTH),
    "GappedStraightThrough": Case(sg.GappedStraightThrough, BOTH),
    "GumbelRao": Case(sg.GumbelRao, BOTH),
    "GumbelSoftmax": Case(sg.GumbelSoftmax, BOTH),
    "GumbelSoftmax hard": Case(lambda: sg.GumbelSoftmax(hard=True), BOTH),
    "Imle": Case(sg.Imle, ALL),
    "IndeCateR": Case(sg.IndeCateR, BOTH),
    "MuProp": Case(sg.MuProp, BOTH),
    "Nvil": Case(lambda: sg.Nvil(inputs=8), ALL),
    "Rebar": Case(sg.Rebar, BOTH),
    "ReinMax": Case(sg.ReinMax, BOTH),
    "Reinforce": Case(sg.Reinforce, ALL),
    "Relax": Case(lambda: sg.Relax(inputs=8), BOTH),
    "Rloo": Case(sg.Rloo, ALL),
    "Simple": Case(sg.Simple, ALL),
    "StraightThrough": Case(sg.StraightThrough, BOTH),
    "Vimco": Case(lambda: sg.Vimco(2), BOTH, samples=2),
}
PAIRS = [(name, kind) for name, case in CASES.items() for kind in case.kinds]
EACH = pytest.mark.parametrize(("name", "kind"), PAIRS, ids=[f"{n}, {k}" for n, k in PAIRS])
LEARNING = [name for name, case in CASES.items() if isinstance(case.build(), Learning)]


class Problems(NamedTuple):
    """Parameters of latents, and networks of z, a row of each for every problem."""

    parameters: Tensor
    first: Tensor
    second: Tensor

    def f(self, z: Tensor) -> Tensor:
        """From `(problems, replicates, *shape)` to `(problems, replicates)`."""
        return (torch.tanh(z.flatten(2) @ self.first) @ self.second).squeeze(-1)


def problems_of(kind: Kind, count: int = PROBLEMS) -> Problems:
    torch.manual_seed(1)
    inputs = torch.Size(kind.shape).numel()
    parameters = 1.2 * torch.randn(count, *kind.shape, dtype=torch.float64)
    first = torch.randn(count, inputs, HIDDEN, dtype=torch.float64)
    return Problems(parameters, first, torch.randn(count, HIDDEN, 1, dtype=torch.float64))


def truth_of(kind: Kind, problems: Problems, samples: int) -> Tensor:
    """The gradients of E f by the sum over configurations; of a bound, of E log mean w and the KL divergence."""
    leaf = problems.parameters.clone().requires_grad_()
    z = kind.configurations()
    each = z.unsqueeze(0).expand(len(leaf), *z.shape)
    f = problems.f(each)
    scores = (each * leaf.unsqueeze(1)).flatten(2).sum(-1)
    log_q = torch.log_softmax(scores, -1)  # all three kinds are exponential families over their configurations
    q = log_q.exp()
    value = (q * f).sum(-1)
    if samples == 2:
        log_w = f - math.log(z.shape[0]) - log_q
        pairs = torch.logaddexp(log_w.unsqueeze(-1), log_w.unsqueeze(-2)) - math.log(2)
        divergence = (q * (log_q + math.log(z.shape[0]))).sum(-1)
        value = torch.einsum("ni,nij,nj->n", q, pairs, q) + divergence
    return torch.autograd.grad(value.sum(), leaf)[0]


def deviations(estimator: Estimator, kind: Kind, problems: Problems, truth: Tensor, replicates: int) -> Tensor:
    """How far the mean gradient is from the truth, in standard errors; rounding counts as none."""
    torch.manual_seed(2)
    leaf = problems.parameters.unsqueeze(1).repeat(1, replicates, *[1] * len(kind.shape)).requires_grad_()
    value = estimator(kind.latent(leaf), problems.f)
    assert value.shape == leaf.shape[:2]
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    distance = (gradient.mean(1) - truth).abs()
    error = gradient.std(1) / replicates**0.5
    return torch.where(distance < 1e-10, 0.0, distance / error)


def at_random(estimator: Estimator) -> Estimator:
    """With parameters of its own that nothing has fitted: what it claims may not depend on them."""
    torch.manual_seed(5)
    for parameter in estimator.parameters():
        torch.nn.init.normal_(parameter, 0.3, 0.3)
    if isinstance(estimator, sg.DoubleCV):
        estimator.start_scale = 0.3
    return estimator


@EACH
def test_claims_hold_on_random_problems(name: str, kind: str) -> None:
    case, chosen = CASES[name], KINDS[kind]
    problems, estimator = problems_of(chosen), at_random(case.build())
    replicates = REPLICATES
    if estimator.exact:
        replicates = 2
    found = deviations(estimator, chosen, problems, truth_of(chosen, problems, case.samples), replicates)
    if estimator.unbiased:
        assert found.max() < INSIDE
    else:
        assert found.max() > OUTSIDE


GAUSSIAN = {"Reparameterized": 1, "Reinforce": 1, "Rloo": 1, "Nvil": 1, "Stl": 1, "Vimco": 2, "Dreg": 2}


@pytest.mark.parametrize("name", GAUSSIAN)
def test_claims_hold_on_random_problems_of_gaussian_latents(name: str) -> None:
    """The truth is quadrature; of a bound of two samples, over both."""
    samples, latents = GAUSSIAN[name], 2
    order = 40 // samples
    kind = Kind((latents, 2), lambda p: td.Independent(td.Normal(p[..., 0], (p[..., 1] / 3).exp()), 1), bits, 2, 0)
    problems = problems_of(kind._replace(shape=(latents,)))
    parameters = torch.randn(PROBLEMS, latents, 2, dtype=torch.float64)
    problems = problems._replace(parameters=parameters, first=problems.first / 3)
    nodes, masses = hermite(order)
    picks = torch.cartesian_prod(torch.arange(order), torch.arange(order))
    weights = masses[picks].prod(-1)
    leaf = parameters.clone().requires_grad_()
    q, p = kind.latent(leaf.unsqueeze(1)), kind.latent(torch.zeros(PROBLEMS, 1, 2, 2, dtype=torch.float64))
    z = leaf[:, None, :, 0] + (leaf[:, None, :, 1] / 3).exp() * nodes[picks]
    f = problems.f(z)
    value = f @ weights
    if samples == 2:
        log_w = f + p.log_prob(z) - q.log_prob(z)
        pairs = torch.logaddexp(log_w.unsqueeze(-1), log_w.unsqueeze(-2)) - math.log(2)
        value = pairs @ weights @ weights + td.kl_divergence(q, p).squeeze(1)
    (truth,) = torch.autograd.grad(value.sum(), leaf)
    estimator = {"Vimco": lambda: sg.Vimco(2), "Dreg": lambda: sg.Dreg(2)}.get(name, getattr(sg, name))()
    assert deviations(at_random(estimator), kind, problems, truth, REPLICATES).max() < INSIDE


@EACH
def test_a_step_evaluates_the_integrand_as_often_as_declared(name: str, kind: str) -> None:
    """With learning and without, and with whole batches only."""
    estimator, chosen = CASES[name].build(), KINDS[kind]
    problems, calls = problems_of(chosen, 3), []
    leaf = problems.parameters.unsqueeze(1).requires_grad_()

    def counted(z: Tensor) -> Tensor:
        calls.append(z.shape)
        return problems.f(z)

    for mode in (True, False):
        calls.clear()
        value = estimator.train(mode)(chosen.latent(leaf), counted)
        value.sum().backward()
        assert calls == [leaf.shape] * estimator.evaluations(chosen.latents, chosen.values)


class PassedBack(torch.autograd.Function):
    """The identity, which counts how often a gradient comes by, and how often that is differentiated in turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Counter[str], name: str) -> Tensor:
        ctx.counts, ctx.name = counts, name
        counts[name] += 0
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.counts[ctx.name] += 1
        return PassedBack.apply(gradient, ctx.counts, f"twice, {ctx.name}"), None, None


CONTINUOUS = {"Reparameterized": sg.Reparameterized, "Stl": sg.Stl, "Dreg": sg.Dreg, "Reinforce": sg.Reinforce}


@pytest.mark.parametrize("kind", ["bits", "gaussian"])
def test_an_evaluation_is_passed_back_once_and_differentiated_twice_where_declared(kind: str) -> None:
    """Counted at the integrand's value, and for the second time at its z; a parameter of its own needs the first."""
    problems = problems_of(KINDS["bits"], 3)
    builds = {name: case.build for name, case in CASES.items() if "bits" in case.kinds}
    if kind == "gaussian":
        builds = CONTINUOUS
    for build in builds.values():
        estimator, own = build(), torch.ones((), dtype=torch.float64, requires_grad=True)
        leaf = problems.parameters.unsqueeze(1).clone().requires_grad_()
        for mode in (True, False):
            values: Counter[str] = Counter()
            points: Counter[str] = Counter()

            def f(z: Tensor, values: Counter[str] = values, points: Counter[str] = points, own: Tensor = own) -> Tensor:
                name = str(len([name for name in values if name.isdigit()]))
                value = own * problems.f(PassedBack.apply(z, points, name))
                return PassedBack.apply(value, values, name)

            q = td.Bernoulli(logits=leaf) if kind == "bits" else td.Normal(leaf, 1.0)
            estimator.train(mode)(q, f).sum().backward()
            twice = {name for name in points if name.startswith("twice") and points[name] > 0}
            assert len(twice) == (estimator.differentiated_twice if mode else 0)
            passes = [values[str(k)] for k in range(estimator.evaluations(4))]
            assert max(passes) == 1 + (len(twice) > 0)
            assert sum(passes) <= len(passes) + len(twice)


@pytest.mark.parametrize("kind", [*BOTH, "gaussian"])
def test_examples_have_weights(kind: str) -> None:
    """The gradient of a weighted sum is weighted, be the weights of the other sign or 0; so is the integrand's own."""
    builds = {name: case.build for name, case in CASES.items() if kind in case.kinds}
    if kind == "gaussian":
        builds = CONTINUOUS
    problems = problems_of(KINDS.get(kind, KINDS["bits"]), 5)
    weights = torch.tensor([[-0.2], [3.0], [0.0], [1e-6], [-7.0]], dtype=torch.float64)
    for build in builds.values():
        found = []
        for weight in (torch.ones_like(weights), weights):
            torch.manual_seed(0)
            estimator, leaf = build(), problems.parameters.unsqueeze(1).clone().requires_grad_()
            own = torch.ones(5, 1, dtype=torch.float64, requires_grad=True)
            q = td.Normal(leaf, 1.0) if kind == "gaussian" else KINDS[kind].latent(leaf)
            value = estimator(q, lambda z, own=own: own * problems.f(z))
            found.append(torch.autograd.grad((weight * value).sum(), [leaf, own]))
        plain, weighted = found
        torch.testing.assert_close(weighted[1], weights * plain[1])
        shape = (5, 1, *[1] * (plain[0].dim() - 2))
        torch.testing.assert_close(weighted[0], weights.reshape(shape) * plain[0])
        assert plain[0].abs().max() > 0


def test_evaluations_of_a_continuous_latent_and_of_an_average() -> None:
    q, calls = td.Normal(torch.zeros(5, 2), 1.0), []

    def counted(z: Tensor) -> Tensor:
        calls.append(z)
        return z.sum(-1)

    averaged = sg.Averaged(sg.Rloo(3), 4)
    for estimator in (sg.Reparameterized(), sg.Dreg(), sg.Stl(), sg.Vimco(), sg.Nvil(), averaged):
        calls.clear()
        estimator(q, counted)
        assert len(calls) == estimator.evaluations()
    assert averaged.evaluations() == 12
    assert sg.Averaged(sg.Rebar(), 4).differentiated_twice == 8
    assert sg.Exact().evaluations() == 0


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n, k in PAIRS if CASES[n].build().unbiased])
def test_a_plain_function_without_a_gradient_is_integrated(name: str, kind: str) -> None:
    """A table, say: z only picks a number out of it. A biased estimator would have nothing to pass on."""
    chosen = KINDS[kind]
    leaf = problems_of(chosen, 6).parameters.requires_grad_()
    value = CASES[name].build()(chosen.latent(leaf), lambda z: (z.detach().flatten(1)[:, 0] > 0.5).double())
    value.sum().backward()
    assert value.isfinite().all()


@pytest.mark.parametrize("given", ["logits", "probs"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "bits" in case.kinds])
def test_bits_that_are_certain(name: str, given: str) -> None:
    """Probabilities of 0 and 1 in single precision: the value is right and the logits have no gradient."""
    case = CASES[name]
    leaf = torch.tensor([200.0, -200.0]).expand(300, 2).clone().requires_grad_()
    chosen = leaf.sigmoid() if given == "probs" else leaf
    torch.manual_seed(0)
    value = case.build()(td.Bernoulli(**{given: chosen}), lambda z: 3 * z[..., 0] - 2 * z[..., 1])
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(value, torch.full((300,), 3.0), atol=1e-4, rtol=0)
    assert gradient.abs().max() < 1e-4


@pytest.mark.parametrize("given", ["logits", "probs"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "one-hot" in case.kinds])
def test_categories_that_are_certain(name: str, given: str) -> None:
    """A logit of minus infinity is a probability of 0; the other two categories go on to be estimated."""
    case = CASES[name]
    lowest = -torch.inf
    if case.samples > 1:
        lowest = -200.0  # torch's KL divergence has no gradient at minus infinity
    leaf = torch.tensor([[200.0, -200.0, -200.0], [0.3, -0.2, lowest]]).repeat(300, 1, 1).requires_grad_()
    chosen = leaf.softmax(-1) if given == "probs" else leaf
    torch.manual_seed(0)
    value = case.build()(td.OneHotCategorical(**{given: chosen}), lambda z: z[..., 0, 0] + 2 * z[..., 1, 2])
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    if case.samples == 1:
        torch.testing.assert_close(value, torch.ones(300), atol=1e-4, rtol=0)
    assert value.isfinite().all()
    assert gradient[:, 0].abs().max() < 1e-4
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "bits" in case.kinds and name != "Enumerate"])
def test_latents_in_a_square_of_four(name: str) -> None:
    """Nested events, a batch of one, and a leading dimension of samples: all alike."""
    torch.manual_seed(3)
    logits, results = torch.randn(3, 1, 4, 4, dtype=torch.float64), []
    for shape, events in (((3, 1, 4, 4), ()), ((3, 1, 4, 4), (1, 1)), ((3, 16), ())):
        leaf = logits.reshape(shape).clone().requires_grad_()
        q: td.Distribution = td.Bernoulli(logits=leaf)
        for dims in events:
            q = td.Independent(q, dims)
        torch.manual_seed(0)
        estimator = CASES[name].build()
        if name in ("Nvil", "Relax"):
            estimator = type(estimator)(inputs=16)
        examples = shape[:2] if len(shape) == 4 else shape[:1]
        result = estimator(q, lambda z, examples=examples: z.reshape(*examples, 16).cumsum(-1).sin().sum(-1))
        result.sum().backward()
        assert result.shape == examples
        results.append((result.reshape(3), leaf.grad.reshape(3, 16)))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


@pytest.mark.parametrize("kind", BOTH)
def test_rebar_is_relax_with_its_own_control_variate(kind: str) -> None:
    chosen = KINDS[kind]
    problems, results = problems_of(chosen, 7), []
    for estimator in (sg.Rebar(0.3, 0.8), sg.Relax(RelaxedIntegrand(0.3, 0.8))):
        torch.manual_seed(0)
        leaf = problems.parameters.unsqueeze(1).clone().requires_grad_()
        value = estimator(chosen.latent(leaf), problems.f)
        loss = estimator.auxiliary_loss()
        assert loss is not None
        own = torch.autograd.grad(loss, list(estimator.parameters()))
        results.append([value, *torch.autograd.grad(value.sum(), leaf), loss, *own])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert all(part.abs().max() > 0 for part in results[0])


def test_arms_with_independent_draws_is_leave_one_out() -> None:
    chosen = KINDS["bits"]
    problems, results = problems_of(chosen), []
    for estimator in (sg.Rloo(5), sg.Arms(5, antithetic=False)):
        torch.manual_seed(0)
        leaf = problems.parameters.unsqueeze(1).repeat(1, 3, 1).requires_grad_()
        value = estimator(chosen.latent(leaf), problems.f)
        results.append([value, *torch.autograd.grad(value.sum(), leaf)])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("logit", [-3.0, -0.4, 0.0, 1.1, 6.0])
def test_two_samples_of_arms_are_those_of_disarm(logit: float) -> None:
    """Each pair of bits has the same probability and the same gradient."""
    torch.manual_seed(0)
    chances, gradients = [], []
    for estimator in (sg.DisArm(), sg.Arms(2)):
        leaf = torch.full((100_000,), logit, dtype=torch.float64).requires_grad_()
        pair: list[Tensor] = []

        def weighed(z: Tensor, pair: list[Tensor] = pair) -> Tensor:
            pair.append(z)
            return (1 + len(pair)) * z

        estimator(td.Bernoulli(logits=leaf), weighed).sum().backward()
        code = (2 * pair[0] + pair[1]).long()
        chances.append(torch.nn.functional.one_hot(code, 4).double())
        gradients.append({c: leaf.grad[code == c] for c in code.unique().tolist()})
    for of_disarm, of_arms in zip(gradients[0].items(), gradients[1].items(), strict=True):
        assert of_disarm[0] == of_arms[0]
        torch.testing.assert_close(of_arms[1], of_disarm[1][:1].expand_as(of_arms[1]))
    difference = chances[0].mean(0) - chances[1].mean(0)
    error = (chances[0].var(0) + chances[1].var(0)).sqrt() / 100_000**0.5
    assert (difference.abs() <= INSIDE * error).all()


@pytest.mark.parametrize("temperature", [1.0, 1.4])
@pytest.mark.parametrize("kind", BOTH)
def test_reinmax_is_that_of_its_authors(kind: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradient, with their sample for ours."""
    chosen = KINDS[kind]
    problems = problems_of(chosen)
    theirs = problems.parameters.unsqueeze(1).repeat(1, 40, *[1] * len(chosen.shape)).requires_grad_()
    logits = theirs if kind == "one-hot" else torch.stack((torch.zeros_like(theirs), theirs), -1)
    torch.manual_seed(0)
    z, _ = reinmax(logits, temperature)
    z = z if kind == "one-hot" else z[..., 1]
    expected = problems.f(z)
    for latents in (choices.Bits, choices.OneHots):
        monkeypatch.setattr(latents, "sample", lambda self: z.detach())
    ours = theirs.detach().clone().requires_grad_()
    value = sg.ReinMax(temperature)(chosen.latent(ours), problems.f)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        torch.autograd.grad(value.sum(), ours)[0], torch.autograd.grad(expected.sum(), theirs)[0]
    )


def test_the_same_estimator_at_two_levels_of_a_hierarchy_is_refused() -> None:
    """The integrand of a level is the next level's estimate."""
    upper, lower = td.Bernoulli(logits=torch.zeros(5, 4)), td.Bernoulli(logits=torch.ones(5, 4))
    for name in LEARNING:
        estimator = CASES[name].build()
        with pytest.raises(sg.DomainError, match=f"{type(estimator).__name__} was called by its own integrand"):
            estimator(upper, lambda z, e=estimator: e(lower, lambda w: (z * w).sum(-1)))
        assert estimator(upper, lambda z: z.sum(-1)).shape == (5,)  # after the error it serves again
        with pytest.raises(sg.DomainError, match=r"latents of shape \(4,\) an example and now of \(2, 4\)"):
            estimator(td.Bernoulli(logits=torch.zeros(5, 2, 4)), lambda z: z.sum((-1, -2)))
        other = CASES[name].build()
        assert estimator(upper, lambda z, e=other: e(lower, lambda w: (z * w).sum(-1))).shape == (5,)


def test_estimators_without_a_memory_have_no_state() -> None:
    for name, case in CASES.items():
        assert name in LEARNING or not case.build().state_dict()


LEARNERS = ["Nvil", "Rebar", "Relax"]  # by descent


@pytest.mark.parametrize("name", LEARNERS)
def test_two_uses_before_a_step_add_their_losses(name: str) -> None:
    chosen = KINDS["bits"]
    problems, estimator = problems_of(chosen, 7), at_random(CASES[name].build())
    slopes = []
    q = chosen.latent(problems.parameters.unsqueeze(1).requires_grad_())
    estimator(q, problems.f)  # an average that starts from nothing would differ between the runs
    estimator.auxiliary_loss()
    for uses in ((0,), (1,), (0, 1)):
        kept = copy.deepcopy(estimator)
        for seed in uses:
            torch.manual_seed(seed)
            kept(q, problems.f)
            if name == "Nvil":  # its averages move with every use
                kept.load_state_dict(estimator.state_dict())
        own = torch.autograd.grad(kept.auxiliary_loss(), list(kept.parameters()))
        slopes.append(torch.cat([slope.flatten() for slope in own]))
        assert kept.auxiliary_loss() is None
    torch.testing.assert_close(slopes[2], slopes[0] + slopes[1])


@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_learned_lowers_the_variance(name: str) -> None:
    """Inputs that differ much in level, a bad start, and a few hundred steps of descent."""
    torch.manual_seed(0)
    logits = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1) * torch.tensor([1.0, -1.0, 0.5])
    estimator = {"Rebar": lambda: sg.Rebar(2.0, 0.1)}.get(name, CASES[name].build)()

    def f(z: Tensor) -> Tensor:
        return (z - 0.4).square().sum(-1) + 5 * logits[:, 0].repeat(len(z) // 20)

    def variance() -> Tensor:
        leaf = logits.repeat(500, 1).requires_grad_()
        estimator.eval()(td.Bernoulli(logits=leaf), f).sum().backward()
        return leaf.grad.unflatten(0, (500, 20)).var(0).sum()

    start = variance()
    optimizer = torch.optim.Adam(estimator.parameters(), 0.02)
    estimator.train()
    for _ in range(300):
        estimator(td.Bernoulli(logits=logits), f)
        loss = estimator.auxiliary_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert variance() < 0.7 * start


def squares(z: Tensor) -> Tensor:
    """Not additive over the latents, so that a sample says something of the others."""
    return (z.sum(-1) - 0.7).square()


def gradients_of(estimator: Estimator, logits: Tensor, count: int) -> Tensor:
    leaf = logits.repeat(count, 1, 1).requires_grad_()
    estimator(td.Bernoulli(logits=leaf), squares).sum().backward()
    return leaf.grad


def test_the_scale_of_double_cv_is_the_best_one() -> None:
    """The variance is a parabola of alpha; its vertex, from three of its points, is what alpha converges to."""
    torch.manual_seed(0)
    logits = torch.randn(5, 3, dtype=torch.float64)
    scales, variances = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), []
    for scale in scales:
        torch.manual_seed(1)
        found = gradients_of(sg.DoubleCV(2, scale=scale.item()).eval(), logits, 40_000)
        variances.append(found.var(0).sum())
    low, middle, high = variances
    vertex = 1 - (high - low) / 2 / (high - 2 * middle + low)
    estimator = sg.DoubleCV(2, scale=-0.5).double()
    for _ in range(500):
        gradients_of(estimator, logits, 20)
    assert vertex.item() == pytest.approx(estimator.scale.item(), abs=0.02)
    learned = gradients_of(estimator.eval(), logits, 40_000).var(0).sum()
    assert learned < 1.01 * torch.stack(variances).min()
    start = gradients_of(sg.DoubleCV(2, scale=-0.5).eval(), logits, 40_000).var(0).sum()
    assert learned < 0.7 * start


def test_double_cv_of_a_linear_function_has_no_variance() -> None:
    torch.manual_seed(0)
    logits, slope = torch.randn(1, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    p = torch.sigmoid(logits)
    for scale in (1.0, 0.2):
        leaf = logits.repeat(7, 1).requires_grad_()
        sg.DoubleCV(2, scale)(td.Bernoulli(logits=leaf), lambda z: z @ slope).sum().backward()
        exact = torch.isclose(leaf.grad, p * (1 - p) * slope, rtol=1e-12)
        assert exact.all() if scale == 1 else not exact.any()


LAZY = {"Imle": sg.Imle, "DoubleCV": lambda: sg.DoubleCV(2)}


def lazy_logits(dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 3, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("name", LAZY)
def test_a_second_backward_pass_gives_the_same_gradient(name: str) -> None:
    """What the first has learned belongs to later batches; a penalty on z alone ends at the draws."""
    leaf, penalties, own = lazy_logits(), [], torch.ones((), dtype=torch.float64, requires_grad=True)
    estimator = LAZY[name]()

    def f(z: Tensor) -> Tensor:
        penalties.append((own * z).sum())
        return squares(z)

    value = estimator(td.Bernoulli(logits=leaf), f).sum()
    found = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for _ in range(3)]
    each = torch.autograd.grad(value, leaf, torch.ones(1), is_grads_batched=True, retain_graph=True)[0]
    for other in (*found[1:], each[0]):
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)
    assert found[0].abs().max() > 0
    torch.stack(penalties).sum().backward()
    assert own.grad is not None
    assert leaf.grad is None or leaf.grad.abs().max() == 0


def test_double_cv_forgets_a_batch_that_is_not_finite() -> None:
    leaf, estimator = lazy_logits(), sg.DoubleCV(2).double()
    q = td.Bernoulli(logits=leaf)
    estimator(q, squares).sum().backward()
    before = estimator.state_dict()["scale_averages"].clone()
    for bad in (torch.nan, -torch.inf):
        spoilt = torch.tensor([0.0, 0.0, 0.0, bad])
        estimator(q, lambda z, spoilt=spoilt: squares(z) + spoilt).sum().backward()
    torch.testing.assert_close(estimator.state_dict()["scale_averages"], before, rtol=0, atol=0)
    assert before[1] > 0


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("weight", [1e-5, 1e-3])
def test_small_weights_in_half_precision(name: str, weight: float) -> None:
    """Against the same in double precision: the slope is a quotient of small numbers."""
    found = []
    for dtype in (torch.float64, torch.float16):
        leaf = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
        torch.manual_seed(0)
        with pytest.MonkeyPatch.context() as patch:
            bits = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
            patch.setattr(choices.Bits, "sample", lambda self, b=bits, d=dtype: b.to(d))
            patch.setattr(choices.Bits, "noisy", lambda self, b=bits, d=dtype: 2 * b.to(d) - 1)
            value = LAZY[name]()(td.Bernoulli(logits=leaf), lambda z: 1.5 * z[..., 0])
        (weight * value).sum().backward()
        found.append(leaf.grad.double())
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=1e-7)
    assert found[0].abs().max() > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
@pytest.mark.parametrize("name", [*LAZY, "Dreg"])
def test_a_compiled_step_is_the_same(name: str) -> None:
    build = {**LAZY, "Dreg": lambda: sg.Dreg(2)}[name]
    found = []
    for compiled in (False, True):
        leaf, estimator = lazy_logits(), build()

        def step(leaf: Tensor, estimator: Estimator = estimator) -> Tensor:
            q = td.Normal(leaf, 1.0) if name == "Dreg" else td.Bernoulli(logits=leaf)
            return estimator(q, lambda z: squares(2 * z)).mean()

        if compiled:
            step = torch.compile(step, backend="eager")
        torch.manual_seed(1)
        value = step(leaf)
        found.append([value, *torch.autograd.grad(value, leaf)])
    torch.testing.assert_close(*found)


def test_the_graph_of_a_differentiable_gradient_is_freed() -> None:
    leaf = lazy_logits()
    value = sg.Imle()(td.Bernoulli(logits=leaf), squares)
    gone = weakref.ref(value)
    gradient = torch.autograd.grad(value.square().sum(), leaf, create_graph=True)
    del value, gradient
    assert gone() is None


def test_integers_are_integrated_in_the_precision_of_the_latents() -> None:
    value = sg.Imle()(td.Bernoulli(logits=lazy_logits()), lambda z: z.sum(-1).long())
    assert value.dtype == torch.float64
    assert (value == value.round()).all()


def test_a_network_says_how_many_numbers_it_takes() -> None:
    with pytest.raises(sg.ShapeError, match="an example has 9 numbers and the network takes 8: give inputs=9"):
        sg.Nvil(inputs=8)(td.Bernoulli(logits=torch.zeros(5, 9)), lambda z: z.sum(-1))


def test_evaluation_without_gradients_learns_nothing() -> None:
    q = td.Bernoulli(logits=torch.zeros(5, 4))
    for case in CASES.values():
        if "bits" in case.kinds:
            estimator = case.build()
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    value = estimator(q, lambda z: z.sum(-1))
                assert not value.requires_grad
                assert estimator.auxiliary_loss() is None


@pytest.mark.parametrize(
    ("build", "second_moment"),
    [
        (lambda a, b: td.Gamma(a, b), lambda a, b: a * (a + 1) / b.square()),
        (lambda a, b: td.Beta(a, b), lambda a, b: a * (a + 1) / ((a + b) * (a + b + 1))),
        (
            lambda a, b: td.Dirichlet(torch.stack((a, b, a + b), -1)),
            lambda a, b: sum(c * (c + 1) for c in (a, b, a + b)) / (2 * (a + b) * (2 * (a + b) + 1)),
        ),
    ],
    ids=["Gamma", "Beta", "Dirichlet"],
)
def test_implicit_reparameterization(
    build: Callable[[Tensor, Tensor], td.Distribution], second_moment: Callable[[Tensor, Tensor], Tensor]
) -> None:
    torch.manual_seed(0)
    start = 0.3 + 3 * torch.rand(2, PROBLEMS, dtype=torch.float64)
    truth = torch.autograd.grad(second_moment(*start.requires_grad_()).sum(), start)[0]
    leaf = start.detach().unsqueeze(-1).repeat(1, 1, REPLICATES).requires_grad_()
    q = build(*leaf)
    value = sg.Reparameterized()(q, lambda z: z.square().reshape(*z.shape[:2], -1).sum(-1))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    error = gradient.std(-1) / REPLICATES**0.5
    assert ((gradient.mean(-1) - truth).abs() / error).max() < INSIDE


def test_sticking_the_landing_has_no_variance_at_the_posterior() -> None:
    """N(0, 1) before and N(x, 1) given z: the posterior is N(x/2, 1/2)."""
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    loc, scale = (x / 2).requires_grad_(), torch.full((5,), 0.5**0.5, dtype=torch.float64).requires_grad_()
    for estimator in (sg.Stl(), sg.Dreg(3)):
        q = td.Normal(loc, scale)
        elbo = estimator(q, lambda z: td.Normal(z, 1.0).log_prob(x)) - td.kl_divergence(q, td.Normal(0.0, 1.0))
        for gradient in torch.autograd.grad(elbo.sum(), (loc, scale)):
            assert gradient.abs().max() < 1e-12
        torch.testing.assert_close(elbo, td.Normal(0.0, 2**0.5).log_prob(x))


@pytest.mark.parametrize("estimator", [sg.Vimco(4), sg.Dreg(4), sg.Stl()], ids=lambda e: type(e).__name__)
def test_an_objective_hands_its_prior_to_the_bound(estimator: Estimator) -> None:
    """With a learned prior and its KL divergence, what is left is the bound alone."""
    torch.manual_seed(0)
    family = sg.families.Gaussian(2)
    prior = sg.LearnedPrior(family)
    torch.nn.init.normal_(prior.numbers)
    decoder, x = sg.LinearGaussian(2, 3, 0.5), torch.randn(6, 3)
    q = family.latent(torch.randn(6, 4).requires_grad_())
    torch.manual_seed(1)
    first = sg.GuidedVAE(lambda x: q, decoder, tractable_estimator=estimator, prior=prior)(x, 1).total
    torch.manual_seed(1)
    weights = []
    for _ in range(estimator.evaluations()):
        z = q.sample()
        weights.append(decoder.log_prob(x, z) + prior.log_prob(z) - q.log_prob(z))
    bound = torch.stack(weights).logsumexp(0) - math.log(len(weights))
    torch.testing.assert_close(first, -bound.mean())


NAMED = [(name, family) for family in FAMILIES for name in suitable_estimators(FAMILIES[family])]


@pytest.mark.parametrize(("name", "family"), [(n, f) for n, f in NAMED if n not in ("exact", "none")])
def test_every_estimator_that_a_run_can_name_gives_the_encoder_a_gradient(name: str, family: str) -> None:
    torch.manual_seed(0)
    config = ModelConfig(latent=family, latent_dim=4, hidden=[8], tractable="none", estimator=name, prior="learned")
    model = build_model(config, torch.Size([1, 2, 2]), levels=17)
    losses = model(torch.rand(6, 1, 2, 2), epoch=1)
    losses.total.backward()
    assert losses.total.isfinite()
    for parameter in model.encoder.parameters():
        assert parameter.grad.isfinite().all()
    assert any(parameter.grad.any() for parameter in model.encoder.parameters())
    for parameter in model.estimator.parameters():
        assert parameter.grad is not None
    copy.deepcopy(model)
