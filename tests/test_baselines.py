"""Models without latents, against counting by hand and SciPy's distributions of the examples as they are stored."""

import bz2
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import sparse, stats
from torch import Tensor

import silentgrad as sg
from refusals import refused
from silentgrad.baselines import baselines, bits_per_dim, dequantization_floor
from silentgrad.lab.data import Binarized, Counts, Levels, Observations, Reals, SparseMatrix, SparseRows, Splits
from silentgrad.lab.runs import baseline as module
from silentgrad.lab.runs.baseline import baseline, simple_models


def smooth_images(examples: int, colors: int, levels: int) -> Tensor:
    """Images whose pixels follow the one to their left, and whose colors are alike."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(-1, 2, (examples, 1, 6, 6), generator=generator).cumsum(-1)
    noise = torch.randint(0, 2, (examples, colors, 6, 6), generator=generator)
    return (steps + levels // 2 + noise).clamp(0, levels - 1)


def test_histogram_by_counting_and_compressor_by_the_size_of_a_file() -> None:
    data = smooth_images(50, 1, 16)
    train, test = data[:40].flatten(1), data[40:].flatten(1)
    seen = (train.unsqueeze(1) == test).sum(0)  # of each output, the training examples that have its value
    bits = -((seen + 1) / (40 + 16)).log2().mean()
    assert baselines(data[:40], data[40:], 16)["histogram"] == pytest.approx(float(bits))
    data = smooth_images(50, 3, 200)
    size, found = len(bz2.compress(data[40:].numpy().astype(np.uint8).tobytes())), baselines(data[:40], data[40:])
    assert found["compressor"] == 8 * size / data[40:].numel()
    assert baselines(data[:40].byte(), data[40:].byte()) == found  # bytes are taken as they are


@pytest.mark.parametrize("colors", [1, 3])
def test_linear_prediction_uses_neighbors_and_colors_and_is_a_probability(colors: int) -> None:
    data = smooth_images(400, colors, 16)
    found = baselines(data[:300], data[300:], 16)
    assert found["linear"] < found["histogram"] - (0.1 if colors == 1 else 0.5)
    # All 4 x 4 values of two pixels, the second given the first: what cannot be summed to one is no probability.
    pairs = torch.tensor(list(itertools.product(range(4), repeat=2))).reshape(16, 1, 1, 2)
    train = torch.randint(4, (300, 1, 1, 2), generator=torch.Generator().manual_seed(1))
    total = sum(2 ** (-2 * baselines(train, pair.unsqueeze(0), 4)["linear"]) for pair in pairs)
    assert total == pytest.approx(1)


def test_a_peek_at_later_pixels_would_be_found() -> None:
    """Pixels that only the one to the right tells: nothing before them helps."""
    data = torch.randint(256, (400, 1, 6, 6), generator=torch.Generator().manual_seed(0))
    assert baselines(data[:300], data[300:])["linear"] > 7.9


def test_bits_per_dim_and_the_floor() -> None:
    density = torch.distributions.Uniform(0.0, 1.0).log_prob(torch.tensor(0.5)) * 10
    assert float(bits_per_dim(density, 10, 256)) == pytest.approx(8)
    constant = torch.full((100, 5), 7)
    assert baselines(constant, constant)["gaussian"] == pytest.approx(dequantization_floor())


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (torch.rand(5, 3), torch.ones(5, 3), "train has to be whole levels"),
        (torch.ones(5, 3), torch.full((5, 3), 256.0), "test has to be whole levels from 0 to 255"),
        (torch.ones(5, 3), torch.ones(5, 4), r"shape \(3,\), test ones \(4,\)"),
        (torch.ones(0, 3), torch.ones(5, 3), "train has to be examples"),
    ],
)
def test_bad_input_is_named(train: Tensor, test: Tensor, message: str) -> None:
    refused(sg.SilentgradError, message, lambda: baselines(train, test))


Array = NDArray[Any]


def figure(observations: Observations) -> float:
    return baseline(observations).figure


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
    found = simple_models(observations)
    assert found == baselines(torch.tensor(train), torch.tensor(test), 7)
    assert found["gaussian"] == pytest.approx(figure(observations))


def test_bits_are_coins() -> None:
    train, test = whole(5, 20, 1, 2, 2), whole(5, 9, 1, 2, 2, seed=1)
    train[:, 0, 0, 0] = 0  # never white in training, and not impossible for that
    nats = 0.0
    for place in np.ndindex(1, 2, 2):
        coin = stats.bernoulli((sum(row[place] / 4 for row in train) + 1) / 22)
        for row in test:
            chance = row[place] / 4
            nats += chance * coin.logpmf(1) + (1 - chance) * coin.logpmf(0)
    splits = torch.tensor(train), torch.tensor(test), torch.tensor(test)
    assert figure(Binarized(*splits, "made up", levels=5)) == pytest.approx(-nats / 9, rel=1e-6)


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
    observations = Reals(*splits, "made up", mask=mask)
    assert figure(observations) == pytest.approx(-nats / tested.sum(), rel=1e-9)
    assert simple_models(observations) == {"independent": figure(observations)}


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
    splits: list[Any] = [torch.tensor(counts) for counts in (train, test, test)]
    if sparsely:
        cells = [sparse.csr_matrix(counts.astype("f4")) for counts in (train, test, test)]
        parts = [(csr.indptr.astype(np.int64), csr.indices, csr.data, 4, np.dtype("f4")) for csr in cells]
        splits = [SparseRows(SparseMatrix(*own), torch.arange(len(own[0]) - 1)) for own in parts]
    observations = Counts(*splits, "made up", offset=offset)
    assert figure(observations) == pytest.approx(-nats / 36, rel=1e-9)


def test_a_kind_of_ones_own_has_none_until_it_is_given_one() -> None:
    rows = torch.zeros(2, 3)
    assert baseline(Observations(rows, rows, rows, "made up")) is None
    assert simple_models(Observations(rows, rows, rows, "made up")) == {}
