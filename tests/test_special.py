"""Special functions, generating functions and moments against mpmath, SciPy and their own definitions."""

import itertools
import math
from collections.abc import Callable, Sequence

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from silentgrad.mathematics.gamma import log_rising
from silentgrad.mathematics.quadrature import expected_abs
from silentgrad.mathematics.special import expected_log_square, log_square_derivatives


@pytest.mark.parametrize(("e", "v"), [(0.0, 1.0), (0.3, 1.0), (1.1, 1.0), (-2.0, 0.5), (3.0, 0.1), (0.01, 4.0)])
def test_expected_log_square_equals_quadrature(e: float, v: float) -> None:
    """The singularity at e + s x = 0 is an end of two panels."""
    with mp.workdps(30):
        s, zero = mp.sqrt(v), -mp.mpf(e) / mp.sqrt(v)
        truth = mp.quad(lambda x: mp.log((e + s * x) ** 2) * mp.npdf(x), sorted({*range(-14, 15, 2), zero}))
    value = expected_log_square(torch.tensor(e, dtype=torch.float64), torch.tensor(v, dtype=torch.float64))
    assert value.item() == pytest.approx(float(truth), rel=1e-12, abs=1e-12)


def test_known_value_and_the_papers_bias() -> None:
    zero, one = torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    assert expected_log_square(zero, one).item() == pytest.approx(-np.euler_gamma - math.log(2), abs=1e-15)
    e = torch.linspace(0, 3, 3001, dtype=torch.float64)
    square = e.square() + 1
    taylor = square.log() - (4 * e.square() + 2) / (2 * square.square())
    bias = (taylor - expected_log_square(e, torch.ones_like(e))) / 2
    assert bias.max().item() == pytest.approx(0.1812, abs=1e-4)  # half of the 0.362 nats of the log term
    assert e[bias.argmax()].item() == pytest.approx(1.1, abs=0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("order", range(1, 9))
def test_higher_derivatives_equal_mpmath(order: int, dtype: torch.dtype) -> None:
    for e in (0.0, 0.1, 0.7, 1.5, 3.0, 5.0, 5.7, 8.4, 8.6, 12.0, 40.0):
        with mp.workdps(25):
            slopes = mp.diff(
                lambda t: mp.sqrt(mp.pi) / 2 * mp.exp(-t * t) * mp.erfi(t), mp.mpf(e) / mp.sqrt(2), order - 1
            )
            truth = float(4 * mp.mpf(2) ** (-mp.mpf(order) / 2) * slopes)
        (value,) = log_square_derivatives(torch.tensor(e, dtype=dtype), torch.tensor(1.0, dtype=dtype), order, order)
        scale = math.factorial(order) * (e * e + 1) ** (-order / 2)
        assert abs(value.item() - truth) / scale < (1e-6 if dtype == torch.float64 else 2e-4)


def test_derivatives_of_every_order_agree_with_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    e = torch.randn(6, dtype=torch.float64, generator=generator).requires_grad_()
    v = (torch.rand(6, dtype=torch.float64, generator=generator) + 0.05).requires_grad_()
    assert torch.autograd.gradcheck(expected_log_square, (e, v))
    for variance in (v, torch.tensor(0.7, dtype=torch.float64, requires_grad=True)):  # one serves many means
        assert torch.autograd.gradgradcheck(expected_log_square, (e, variance))
    assert torch.autograd.gradgradcheck(expected_abs, (e, v))
    third = expected_log_square(e, v)
    for _ in range(3):
        (third,) = torch.autograd.grad(third.sum(), e, create_graph=True)
    (value,) = log_square_derivatives(e.detach(), v.detach(), 3, 3)
    torch.testing.assert_close(third, value, rtol=1e-9, atol=1e-9)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.sampled_from([torch.float32, torch.float64]))
def test_expected_log_square_is_finite_and_below_jensens_bound(e: float, v: float, dtype: torch.dtype) -> None:
    mean = torch.tensor(e, dtype=dtype, requires_grad=True)
    variance = torch.tensor(v, dtype=dtype, requires_grad=True)
    value = expected_log_square(mean, variance)
    assert all(g.isfinite() for g in (value, *torch.autograd.grad(value, (mean, variance))))
    square = mean.detach() ** 2 + variance.detach()
    if square > 1e-20:
        assert value <= square.log() + 1e-5 * (1 + square.log().abs())


def test_half_precision_is_evaluated_in_single() -> None:
    e, v = torch.tensor([0.5, 3.0], dtype=torch.bfloat16), torch.tensor([1.0, 0.25], dtype=torch.bfloat16)
    assert torch.equal(expected_log_square(e, v), expected_log_square(e.float(), v.float()).bfloat16())


RISING = [(x, r) for x in (0, 1, 3, 37, 1000, 10**6) for r in (1e-4, 0.5, 1.0, 2.5, 100.0, 1e6)]


