"""Subsets of k against enumeration and at the edges of their parameters; samples are in test_check_estimator.py."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from oracles import every
from refusals import refused
from silentgrad.estimators.subsets import Subsets


def enumerated(n: int, k: int) -> Tensor:
    z = every(2, n)
    return z[z.sum(1) == k]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (5, 2), (6, 3), (5, 4), (3, 3)])
def test_probabilities_and_marginals_are_those_of_enumeration(n: int, k: int) -> None:
    torch.manual_seed(n)
    logits = 2 * torch.randn(3, n, dtype=torch.float64, requires_grad=True)
    q, z = sg.KSubset(logits, k), enumerated(n, k)
    scores = z @ logits.T
    log_probs = torch.log_softmax(scores, 0)
    torch.testing.assert_close(q.log_prob(z.unsqueeze(1)), log_probs)
    probabilities = log_probs.exp()
    mean = torch.einsum("cb,cn->bn", probabilities, z)
    torch.testing.assert_close(q.mean, mean)
    torch.testing.assert_close(q.variance, mean * (1 - mean))
    direction = torch.randn_like(mean)
    gradients = [torch.autograd.grad((own * direction).sum(), logits, retain_graph=True) for own in (q.mean, mean)]
    torch.testing.assert_close(*gradients)


def test_the_divergence_is_that_of_enumeration() -> None:
    torch.manual_seed(0)
    q, p = (sg.KSubset(torch.randn(3, 5, dtype=torch.float64), 2) for _ in range(2))
    z = enumerated(5, 2).unsqueeze(1)
    expected = (q.log_prob(z).exp() * (q.log_prob(z) - p.log_prob(z))).sum(0)
    torch.testing.assert_close(td.kl_divergence(q, p), expected)
    refused(sg.DomainError, "subsets of 2 and of 3", lambda: td.kl_divergence(q, sg.KSubset(torch.zeros(3, 5), 3)))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_members_that_are_certain(k: int) -> None:
    """In single precision: finite, and the gradient is that of what is left to decide."""
    logits = torch.tensor([[200.0, -200.0, 0.0, 0.0]]).requires_grad_()
    q = sg.KSubset(logits, k)
    expected = torch.tensor([[1.0, 0.0, (k - 1) / 2, (k - 1) / 2]])
    torch.testing.assert_close(q.mean, expected)
    (gradient,) = torch.autograd.grad(q.mean[:, 2].sum(), logits)
    slope = 0.25 * (k == 2)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.0, slope, -slope]]))
    assert (q.sample().sum(-1) == k).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    """Against double precision at the same logits; the means and gradients are rounded to the logits' precision."""
    torch.manual_seed(0)
    logits, direction = torch.randn(300).to(dtype).requires_grad_(), torch.randn(300)
    exact = logits.detach().double().requires_grad_()
    half, wide = sg.KSubset(logits, 100), sg.KSubset(exact, 100)
    z, rounding = wide.sample(), torch.finfo(dtype).eps
    assert (half.sample().sum(-1), half.sample().dtype, half.mean.dtype) == (100, dtype, dtype)
    torch.testing.assert_close(half.mean.double(), wide.mean, rtol=0, atol=rounding)
    torch.testing.assert_close(half.variance.double(), wide.variance, rtol=0, atol=rounding)
    torch.testing.assert_close(half.log_prob(z.to(dtype)).double(), wide.log_prob(z), rtol=1e-4, atol=0)
    uniform = (sg.KSubset(torch.zeros(300, dtype=q.logits.dtype), 100) for q in (half, wide))
    divergences = [td.kl_divergence(q, p).double() for q, p in zip((half, wide), uniform, strict=True)]
    torch.testing.assert_close(*divergences, rtol=1e-3, atol=0)
    (found,) = torch.autograd.grad((half.mean * direction).sum(), logits)
    (truth,) = torch.autograd.grad((wide.mean * direction).sum(), exact)
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=10 * rounding)


def test_another_number_of_members_has_no_probability_and_one_that_no_subset_has_is_refused() -> None:
    q = sg.KSubset(torch.zeros(4), 2)
    assert q.log_prob(torch.tensor([1.0, 0.0, 0.0, 0.0])) == -torch.inf
    assert q.expand((3,)).sample().shape == (3, 4)
    for logits, k in ((torch.zeros(4), 0), (torch.zeros(4), 5), (torch.zeros(()), 1)):
        refused(sg.DomainError, "between 1 and all of its members", partial(sg.KSubset, logits, k))


def test_the_noise_of_k_members_adds_up_to_a_gumbel_variable() -> None:
    """As far as its series goes: 10 terms have the mean and variance of the harmonic sums."""
    torch.manual_seed(0)
    noise = Subsets(sg.KSubset(torch.zeros(100_000, 3, dtype=torch.float64), 3)).noisy().sum(-1)
    terms = torch.arange(1.0, 11.0, dtype=torch.float64)
    assert abs(noise.mean() - ((1 / terms).sum() - math.log(10))) < 4 * noise.std() / 100_000**0.5
    torch.testing.assert_close(noise.var(), terms.square().reciprocal().sum(), rtol=0.03, atol=0)


def test_the_perturbed_draw_is_a_subset_and_follows_the_logits() -> None:
    torch.manual_seed(0)
    q = sg.KSubset(torch.tensor([0.5, -1.0, 1.0, 0.1, -0.3]).expand(20_000, 5), 2)
    drawn = list[Tensor]()
    sg.estimators.IMLE()(q, lambda z: (drawn.append(z.detach()), z.sum(-1))[1])
    assert (drawn[0].sum(-1) == 2).all()
    assert torch.equal(drawn[0].mean(0).argsort(), q.mean[0].argsort())
