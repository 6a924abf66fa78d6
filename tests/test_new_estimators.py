"""Estimators of categories and counts, and ReinMax's kin: what each is a case of, and its mean by enumeration."""

import itertools

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from silentgrad.estimators import Estimator

INSIDE, DOUBLE = 4, torch.float64


def categories(seed: int = 0, groups: int = 2, count: int = 5) -> Tensor:
    torch.manual_seed(seed)
    return 1.5 * torch.randn(groups, count, dtype=DOUBLE)


def smooth(z: Tensor) -> Tensor:
    """Not additive over the latents and of no low order, one number per example."""
    flat = z.flatten(1)
    weights = torch.linspace(-1.3, 1.7, flat.shape[-1], dtype=flat.dtype)
    return torch.sin(2 * flat @ weights) + (flat @ weights.flip(0)).square()


def gradients(estimator: Estimator, logits: Tensor, draws: int) -> Tensor:
    """Draws of the gradient, one a row."""
    torch.manual_seed(1)
    leaf = logits.expand(draws, *logits.shape).clone().requires_grad_()
    estimator(td.OneHotCategorical(logits=leaf), smooth).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.flatten(1)


def agrees(rows: Tensor, truth: Tensor) -> bool:
    error = rows.std(0) / len(rows) ** 0.5
    return bool(((rows.mean(0) - truth.flatten()).abs() < INSIDE * error + 1e-12).all())


def configurations(logits: Tensor) -> tuple[Tensor, Tensor]:
    """All values of z and their probabilities."""
    z = torch.stack([torch.stack(rows) for rows in itertools.product(torch.eye(logits.shape[-1]), repeat=len(logits))])
    z = z.to(DOUBLE)
    return z, (z * torch.log_softmax(logits, -1)).sum((-1, -2)).exp()


def slopes(z: Tensor) -> Tensor:
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad(smooth(leaf).sum(), leaf)[0]


def jacobian(p: Tensor) -> Tensor:
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def reinmax_mean(logits: Tensor) -> Tensor:
    """The expectation of ReinMax's gradient by the sum over all configurations, from its definition."""
    z, probabilities = configurations(logits)
    mean = torch.softmax(logits, -1)
    matrices = 2 * jacobian((mean + z) / 2) - jacobian(mean) / 2
    each = (matrices @ slopes(z).unsqueeze(-1)).squeeze(-1)
    return (probabilities.reshape(-1, 1, 1) * each).sum(0)


@pytest.mark.parametrize("scale", [0.0, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_reinmax_cv_has_the_mean_of_reinmax(seed: int, scale: float) -> None:
    logits = categories(seed)
    for estimator in (sg.ReinMax(), sg.ReinMaxCV(scale=scale).eval()):
        assert agrees(gradients(estimator, logits, 20_000), reinmax_mean(logits))


def test_reinmax_cv_learns_to_vary_less_than_the_mean_of_two() -> None:
    logits, weights = categories(), torch.linspace(-2, 1, 10, dtype=DOUBLE)

    def drawn(estimator: Estimator, draws: int) -> Tensor:
        leaf = logits.expand(draws, *logits.shape).clone().requires_grad_()
        value = estimator(td.OneHotCategorical(logits=leaf), lambda z: torch.tanh(0.3 * z.flatten(1) @ weights))
        return torch.autograd.grad(value.sum(), leaf)[0].flatten(1)

    torch.manual_seed(0)
    learned = sg.ReinMaxCV(decay=0.9)
    for _ in range(50):
        drawn(learned, 100)
    twice = drawn(sg.Averaged(sg.ReinMax(), 2), 10_000).var(0).sum()
    assert drawn(learned.eval(), 10_000).var(0).sum() < 0.5 * twice


def test_reinmax_rao_is_the_mean_over_the_noise_given_the_sample() -> None:
    """By rejection: Gumbel noise on the logits of the midpoint, kept where the sample is the largest."""
    logits, temperature = categories(groups=1, count=3), 0.7
    z, probabilities = configurations(logits)
    mean, truth = torch.softmax(logits, -1), torch.zeros(1, 3, dtype=DOUBLE)
    torch.manual_seed(0)
    for sample, probability, slope in zip(z, probabilities, slopes(z), strict=True):
        midway = ((mean + sample) / 2).log()
        noisy = midway - torch.empty(200_000, 1, 3, dtype=DOUBLE).exponential_().log()
        kept = noisy[noisy.argmax(-1).squeeze() == sample.argmax()]
        averaged = jacobian(torch.softmax(kept / temperature, -1)).mean(0) / temperature
        truth += probability * ((2 * averaged - jacobian(mean) / 2) @ slope.unsqueeze(-1)).squeeze(-1)
    rows = gradients(sg.ReinMaxRao(temperature), logits, 200_000)
    torch.testing.assert_close(rows.mean(0), truth.flatten(), rtol=0.02, atol=5e-3)


@pytest.mark.parametrize("samples", [2, 3])
def test_the_weights_of_carms_are_those_of_its_pairs(samples: int) -> None:
    """The probability with which two samples are i and j, counted, against p_i p_j / weight."""
    torch.manual_seed(0)
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0], dtype=DOUBLE)
    estimator, ones = sg.CARMS(samples), sg.estimators.choices.OneHots(logits.expand(200_000, 1, 4))
    draws, weights = estimator._antithetic(ones)
    p = torch.softmax(logits, -1)
    for i, j in itertools.permutations(range(4), 2):
        met = (draws[0, :, 0, i] * draws[1, :, 0, j]).bool()
        claimed = weights[0, 1, :, 0][met]
        assert (claimed - claimed[0]).abs().max() < 1e-12
        expected = (p[i] * p[j] / claimed[0]).item()
        error = (expected * (1 - expected) / len(met)) ** 0.5
        assert abs(met.double().mean().item() - expected) < INSIDE * error


