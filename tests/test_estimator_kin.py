"""What each estimator is a case of, what its mean is by its definition, and by how much it varies less than another.

Problems are those of `silentgrad.testing`; `test_check_estimator.py` measures what estimators claim.
"""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from reinmax import reinmax
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from contenders import BITS, CATEGORIES, squares
from oracles import deviation
from silentgrad import estimators
from silentgrad.estimators import Estimator, RelaxedIntegrand, choices
from silentgrad.testing import Kind, Problem, call

INSIDE, DOUBLE = 4, torch.float64
BITS_AND_CATEGORIES = pytest.mark.parametrize("kind", [BITS, CATEGORIES], ids=["bits", "categories"])


@BITS_AND_CATEGORIES
def test_rebar_is_relax_with_its_own_control_variate(kind: Kind) -> None:
    results = []
    for estimator in (estimators.REBAR(0.3, 0.8), estimators.RELAX(RelaxedIntegrand(0.3, 0.8))):
        found = call(estimator, Problem.random(kind, 7))
        loss = estimator.auxiliary_loss()
        assert loss is not None
        results.append([*found, loss, *torch.autograd.grad(loss, list(estimator.parameters()))])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert all(part.abs().max() > 0 for part in results[0])


DECOUPLED = partial(estimators.DecoupledStraightThrough, backward_temperature=1.0)
KIN = {
    "a tree of two leaves, DisARM": (BITS, estimators.DisARMTree, sg.DisARM),
    "decoupled temperatures of one": (CATEGORIES, DECOUPLED, sg.StraightThrough),
}


@pytest.mark.parametrize("case", KIN)
def test_a_case_of_one_is_the_other(case: str) -> None:
    """With the same random numbers."""
    kind, first, second = KIN[case]
    problem = Problem.random(kind, 10).repeated(20)
    torch.testing.assert_close(call(first(), problem), call(second(), problem))


@pytest.mark.parametrize("samples", [2, 3, 5])
def test_carms_of_two_categories_is_arms(samples: int) -> None:
    """With the same noise the same draws and, in the difference of both logits, the same gradient."""
    found = []
    for kind in ("bits", "categories"):
        problem = Problem.random(BITS, 5).repeated(40)
        torch.manual_seed(3)
        leaf = problem.parameters
        if kind == "bits":
            value = estimators.ARMS(samples)(td.Bernoulli(logits=leaf), problem.network)
        else:
            q = td.OneHotCategorical(logits=torch.stack((torch.zeros_like(leaf), leaf), -1))
            value = estimators.CARMS(samples)(q, lambda z, f=problem.network: f(z[..., 1]))
        found.append([value, torch.autograd.grad(value.sum(), leaf)[0]])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("temperature", [1.0, 1.4])
