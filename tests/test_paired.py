"""Statistics of paired seeds."""

import pytest
import torch
from scipy.stats import ttest_rel  # type: ignore[import-untyped]

from silentgrad.lab.experiments.results import Difference, paired, spread
from silentgrad.lab.tables import Spread


@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_the_interval_is_that_of_a_paired_t_test(seeds: int) -> None:
    torch.manual_seed(seeds)
    changed, reference = torch.randn(2, seeds, dtype=torch.float64).tolist()
    found = paired(changed, reference)
    interval = ttest_rel(changed, reference).confidence_interval(0.95)
    assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx((interval.low, interval.high))


VERDICTS = {"helps": (-0.2, 0.1), "undecided": (-0.2, 0.3), "hurts": (0.2, 0.1), "one seed": (-9.0, None)}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_needs_an_interval_on_one_side_of_zero(verdict: str) -> None:
    assert Difference(*VERDICTS[verdict]).verdict == verdict


def test_one_seed_has_no_deviation_and_none_no_difference() -> None:
    assert (spread([]), spread([3.0])) == (None, Spread(3.0, None, 1))
    assert (paired([], []), paired([1.0], [3.0])) == (None, Difference(-2.0, None))