@pytest.mark.parametrize("better", [sg.CARMS(4), sg.CARMS(2), sg.DisARMTree()], ids=["CARMS 4", "CARMS 2", "tree"])
def test_antithetic_categories_vary_less_than_independent_ones(better: Estimator) -> None:
    logits = categories(groups=3, count=3)
    plain = gradients(sg.RLOO(better.evaluations()), logits, 20_000)
    assert gradients(better, logits, 20_000).var(0).sum() < 0.95 * plain.var(0).sum()


def test_rodeo_learns_to_vary_less_than_leave_one_out() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=DOUBLE)

    def drawn(estimator: Estimator, draws: int) -> Tensor:
        leaf = logits.expand(draws, 6).clone().requires_grad_()
        value = estimator(td.Bernoulli(logits=leaf), lambda z: (z.sum(-1) - 2.2).square())
        return torch.autograd.grad(value.sum(), leaf)[0]

    estimator = sg.RODEO()
    optimizer = torch.optim.Adam(estimator.parameters(), 0.01)
    for _ in range(300):
        drawn(estimator, 50)
        loss = estimator.auxiliary_loss()
        assert loss is not None
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    plain = drawn(sg.RLOO(), 20_000).var(0).sum()
    assert drawn(estimator.eval(), 20_000).var(0).sum() < 0.8 * plain


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_soft_counts_have_the_mean_and_the_variance_that_are_known(temperature: float) -> None:
    torch.manual_seed(0)
    rates = torch.tensor([0.0, 0.3, 2.0, 9.0], dtype=DOUBLE)
    leaf, seen = rates.expand(100_000, 4).clone().requires_grad_(), []

    def summed(z: Tensor) -> Tensor:
        seen.append(z.detach())
        return z.sum(-1)

    value = sg.EAT(temperature)(td.Poisson(leaf), summed)
    (z,), (slope,) = seen, torch.autograd.grad(value.sum(), leaf)
    assert agrees(z, rates)
    assert agrees(slope[:, 1:], torch.ones(3, dtype=DOUBLE))
    torch.testing.assert_close(z.var(0), rates * (1 - 9 / 35 * temperature), rtol=0.03, atol=0)
    assert value.shape == (100_000,)


def test_the_soft_count_is_that_of_arrivals() -> None:
    """Value and slope have the same joint second moments as the process itself, with the noise held."""
    torch.manual_seed(0)
    rate, temperature = 1.7, 0.6
    leaf = torch.full((100_000,), rate, dtype=DOUBLE, requires_grad=True)
    arrivals = torch.empty(100_000, 30, dtype=DOUBLE).exponential_().cumsum(-1) / leaf.unsqueeze(-1)
    u = ((1 - arrivals) / temperature).clamp(-1, 1)
    expected = (0.5 + 0.75 * u - 0.25 * u**3).sum(-1)
    drawn: list[Tensor] = []
    own = torch.full((100_000,), rate, dtype=DOUBLE, requires_grad=True)
    value = sg.EAT(temperature)(td.Poisson(own), lambda z: (drawn.append(z.detach()), z)[1])
    moments = []
    for z, total, parameter in ((expected.detach(), expected, leaf), (drawn[0], value, own)):
        (slope,) = torch.autograd.grad(total.sum(), parameter)
        moments.append(torch.stack([z.mean(), z.var(), slope.mean(), slope.var(), (z * slope).mean()]))
    torch.testing.assert_close(moments[1], moments[0], rtol=0.03, atol=0)


def test_eat_is_for_counts() -> None:
    assert sg.EAT.suits(sg.families.Poisson)
    assert not sg.EAT.suits(sg.families.Bernoulli)
    with pytest.raises(sg.IntractableError, match="EAT is for Poisson latents, got Bernoulli"):
        sg.EAT()(td.Bernoulli(torch.full((3, 2), 0.5)), lambda z: z.sum(-1))
