"""The model without latents, against SciPy's distributions of the examples as they are stored."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import sparse, stats

from silentgrad.lab.data import Binarized, Counts, Levels, Observations, Reals, SparseMatrix, SparseRows, Splits
from silentgrad.lab.runs import baseline as module
from silentgrad.lab.runs.baseline import baseline

Array = NDArray[Any]


def figure(observations: Observations) -> float:
    found = baseline(observations)
    assert found is not None
    return found.figure


def whole(high: int, *shape: int, seed: int = 0) -> Array:
    return np.random.RandomState(seed).randint(0, high, shape)


def noisy(levels: Array, number: int) -> Array:
    """Every level as two points of its bin with the moments of a uniform one up to the third: Gauss's nodes."""
    away = 0.5 / math.sqrt(3)
    return np.concatenate([(levels + 0.5 - away) / number, (levels + 0.5 + away) / number])


def test_levels_are_gaussians_of_the_dequantized_examples() -> None:
    train, test = whole(7, 30, 1, 2, 3), whole(7, 11, 1, 2, 3, seed=1)
    train[:, 0, 1, 1] = 3  # a pixel that never changes in training
    seen, judged = noisy(train, 7), noisy(test, 7)
    nats = stats.norm(seen.mean(0), seen.std(0)).logpdf(judged).sum() / 22
    observations = Levels(torch.tensor(train), torch.tensor(test), torch.tensor(test), "made up", levels=7)
    assert figure(observations) == pytest.approx(-nats / (6 * math.log(2)) + math.log2(7), rel=1e-6)


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_bits_are_coins(threshold: float | None) -> None:
    train, test = whole(5, 20, 1, 2, 2), whole(5, 9, 1, 2, 2, seed=1)
    train[:, 0, 0, 0] = 0  # never white in training, and not impossible for that
    nats = 0.0
    for place in np.ndindex(1, 2, 2):
        chances = np.array([whiteness(row[place], threshold) for row in train])
        coin = stats.bernoulli((chances.sum() + 1) / 22)
        for row in test:
            chance = whiteness(row[place], threshold)
            nats += chance * coin.logpmf(1) + (1 - chance) * coin.logpmf(0)
    splits = torch.tensor(train), torch.tensor(test), torch.tensor(test)
    assert figure(Binarized(*splits, "made up", levels=5, threshold=threshold)) == pytest.approx(-nats / 9, rel=1e-6)


def whiteness(level: int, threshold: float | None) -> float:
    if threshold is None:
        return level / 4
    return float(level / 4 >= threshold)


@pytest.mark.parametrize("missing", [False, True])
def test_reals_are_gaussians_of_the_numbers_as_they_are_stored(missing: bool) -> None:
    random = np.random.RandomState(0)
    train, test = 5 + 3 * random.randn(40, 3), 5 + 3 * random.randn(12, 3)
    there, tested = np.ones(train.shape, bool), np.ones(test.shape, bool)
    if missing:
        there, tested = random.rand(40, 3) < 0.7, random.rand(12, 3) < 0.7
    nats = 0.0
    for column in range(3):
        known = train[there[:, column], column]
        law = stats.norm(known.mean(), known.std())
        nats += law.logpdf(test[tested[:, column], column]).sum()
    mask = Splits(*map(torch.tensor, (there, tested, tested))) if missing else None
    splits = torch.tensor(train), torch.tensor(test), torch.tensor(test)
    assert figure(Reals(*splits, "made up", mask=mask)) == pytest.approx(-nats / tested.sum(), rel=1e-9)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("sparsely", [False, True])
def test_counts_are_negative_binomials(sized: bool, sparsely: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES", 8)  # two rows at a time
    random = np.random.RandomState(0)
    train, test = random.negative_binomial(2, 0.3, (31, 4)), random.negative_binomial(2, 0.3, (9, 4))
    train[:, 0] = 2  # less spread than Poisson
    sizes, tested = np.ones((31, 1)), np.ones((9, 1))
    if sized:
        sizes, tested = random.rand(31, 1) + 0.5, random.rand(9, 1) + 0.5
    nats = 0.0
    for column in range(4):
        rate = (train[:, [column]].sum() + 1) / (sizes.sum() + 1)
        squares = ((train[:, [column]] - rate * sizes) ** 2).sum() - (rate * sizes).sum()
        if column == 0:
            assert squares < 0
            nats += stats.poisson(rate * tested).logpmf(test[:, [column]]).sum()
        else:
            number = ((rate * sizes) ** 2).sum() / squares
            law = stats.nbinom(number, number / (number + rate * tested))
            nats += law.logpmf(test[:, [column]]).sum()
    offset = None
    if sized:
        offset = Splits(*(torch.tensor(np.log(size[:, 0])) for size in (sizes, tested, tested)))
    splits = [stored(counts, sparsely) for counts in (train, test, test)]
    observations = Counts(*splits, "made up", offset=offset)
    assert figure(observations) == pytest.approx(-nats / 36, rel=1e-9)


def stored(counts: Array, sparsely: bool) -> torch.Tensor | SparseRows:
    if not sparsely:
        return torch.tensor(counts)
    csr = sparse.csr_matrix(counts.astype("f4"))
    matrix = SparseMatrix(csr.indptr.astype(np.int64), csr.indices, csr.data, counts.shape[1], np.dtype("f4"))
    return SparseRows(matrix, torch.arange(len(counts)))


def test_a_kind_of_ones_own_has_none_until_it_is_given_one() -> None:
    rows = torch.zeros(2, 3)
    assert baseline(Observations(rows, rows, rows, "made up")) is None