@pytest.mark.parametrize(("dtype", "coarse", "fine"), [(torch.float64, 1e-11, 1e-11), (torch.float32, 1e-5, 1e-6)])
def test_log_rising_equals_mpmath(dtype: torch.dtype, coarse: float, fine: float) -> None:
    """The derivatives relative to themselves: likelihoods multiply them by r."""
    x, r = (column.clone() for column in torch.tensor(RISING, dtype=dtype).T)
    r.requires_grad_()
    value = log_rising(x, r)
    (slope,) = torch.autograd.grad(value.sum(), r, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), r)
    for n, (count, size) in enumerate(zip(x.tolist(), r.tolist(), strict=True)):
        with mp.workdps(40):
            both, size = mp.mpf(count) + mp.mpf(size), mp.mpf(size)
            truth = float(mp.loggamma(both) - mp.loggamma(size) - mp.loggamma(count + 1))
            slopes = float(mp.digamma(both) - mp.digamma(size)), float(mp.psi(1, both) - mp.psi(1, size))
        assert value[n].item() == pytest.approx(truth, rel=coarse, abs=coarse)
        assert slope[n].item() == pytest.approx(slopes[0], rel=fine, abs=0)
        assert bend[n].item() == pytest.approx(slopes[1], rel=fine, abs=1e-30)


# log E[exp(t z)] to fifty digits, straight from the definition of the family.
FAR = (-1e4, -800.0, -300.0, -89.0, -40.0, -3.0, -2.0, -0.3, -1e-8, 0.0, 1e-8, 0.3, 39.0, 41.0, 60.0, 89.0, 300.0, 1e4)
FIFTY_DIGITS: dict[str, tuple[Callable[[Tensor], td.Distribution], Callable, Sequence[float], Sequence[float]]] = {
    "Bernoulli": (td.Bernoulli, lambda t, p: mp.log(1 - p + p * mp.exp(t)),
                  (0.0, 1e-30, 1e-6, 0.3, 0.5, 0.9, 1.0), FAR),
    "Bernoulli logits": (lambda s: td.Bernoulli(logits=s), lambda t, s: mp.log((1 + mp.exp(s + t)) / (1 + mp.exp(s))),
                         (-60.0, -5.0, 0.0, 20.0, 60.0), FAR),
    "HalfNormal": (td.HalfNormal, lambda t, s: mp.log(mp.erfc(-s * t / mp.sqrt(2))) + (s * t) ** 2 / 2,
                   (1.0, 1e-3), [t for t in FAR if t < 5]),
    "Uniform": (lambda high: td.Uniform(0 * high, high),
                lambda t, h: mp.log(mp.expm1(h * t) / (h * t)) if t else mp.mpf(0), (1.0, 0.02), FAR),
}  # fmt: skip


def derivatives(formula: Callable, t: Tensor, parameter: Tensor, highest: int) -> list[mp.mpf]:
    """A function of t and its derivatives."""
    with mp.workdps(60):
        return [mp.diff(formula, (mp.mpf(t.item()), mp.mpf(parameter.item())), (n, 0)) for n in range(highest + 1)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", FIFTY_DIGITS)
def test_generating_functions_far_from_zero(name: str, dtype: torch.dtype) -> None:
    build, formula, parameters, points = FIFTY_DIGITS[name]
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for parameter, point in itertools.product(parameters, points):
        own, t = (torch.tensor(a, dtype=dtype).requires_grad_() for a in (parameter, point))
        k = sg.latents.generating_function(build(own))(t)
        (slope,) = torch.autograd.grad(k.value, t, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, t, retain_graph=True)
        truth = [float(derivative) for derivative in derivatives(formula, t, own, 2)]
        found = [a.item() for a in (k.value, k.mean, k.variance, slope, curvature)]
        for a, b in zip(found, [*truth, *truth[1:]], strict=True):
            assert a == pytest.approx(b, rel=tolerance, abs=tolerance), (parameter, point, found, truth)


def of_geometric(t: mp.mpf, p: mp.mpf) -> mp.mpf:
    return mp.log(p) - mp.log(1 - (1 - p) * mp.exp(t))


DIGITS = {  # of counts whose 1 - p rounds to one for small p, and p to one for large logits
    **{f"Geometric({p})": (td.Geometric, of_geometric, p, 0.3 * p) for p in (1e-6, 1e-4, 0.3, 0.999999)},
    "Geometric, logits": (lambda s: td.Geometric(logits=s),
                          lambda t, s: of_geometric(t, 1 / (1 + mp.exp(-s))), 20.0, 1.0),
    "NegativeBinomial, logits": (lambda s: td.NegativeBinomial(3.0, logits=s),
                                 lambda t, s: -3 * mp.log(1 - mp.exp(s) * mp.expm1(t)), 20.0, -1e-3),
}  # fmt: skip


@pytest.mark.parametrize("case", DIGITS)
def test_counts_keep_their_digits_in_single_precision(case: str) -> None:
    build, formula, parameter, at = DIGITS[case]
    own, t = torch.tensor([parameter, at]).unbind()
    moments, k = sg.latents.central_moments(build(own)), sg.latents.generating_function(build(own))(t)
    _, mean, s2, s3, k4 = derivatives(formula, 0 * t, own, 4)
    found = [float(moment) for moment in (moments.mean, moments.s2, moments.s3(), moments.s4())]
    assert found == pytest.approx([float(moment) for moment in (mean, s2, s3, k4 + 3 * s2**2)], rel=1e-6)
    assert [float(n) for n in k] == pytest.approx([float(n) for n in derivatives(formula, t, own, 2)], rel=2e-6)
