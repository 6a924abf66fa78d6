"""Distributions of our own, and levels without noise: probabilities, draws, expectations and the bound."""

import itertools
import math

import pytest
import torch
from torch import distributions as td

import oracles
import silentgrad as sg
from laws import log_category
from refusals import Refusals, refusals, refused
from silentgrad import distributions

DOUBLE = torch.float64
SCALES = [1e-3, 0.1, 1.0, 30.0, 1e3]  # of a level


def decoder_of(scale: float, levels: int, expectation: str = "auto") -> sg.DiscretizedLogistic:
    """One output whose location is scale times the latent, in the middle of the levels."""
    decoder = sg.DiscretizedLogistic(1, 1, levels, expectation).double()
    with torch.no_grad():
        decoder.center.fill_((levels - 1) / 2)
        decoder.log_scale.fill_(math.log(scale))
        decoder.affine.bias.zero_()
        decoder.affine.weight.fill_(1.0)
    return decoder


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("x", [0, 1, 127, 128, 254, 255])
def test_exact_expectation_and_gradient_by_quadrature(scale: float, x: int) -> None:
    decoder, borders = decoder_of(scale, 256), tuple((level - 127) / scale for level in range(255))
    for mean, deviation in itertools.product([-3.0, 0.0, 0.4], [1e-4, 0.5, 3.0]):
        loc = torch.tensor([[mean]], dtype=DOUBLE, requires_grad=True)
        value = decoder.expected_log_prob(torch.tensor([[float(x)]], dtype=DOUBLE), td.Normal(loc, deviation))
        truth = oracles.over_gaussian(lambda u: log_category(x, u, borders), mean, deviation, (x - 127.5) / scale)
        assert value.item() == pytest.approx(truth[0], rel=1e-8, abs=1e-8)
        (slope,) = torch.autograd.grad(value.sum(), loc)
        assert slope.item() == pytest.approx(truth[1], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("expectation", ["exact", "bound"])
def test_single_precision(scale: float, expectation: str) -> None:
    decoder, x = decoder_of(scale, 256, expectation), torch.arange(256.0).unsqueeze(1)
    q = td.Normal(torch.full((256, 1), 0.3), 0.5)
    wide = decoder.expected_log_prob(x.double(), td.Normal(q.loc.double(), 0.5))
    torch.testing.assert_close(decoder.float().expected_log_prob(x, q).double(), wide, rtol=1e-4, atol=1e-4)


@refusals
def test_bad_input_is_named() -> Refusals:
    decoder, normal, one = sg.DiscretizedLogistic(2, 3, 5), td.Normal(torch.zeros(2, 2), 1.0), torch.ones(2, 3)
    coins, exact = td.Bernoulli(torch.full((2, 2), 0.5)), sg.DiscretizedLogistic(2, 3, 5, "exact")
    whole, bits = "whole levels from 0 to 4", "Bernoulli latents have no exact expectation"
    circuit = sg.Circuit(2, 3, 2, leaves=sg.DiscretizedLogistic(2, (3, 2), 5))
    cure = r"found 0.3: for images in 0 to 1, \(x \* 4\).round\(\)$"
    return {
        "between levels": (sg.DomainError, whole, lambda: decoder.expected_log_prob(0.3 * one, normal)),
        "a start between levels": (sg.DomainError, cure, lambda: decoder.init_from_data(0.3 * one)),
        "a circuit's start": (sg.DomainError, cure, lambda: circuit.init_from_data(0.3 * one)),
        "a circuit's x": (sg.DomainError, cure, lambda: circuit(0 * one[:, :2]).log_prob(0.3 * one)),
        "bytes": (sg.DomainError, r"by .to\(torch.float32\)$", lambda: circuit.expected_log_prob(one.byte(), normal)),
        "beyond them": (sg.DomainError, whole, lambda: decoder.expected_log_prob(5 * one, normal)),
        "one level": (sg.DomainError, "two levels", lambda: sg.DiscretizedLogistic(2, 3, 1)),
        "no such rule": (sg.DomainError, "'auto', 'exact' or", lambda: sg.DiscretizedLogistic(2, 3, 5, "fast")),
        "bits": (sg.IntractableError, bits, lambda: exact.expected_log_prob(one, coins)),
        "offset": (sg.SilentgradError, "offset", lambda: decoder.expected_log_prob(one, normal, offset=one[:, 0])),
    }


LEVELS = torch.tensor([-15.0, 0.5, 2.5, 4.85, 150.0], dtype=DOUBLE), torch.tensor(0.25, dtype=DOUBLE)
LOC, THRESHOLDS = torch.tensor([-30.0, -0.3, 0.5, 2.0], dtype=DOUBLE), torch.tensor([-0.7, -0.2, 1.0], dtype=DOUBLE)
RATE, LOGITS = torch.tensor([0.1, 2.0, 3.0, 5.0], dtype=DOUBLE), torch.tensor([-1.0, 0.0, 2.0, -30], dtype=DOUBLE)
LAWS = {  # with the number of their values, the others of no account, and the surest draw's least likely value
    "levels": (distributions.DiscretizedLogistic(*LEVELS, 6), 6, (0, -1, -(150 - 0.5) / 0.25)),
    "two categories": (distributions.Ordinal(LOC, THRESHOLDS[:1]), 2, (1, 0, -30 + 0.7)),
    "categories": (distributions.Ordinal(LOC, THRESHOLDS), 4, (3, 0, -30 - 1.0)),
    "more zeros": (distributions.ZeroInflated(td.Poisson(RATE), LOGITS), 60, None),
}


@pytest.mark.parametrize("name", LAWS)
def test_it_is_a_distribution(name: str) -> None:
    p, count, tail = LAWS[name]
    values = torch.arange(float(count), dtype=DOUBLE)
    oracles.require_distribution(p, values)
    if tail is not None:  # which does not underflow
        value, example, log_prob = tail
        assert p.log_prob(values[value])[example] == pytest.approx(log_prob)
    p._validate_args = True
    refused(ValueError, "support", lambda: p.log_prob(torch.full(p.batch_shape, 0.5, dtype=DOUBLE)))


def test_a_category_that_was_not_observed_counts_for_nothing() -> None:
    p = distributions.OneHotCategorical(logits=torch.tensor([[0.3, -1.0, 2.0]] * 2), validate_args=False)
    seen = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    other = td.OneHotCategorical(logits=p.logits).log_prob(seen[:1])
    torch.testing.assert_close(p.log_prob(seen), torch.tensor([other[0].item(), 0.0]))
    assert math.isclose(p.mean.sum().item(), 2, rel_tol=1e-6)