@BITS_AND_CATEGORIES
def test_reinmax_is_that_of_its_authors(kind: Kind, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradient, with their sample for ours."""
    problem = Problem.random(kind, 10).repeated(40)
    theirs = problem.parameters.detach().clone().requires_grad_()
    logits = theirs.unflatten(-1, (2, 3)) if kind is CATEGORIES else torch.stack((torch.zeros_like(theirs), theirs), -1)
    torch.manual_seed(0)
    z, _ = reinmax(logits, temperature)
    z = z if kind is CATEGORIES else z[..., 1]
    expected = problem.network(z)
    for latents in (choices.Bits, choices.OneHots):
        monkeypatch.setattr(latents, "sample", lambda self: z.detach())
    value, gradient, _ = call(sg.ReinMax(temperature), problem)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), theirs)[0])


def in_mean(problem: Problem, matrices: Callable[[Tensor], Tensor]) -> Tensor:
    """Sum over all z p(z) M(z) f'(z), of one-hot categories."""
    z, log_p = CATEGORIES.support(problem.q)
    leaf = z.detach().clone().requires_grad_()
    (slopes,) = torch.autograd.grad(problem.network.at(leaf).sum(), leaf)
    each = (matrices(z) @ slopes.unsqueeze(-1)).squeeze(-1)
    return (log_p.exp().unsqueeze(-1).unsqueeze(-1) * each).sum(0).flatten(1).detach()


def jacobian(p: Tensor) -> Tensor:
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


@pytest.mark.parametrize("scale", [None, 0.0, 0.7])
def test_reinmax_and_its_control_variate_have_the_mean_of_the_definition(scale: float | None) -> None:
    estimator = sg.ReinMax() if scale is None else estimators.ReinMaxCV(scale=scale)
    problem = Problem.random(CATEGORIES, 3)
    mean = problem.q.mean
    truth = in_mean(problem, lambda z: 2 * jacobian((mean + z) / 2) - jacobian(mean) / 2)
    rows = call(estimator.eval(), problem.repeated(20_000))[1].reshape(3, 20_000, -1)
    assert max(map(deviation, rows, truth.unsqueeze(1))) < INSIDE


def test_reinmax_rao_is_the_mean_over_the_noise_given_the_sample() -> None:
    """By rejection: Gumbel noise on the logits of the midpoint, kept where the sample is the largest."""
    problem, temperature = Problem.random(CATEGORIES, 1), 0.7
    mean, averaged = problem.q.mean.detach(), torch.zeros(2, 3, 3, 3, dtype=DOUBLE)
    torch.manual_seed(0)
    for group, value in itertools.product(range(2), range(3)):
        midway = ((mean[0, group] + torch.eye(3)[value]) / 2).log()
        noisy = midway - torch.empty(200_000, 3, dtype=DOUBLE).exponential_().log()
        kept = torch.softmax(noisy[noisy.argmax(-1) == value] / temperature, -1)
        averaged[group, value] = jacobian(kept).mean(0) / temperature
    truth = in_mean(problem, lambda z: 2 * torch.einsum("zngv,gvij->zngij", z, averaged) - jacobian(mean) / 2)
    found = call(estimators.ReinMaxRao(temperature), problem.repeated(200_000))[1].mean(0)
    torch.testing.assert_close(found, truth.squeeze(0), rtol=0.02, atol=5e-3)


def variance(estimator: Estimator, kind: Kind) -> Tensor:
    return call(estimator, Problem.random(kind, 1).repeated(20_000))[1].var(0).sum()


def taught(estimator: Estimator, kind: Kind) -> Estimator:
    for seed in range(50):
        call(estimator, Problem.random(kind, 1).repeated(100), seed)
    return estimator.eval()


LINEAR, TWICE = CATEGORIES._replace(slope=0.1), lambda: sg.Averaged(sg.ReinMax(), 2)  # linear, or close to it
LESS: dict[str, tuple[Kind, Callable[[], Estimator], Callable[[], Estimator], tuple[float, float]]] = {
    # the variance is that of the second, times a share in between
    "DisARM": (BITS, sg.DisARM, sg.RLOO, (0, 0.95)),
    "ARMS of two": (BITS, lambda: estimators.ARMS(2), sg.DisARM, (0.95, 1.05)),
    "RLOO": (BITS, lambda: sg.RLOO(8), sg.RLOO, (0, 0.25)),
    "CARMS of four": (CATEGORIES, estimators.CARMS, lambda: sg.RLOO(4), (0, 0.95)),
    "CARMS of two": (CATEGORIES, lambda: estimators.CARMS(2), sg.RLOO, (0, 0.95)),
    "DisARMTree": (CATEGORIES, estimators.DisARMTree, sg.RLOO, (0, 0.95)),
    "a warmer relaxation": (BITS, lambda: sg.GumbelSoftmax(1.0), lambda: sg.GumbelSoftmax(0.1), (0, 1)),
    "a baseline": (BITS, lambda: taught(sg.Reinforce(0.9), BITS), lambda: sg.Reinforce().eval(), (0, 0.8)),
    "ReinMaxCV": (LINEAR, lambda: taught(estimators.ReinMaxCV(decay=0.9), LINEAR), TWICE, (0, 0.5)),
}


@pytest.mark.parametrize("case", LESS)
def test_it_varies_as_much_as_another_or_less(case: str) -> None:
    kind, first, second, (least, most) = LESS[case]
    share = variance(first(), kind) / variance(second(), kind)
    assert least < share < most


def test_a_colder_relaxation_is_less_biased() -> None:
    truth = Problem.random(BITS, 1).truth()[1]
    warm, cold = (call(sg.GumbelSoftmax(t), Problem.random(BITS, 1).repeated(100_000))[1] for t in (1.0, 0.1))
    assert (cold.mean(0) - truth).norm() < (warm.mean(0) - truth).norm() / 2


LEARNERS: dict[str, tuple[Callable[[], Estimator], float]] = {  # by descent, and the share of the variance that is left
    "NVIL": (lambda: estimators.NVIL(inputs=8), 0.7),
    "REBAR": (lambda: estimators.REBAR(2.0, 0.1), 0.7),
    "RELAX": (lambda: estimators.RELAX(inputs=8), 0.8),
    "RODEO": (estimators.RODEO, 0.7),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_learned_lowers_the_variance(name: str) -> None:
    """Inputs that differ much in level, a bad start, and a few hundred steps of descent."""
    torch.manual_seed(0)
    logits = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1) * torch.tensor([1.0, -1.0, 0.5])
    build, share = LEARNERS[name]
    estimator = build()

    def f(z: Tensor) -> Tensor:
        return squares(z) + 5 * logits[:, 0].repeat(len(z) // 20)

    def variance() -> Tensor:
        leaf = logits.repeat(500, 1).requires_grad_()
        estimator.eval()(td.Bernoulli(logits=leaf), f).sum().backward()
        return leaf.grad.unflatten(0, (500, 20)).var(0).sum()

    start = variance()
    optimizer = torch.optim.Adam(estimator.parameters(), 0.02)
    estimator.train()
    for _ in range(150):
        estimator(td.Bernoulli(logits=logits.clone().requires_grad_()), f).sum().backward()
        loss = estimator.auxiliary_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert variance() < share * start


@pytest.mark.parametrize(("rate", "temperature"), [(0.0, 0.2), (0.3, 1.0), (1.7, 0.6), (9.0, 0.2)])
def test_the_soft_count_is_that_of_arrivals(rate: float, temperature: float) -> None:
    """Value and slope have the same joint second moments as the process itself, with the noise held."""
    torch.manual_seed(0)
    own, leaf = (torch.full((100_000,), rate, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    arrivals = torch.empty(100_000, 30, dtype=DOUBLE).exponential_().cumsum(-1) / leaf.unsqueeze(-1)
    u = ((1 - arrivals) / temperature).clamp(-1, 1)
    expected, drawn = (0.5 + 0.75 * u - 0.25 * u**3).sum(-1), list[Tensor]()
    value = estimators.EAT(temperature)(td.Poisson(own), lambda z: (drawn.append(z.detach()), z)[1])
    if rate == 0:
        assert not drawn[0].any()
        return
    moments = []
    for z, total, parameter in ((expected.detach(), expected, leaf), (drawn[0], value, own)):
        (slope,) = torch.autograd.grad(total.sum(), parameter)
        moments.append(torch.stack([z.mean(), z.var(), slope.mean(), slope.var(), (z * slope).mean()]))
    torch.testing.assert_close(moments[1], moments[0], rtol=0.03, atol=0)
    known = torch.tensor([rate, rate * (1 - 9 / 35 * temperature), 1.0], dtype=DOUBLE)
    torch.testing.assert_close(moments[1][:3], known, rtol=0.03, atol=0)
