"""Every latent family and every decoder, with an oracle. Listing a member tests it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

import naive_circuits
import oracles
import silentgrad as sg
from oracles import Expectation
from silentgrad.decoders.gates import LinearGate

BATCH, OUTPUTS = 2, 3
Draw = Callable[[float, float], Tensor]


@dataclass(frozen=True)
class Latent:
    """A family: how to draw its parameters, build it from them, and integrate over it."""

    name: str
    parameters: Callable[[Draw], tuple[Tensor, ...]]
    build: Callable[..., td.Distribution]
    expectation: Callable[[td.Distribution], Expectation]
    latents: int = 2
    gaussian: bool = False
    independent: bool = True
    tilts: bool = True  # has a cumulant generating function

    def draw(self, seed: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def uniform(low: float, high: float) -> Tensor:
            unit = torch.rand(BATCH, 2, generator=generator, dtype=torch.float64)
            return (low + (high - low) * unit).requires_grad_()

        return list(self.parameters(uniform))


def spread(low: Callable[[td.Distribution], Tensor], high: Callable[[td.Distribution], Tensor], power: int) -> object:
    """Edges of panels from `low` to `high`, denser towards `low`."""
    steps = torch.linspace(0, 1, 12, dtype=torch.float64).pow(power).reshape(-1, 1, 1)
    return oracles.by_density(lambda q: low(q) + (high(q) - low(q)) * steps)


def around(
    centre: Callable[[td.Distribution], Tensor], reach: Callable[[td.Distribution], Tensor], power: int
) -> object:
    """Edges of panels on both sides of a centre, which is itself an edge, denser towards it."""
    steps = torch.linspace(-1, 1, 21, dtype=torch.float64).reshape(-1, 1, 1)
    return oracles.by_density(lambda q: centre(q) + reach(q) * steps.sign() * steps.abs().pow(power))


def zero(q: td.Distribution) -> Tensor:
    return torch.zeros(q.batch_shape, dtype=torch.float64)


def lower(raw: Tensor, diagonal: Tensor) -> Tensor:
    """A Cholesky factor of size two from its entry below the diagonal and its diagonal."""
    return torch.diag_embed(diagonal) + raw[:, :1, None] * torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=raw.dtype)


_grid = oracles.on_grid
ALL_LATENTS = [
    Latent(
        "Normal", lambda u: (u(-1, 1), u(0.3, 1.2)), td.Normal,
        _grid(oracles.standard_normal(lambda q, x: q.loc + q.scale * x)), gaussian=True,
    ),
    Latent(
        "Independent", lambda u: (u(-1, 1), u(0.3, 1.2)), lambda m, s: td.Independent(td.Normal(m, s), 1),
        lambda q: _grid(oracles.standard_normal(lambda q, x: q.loc + q.scale * x))(q.base_dist), gaussian=True,
    ),
    Latent("Bernoulli", lambda u: (u(0.1, 0.9),), td.Bernoulli, _grid(oracles.bits)),
    Latent("Bernoulli logits", lambda u: (u(-3, 3),), lambda s: td.Bernoulli(logits=s), _grid(oracles.bits)),
    Latent(
        "Laplace", lambda u: (u(-1, 1), u(0.3, 1)), td.Laplace,
        _grid(oracles.moved(
            [n * abs(n) for n in range(-8, 9)], lambda t: torch.exp(-t.abs()) / 2, lambda q, t: q.loc + q.scale * t,
            lambda q: -q.loc / q.scale,  # that of the standard prior
        )),
    ),
    Latent("Uniform", lambda u: (u(-2, 0), u(0.5, 2)), td.Uniform, _grid(oracles.uniform)),
    Latent("Poisson", lambda u: (u(0.5, 4),), td.Poisson, _grid(oracles.counts(70, oracles.poisson))),
    Latent(
        "Gamma", lambda u: (u(3, 5), u(1, 2)), td.Gamma,
        _grid(spread(zero, lambda q: (q.concentration + 120) / q.rate, 3)),
    ),
    Latent("Chi2", lambda u: (u(6, 9),), td.Chi2, _grid(spread(zero, lambda q: 2 * q.df + 240, 3))),
    Latent("Exponential", lambda u: (u(1, 3),), td.Exponential, _grid(spread(zero, lambda q: 60 / q.rate, 1))),
    Latent(
        "Binomial", lambda u: (u(0.1, 0.9),), lambda p: td.Binomial(5, p), _grid(oracles.counts(5, oracles.binomial)),
    ),
    Latent("Geometric", lambda u: (u(0.4, 0.9),), td.Geometric, _grid(oracles.counts(120, oracles.geometric))),
    Latent(
        "NegativeBinomial", lambda u: (u(1, 4), u(0.1, 0.5)), td.NegativeBinomial,
        _grid(oracles.counts(140, oracles.negative_binomial)),
    ),
    Latent(
        "Beta", lambda u: (u(3, 5), u(3, 5)), td.Beta,
        _grid(oracles.by_density(
            lambda q: (1 - torch.linspace(0, math.pi, 17, dtype=torch.float64).cos().reshape(-1, 1, 1)).expand(
                -1, *q.batch_shape) / 2
        )),
        tilts=False,
    ),
    Latent(
        "Gumbel", lambda u: (u(-1, 1), u(0.3, 1)), td.Gumbel,
        _grid(oracles.by_density(
            lambda q: q.loc + q.scale * (
                65 * torch.linspace(0, 1, 17, dtype=torch.float64).square().reshape(-1, 1, 1) - 5
            )
        )),
    ),
    Latent(
        "HalfNormal", lambda u: (u(0.3, 2),), td.HalfNormal,
        _grid(oracles.moved(
            [2.0 * n for n in range(7)], lambda t: 2 / math.sqrt(2 * math.pi) * torch.exp(-t.square() / 2),
            lambda q, t: q.scale * t,
        )),
    ),
    Latent(
        "LogNormal", lambda u: (u(-1, 0.5), u(0.1, 0.4)), td.LogNormal,
        _grid(oracles.standard_normal(lambda q, x: (q.loc + q.scale * x).exp(), order=80)), tilts=False,
    ),
    Latent(
        "StudentT", lambda u: (u(30, 40), u(-1, 1), u(0.3, 1)), td.StudentT,
        _grid(around(lambda q: q.loc, lambda q: 200 * q.scale, 3)), tilts=False,
    ),
    Latent(
        "MultivariateNormal", lambda u: (u(-1, 1), u(-1, 1), u(0.3, 1)),
        lambda m, raw, diagonal: td.MultivariateNormal(m, scale_tril=lower(raw, diagonal)),
        oracles.correlated_normal, gaussian=True, independent=False,
    ),
    Latent(
        "LowRankMultivariateNormal", lambda u: (u(-1, 1), u(-1, 1), u(0.2, 1)),
        lambda m, factor, diagonal: td.LowRankMultivariateNormal(m, factor.unsqueeze(-1), diagonal),
        oracles.correlated_normal, gaussian=True, independent=False,
    ),
    Latent(
        "OneHotCategorical", lambda u: (u(-2, 2), u(-2, 2), u(-2, 2)),
        lambda *logits: td.Independent(td.OneHotCategorical(logits=torch.stack(logits, -1)), 1),
        oracles.categories, latents=6, independent=False,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Decoder:
    """A decoder: how to build it, what its closed form claims to be, and for which latents it has one."""

    name: str
    build: Callable[[int], sg.LinearDecoder | sg.Circuit]
    oracle: Callable[[Any, Tensor, Expectation], Tensor]
    tractable: Callable[[Latent], bool] = lambda latent: True

    def make(self, latents: int, seed: int = 1) -> sg.LinearDecoder | sg.Circuit:
        torch.manual_seed(seed)
        decoder = self.build(latents).double()
        for module in decoder.modules():
            # Small weights: v stays so far from zero that quadrature resolves log v^2, and every tilt is in its domain.
            if isinstance(module, sg.LinearPrecisionGaussian):
                torch.nn.init.uniform_(module.precision_affine.weight, -0.06, 0.06)
            if isinstance(module, LinearGate):
                torch.nn.init.uniform_(module.logits.weight, -0.06, 0.06)
        return decoder


def by_sampling_law(decoder: sg.LinearDecoder, x: Tensor, expectation: Expectation) -> Tensor:
    """The definition: E[log p(x|z)], with p as `decoder(z)` states it."""
    return expectation(lambda z: decoder(z).log_prob(x))


def with_log_term(log_term: Callable[[Callable[[Callable[[Tensor], Tensor]], Tensor]], Tensor]) -> Callable:
    """The linear link with E[log v^2] replaced by a function of expectations of v, per output."""

    def oracle(decoder: sg.LinearPrecisionGaussian, x: Tensor, expectation: Expectation) -> Tensor:
        # Computed once: every expectation is over the same z.
        @cache
        def u(z: Tensor) -> Tensor:
            return decoder.affine(z.reshape(len(z), BATCH, -1))

        @cache
        def v(z: Tensor) -> Tensor:
            return decoder.precision_affine(z.reshape(len(z), BATCH, -1))

        squares = expectation(lambda z: ((x - u(z)) * v(z)).square())
        logs = log_term(lambda f: expectation(lambda z: f(v(z))))
        return 0.5 * (logs - squares - math.log(2 * math.pi)).sum(-1)

    return oracle


def at_expected_leaves(decoder: sg.Circuit, x: Tensor, expectation: Expectation) -> Tensor:
    """The bound by its definition, from leaves and gates integrated one by one."""
    return naive_circuits.bound(decoder, decoder.region_graph, x, expectation)


def paper_taylor(expectation_of_v: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> Tensor:
    square, fourth = expectation_of_v(torch.square), expectation_of_v(lambda v: v**4)
    return square.log() - (fourth - square.square()) / (2 * square.square())


def edgeworth_density(expectation_of_v: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> Tensor:
    """log v^2 integrated against the Gaussian density times its Edgeworth polynomial."""
    mean = expectation_of_v(lambda v: v)
    variance, k3, s4 = (expectation_of_v(lambda v, n=n: (v - mean) ** n) for n in (2, 3, 4))
    skewness, kurtosis = k3 / variance**1.5, s4 / variance**2 - 3
    x, w = (a.reshape(-1, 1, 1) for a in oracles.hermite(64))
    he3, he4, he6 = x**3 - 3 * x, x**4 - 6 * x**2 + 3, x**6 - 15 * x**4 + 45 * x**2 - 15
    density = 1 + skewness / 6 * he3 + kurtosis / 24 * he4 + skewness.square() / 72 * he6
    return (w * density * (mean + variance.sqrt() * x).square().log()).sum(0)


def off_centre(decoder: sg.StandardizedGaussian) -> sg.StandardizedGaussian:
    """With centres and deviations that differ between outputs."""
    decoder.center.copy_(torch.tensor([-0.5, 0.0, 2.0]))
    with torch.no_grad():
        decoder.log_scale.copy_(torch.tensor([-1.0, 0.3, 1.0]))
    return decoder


ALL_DECODERS = [
    Decoder(
        "Normal likelihood", lambda d: sg.LinearLikelihood(d, OUTPUTS, sg.likelihoods.Normal(OUTPUTS)), by_sampling_law
    ),
    Decoder("units of the deviation", lambda d: off_centre(sg.StandardizedGaussian(d, OUTPUTS)), by_sampling_law),
    Decoder("fixed variance", lambda d: sg.LinearGaussian(d, OUTPUTS, variance=0.3), by_sampling_law),
    Decoder(
        "fixed variance per output",
        lambda d: sg.LinearGaussian(d, OUTPUTS, variance=torch.tensor([0.1, 0.5, 2.0])), by_sampling_law,
    ),
    Decoder(
        "linear link, exact", lambda d: sg.LinearPrecisionGaussian(d, OUTPUTS, log_term="exact"), by_sampling_law,
        lambda latent: latent.gaussian,
    ),
    Decoder(
        "linear link, edgeworth", lambda d: sg.LinearPrecisionGaussian(d, OUTPUTS, log_term="edgeworth"),
        with_log_term(edgeworth_density), lambda latent: latent.independent or latent.gaussian,
    ),
    Decoder(
        "linear link, auto", lambda d: sg.LinearPrecisionGaussian(d, OUTPUTS),
        with_log_term(edgeworth_density), lambda latent: latent.independent or latent.gaussian,
    ),
    Decoder(
        "linear link, taylor", lambda d: sg.LinearPrecisionGaussian(d, OUTPUTS, log_term="taylor"),
        with_log_term(paper_taylor), lambda latent: latent.independent or latent.gaussian,
    ),
    Decoder(
        "exponential link", lambda d: sg.LinearPrecisionGaussian(d, OUTPUTS, link="exp"), by_sampling_law,
        lambda latent: latent.tilts,
    ),
    Decoder(
        "mixture", lambda d: sg.Mixture(d, OUTPUTS, components=2, per="example", proxy=False), at_expected_leaves,
        lambda latent: latent.tilts,
    ),
]  # fmt: skip


class Posterior(torch.nn.Module):
    """The exact posterior of a linear decoder whose columns are orthogonal: the bound it gives is tight."""

    def __init__(self, decoder: sg.LinearGaussian) -> None:
        super().__init__()
        self.inner = decoder

    def forward(self, x: Tensor) -> td.Independent:
        weight, variance = self.inner.affine.weight, self.inner.variance
        precision = 1 + weight.square().sum(0) / variance
        mean = (x.flatten(1) - self.inner.affine.bias) @ weight / variance / precision
        return td.Independent(td.Normal(mean, precision.rsqrt().expand_as(mean)), 1)
