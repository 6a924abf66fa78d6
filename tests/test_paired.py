"""Statistics of paired seeds, and the noise of the gradient that a guided training descends."""

import pytest
import torch
from scipy.stats import ttest_rel  # type: ignore[import-untyped]
from torch import Tensor

import silentgrad as sg
from oracles import textbook
from refusals import refused
from silentgrad.analysis import training_variance
from silentgrad.lab.experiments.results import Difference, paired, spread
from silentgrad.lab.networks import Encoder, NonlinearGaussian, mlp_body, mlp_network
from silentgrad.lab.tables import Spread
from silentgrad.schedules import LinearDecay, constant

SHAPE, LATENTS = (1, 3, 3), 2


@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_the_interval_is_that_of_a_paired_t_test(seeds: int) -> None:
    torch.manual_seed(seeds)
    changed, reference = torch.randn(2, seeds, dtype=torch.float64).tolist()
    found = paired(changed, reference)
    assert found is not None
    assert found.margin is not None
    interval = ttest_rel(changed, reference).confidence_interval(0.95)
    assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (Difference(-0.2, 0.1), "helps"),
        (Difference(-0.2, 0.3), "undecided"),
        (Difference(0.2, 0.1), "hurts"),
        (Difference(-9.0, None), "one seed"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_of_zero(difference: Difference, verdict: str) -> None:
    assert difference.verdict == verdict


def test_one_seed_has_no_deviation_and_none_no_difference() -> None:
    assert (spread([]), spread([3.0])) == (None, Spread(3.0, None, 1))
    assert (paired([], []), paired([1.0], [3.0])) == (None, Difference(-2.0, None))


def guided(estimator: sg.Estimator, tractable_estimator: sg.Estimator | None = None) -> sg.GuidedVAE:
    torch.manual_seed(0)
    family = sg.families.Gaussian(LATENTS)
    return sg.GuidedVAE(
        Encoder(mlp_body(SHAPE, family.numbers, [6]), family),
        sg.LinearGaussian(LATENTS, SHAPE, 0.1),
        NonlinearGaussian(mlp_network(LATENTS, SHAPE, [6]), SHAPE),
        estimator=estimator,
        tractable_estimator=tractable_estimator,
        schedule=LinearDecay(4),
    ).eval()


def batches() -> Tensor:
    return torch.rand(4, 5, *SHAPE, generator=torch.Generator().manual_seed(1))


def flat_gradient(model: sg.GuidedVAE, x: Tensor, epoch: float) -> Tensor:
    parameters = list(model.encoder.parameters())
    return torch.cat([g.flatten() for g in torch.autograd.grad(model(x, epoch).total, parameters)])


@pytest.mark.parametrize("epoch", [1, 4])
@pytest.mark.parametrize(
    "of_guide", [None, sg.Reparameterized(), sg.Averaged(sg.Reparameterized(), 3)], ids=["exact", "1", "3"]
)
def test_the_training_variance_is_that_of_all_gradients_kept(of_guide: sg.Estimator | None, epoch: int) -> None:
    """By the definition: every draw's gradient at once, with the draws of the same seed."""
    model, draws = guided(sg.Reparameterized(), of_guide).double(), 6
    found = training_variance(model, batches().double(), draws, epoch, seed=5)
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        gradients = []
        for x in batches().double():
            gradients.append(torch.stack([flat_gradient(model, x, epoch) for _ in range(draws)]))
    for name, value in textbook(torch.stack(gradients)).items():
        assert getattr(found, name) == pytest.approx(value)


def test_an_exact_guide_alone_has_no_variance() -> None:
    model = guided(sg.Reparameterized())
    model.schedule = constant(1.0)
    assert training_variance(model, batches(), 4, 1).est == 0.0


def test_what_cannot_be_measured_is_refused() -> None:
    model = guided(sg.Reparameterized())
    refused(sg.DomainError, "at least 2 draws", lambda: training_variance(model, batches(), 1, 1))
    refused(sg.DomainError, "at least 4 batches", lambda: training_variance(model, batches()[:3], 2, 1))
