"""Every latent family and every decoder, with an oracle. Listing a member tests it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

import oracles
import silentgrad as sg
from naive_circuits import bound as at_expected_leaves
from oracles import Expectation, Parameter
from silentgrad import likelihoods
from silentgrad.decoders.gates import LinearGate
from silentgrad.decoders.likelihood import own_parameters
from silentgrad.decoders.standardized import StandardizedDecoder

BATCH, OUTPUTS = 2, 3
Shape = tuple[int, ...]
Draw = Callable[[float, float], Tensor]
gaussian, tilts = attrgetter("gaussian"), attrgetter("tilts")  # of a `Latent`


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


def panels(centre: Parameter, reach: Parameter, steps: Tensor) -> Callable[[td.Distribution], Expectation]:
    """Panels between `centre + steps * reach`."""
    edges = steps.double().reshape(-1, 1, 1)
    return oracles.on_grid(oracles.by_density(lambda q: centre(q) + reach(q) * edges))


def zero(q: td.Distribution) -> Tensor:
    return torch.zeros(q.batch_shape, dtype=torch.float64)


def lower(raw: Tensor, diagonal: Tensor) -> Tensor:
    """A Cholesky factor of size two from its entry below the diagonal and its diagonal."""
    return torch.diag_embed(diagonal) + raw[..., :1, None] * torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=raw.dtype)


UP, BOTH = torch.linspace(0, 1, 17), torch.linspace(-1, 1, 21)
_grid = oracles.on_grid
_normal = _grid(oracles.standard_normal(lambda q, x: q.loc + q.scale * x))
ALL_LATENTS = [
    Latent("Normal", lambda u: (u(-1, 1), u(0.3, 1.2)), td.Normal, _normal, gaussian=True),
    Latent("Independent", lambda u: (u(-1, 1), u(0.3, 1.2)), lambda m, s: td.Independent(td.Normal(m, s), 1),
           lambda q: _normal(q.base_dist), gaussian=True),
    Latent("Bernoulli", lambda u: (u(0.1, 0.9),), td.Bernoulli, _grid(oracles.bits)),
    Latent("Bernoulli logits", lambda u: (u(-3, 3),), lambda s: td.Bernoulli(logits=s), _grid(oracles.bits)),
    Latent("Laplace", lambda u: (u(-1, 1), u(0.3, 1)), td.Laplace, _grid(oracles.moved(
        [n * abs(n) for n in range(-8, 9)], lambda t: torch.exp(-t.abs()) / 2, lambda q, t: q.loc + q.scale * t,
        lambda q: -q.loc / q.scale,  # that of the standard prior
    ))),
    Latent("Uniform", lambda u: (u(-2, 0), u(0.5, 2)), td.Uniform,
           _grid(oracles.moved([0.0, 0.5, 1.0], torch.ones_like, lambda q, t: q.low + (q.high - q.low) * t))),
    Latent("Poisson", lambda u: (u(0.5, 4),), td.Poisson, _grid(oracles.counts(70, oracles.poisson))),
    Latent("Gamma", lambda u: (u(3, 5), u(1, 2)), td.Gamma,
           panels(zero, lambda q: (q.concentration + 120) / q.rate, UP**3)),
    Latent("Chi2", lambda u: (u(6, 9),), td.Chi2, panels(zero, lambda q: 2 * q.df + 240, UP**3)),
    Latent("Exponential", lambda u: (u(1, 3),), td.Exponential, panels(zero, lambda q: 60 / q.rate, UP)),
    Latent("Binomial", lambda u: (u(0.1, 0.9),), partial(td.Binomial, 5), _grid(oracles.counts(5, oracles.binomial))),
    Latent("Geometric", lambda u: (u(0.4, 0.9),), td.Geometric, _grid(oracles.counts(120, oracles.geometric))),
    Latent("NegativeBinomial", lambda u: (u(1, 4), u(0.1, 0.5)), td.NegativeBinomial,
           _grid(oracles.counts(140, oracles.negative_binomial))),
    Latent("Beta", lambda u: (u(3, 5), u(3, 5)), td.Beta,
           panels(zero, lambda q: zero(q) + 1, (1 - torch.cos(math.pi * UP)) / 2), tilts=False),
    Latent("Gumbel", lambda u: (u(-1, 1), u(0.3, 1)), td.Gumbel,
           panels(lambda q: q.loc, lambda q: q.scale, 65 * UP**2 - 5)),
    Latent("HalfNormal", lambda u: (u(0.3, 2),), td.HalfNormal, _grid(oracles.moved(
        [2.0 * n for n in range(7)], lambda t: 2 / math.sqrt(2 * math.pi) * torch.exp(-t.square() / 2),
        lambda q, t: q.scale * t,
    ))),
    Latent("LogNormal", lambda u: (u(-1, 0.5), u(0.1, 0.4)), td.LogNormal,
           _grid(oracles.standard_normal(lambda q, x: (q.loc + q.scale * x).exp(), order=80)), tilts=False),
    Latent("StudentT", lambda u: (u(30, 40), u(-1, 1), u(0.3, 1)), td.StudentT,
           panels(lambda q: q.loc, lambda q: 200 * q.scale, BOTH**3), tilts=False),
    Latent("MultivariateNormal", lambda u: (u(-1, 1), u(-1, 1), u(0.3, 1)),
           lambda m, raw, diagonal: td.MultivariateNormal(m, scale_tril=lower(raw, diagonal)),
           oracles.correlated_normal, gaussian=True, independent=False),
    Latent("LowRankMultivariateNormal", lambda u: (u(-1, 1), u(-1, 1), u(0.2, 1)),
           lambda m, factor, diagonal: td.LowRankMultivariateNormal(m, factor.unsqueeze(-1), diagonal),
           oracles.correlated_normal, gaussian=True, independent=False),
    Latent("OneHotCategorical", lambda u: (u(-2, 2), u(-2, 2), u(-2, 2)),
           lambda *logits: td.Independent(td.OneHotCategorical(logits=torch.stack(logits, -1)), 1),
           oracles.categories, latents=6, independent=False),
]  # fmt: skip


# Parameters at which a family's formulas branch, beside the usual ones that every family is also tested at.
SPECIAL: dict[str, list[list[list[list[float]]]]] = {
    "Bernoulli": [[[[0.0, 0.5], [1.0, 0.3]]], [[[0.5, 0.5], [0.5, 0.5]]], [[[0.0, 1.0], [1.0, 0.0]]]],
    "Bernoulli logits": [[[[0.0, 0.0], [-40.0, 40.0]]], [[[-800.0, 0.3], [0.2, 800.0]]]],
    "Binomial": [[[[0.0, 0.5], [1.0, 0.3]]]],
    "Geometric": [[[[1.0, 0.5], [0.4, 1.0]]]],
    "Poisson": [[[[1e-9, 1.0], [2.0, 1e-9]]]],
    "NegativeBinomial": [[[[1.0, 2.0], [1.0, 3.0]], [[1e-9, 0.3], [0.5, 1e-9]]]],
    "Normal": [[[[0.0, 0.0], [0.0, 1.0]], [[1e-9, 1.0], [1.0, 1e-9]]]],
    "Laplace": [[[[0.0, 0.0], [0.0, 1.0]], [[1e-6, 1.0], [1.0, 1e-6]]]],
    "Uniform": [[[[0.0, -1.0], [-0.5, 0.0]], [[1e-9, 1.0], [0.5, 2.0]]]],
    "HalfNormal": [[[[1e-6, 1.0], [2.0, 1e-6]]]],
}  # fmt: skip


def reals(batch: int, *shape: int) -> Tensor:
    """Numbers on both sides of zero."""
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def counts(batch: int, *shape: int) -> Tensor:
    """Counts up to six, some of them zero."""
    rates = torch.full((batch, *shape), 1.5, dtype=torch.float64)
    return torch.poisson(rates, generator=torch.Generator().manual_seed(2)).clamp(max=6)


def bits(batch: int, *shape: int) -> Tensor:
    return counts(batch, *shape).clamp(max=1)


def one_hot(batch: int, *shape: int) -> Tensor:
    return torch.nn.functional.one_hot(reals(batch, *shape).argmax(-1), shape[-1]).double()


def positive(batch: int, *shape: int) -> Tensor:
    return counts(batch, *shape) + 0.5


def gaussian_or_independent(latent: Latent) -> bool:
    return latent.gaussian or latent.independent


def everything(latent: Latent) -> bool:
    return True


@dataclass(frozen=True)
class Decoder:
    """A decoder: how to build it, its data, what its closed form claims to be, and for which latents it has one.

    `families` are those whose oracle is worth its time, all of them if there are none.
    """

    name: str
    build: Callable[[int, Shape], Any]
    oracle: Callable[[Any, Tensor, Expectation], Tensor]
    tractable: Callable[[Latent], bool] = everything
    data: Callable[..., Tensor] = reals
    families: tuple[str, ...] = ()

    def make(self, latents: int, seed: int = 1, shape: Shape = (OUTPUTS,)) -> Any:
        torch.manual_seed(seed)
        decoder = self.build(latents, shape).double()
        for module in decoder.modules():
            # Small weights: v stays so far from zero that quadrature resolves log v^2, and every tilt is in its domain.
            if isinstance(module, sg.LinearPrecisionGaussian):
                torch.nn.init.uniform_(module.precision_affine.weight, -0.06, 0.06)
            if isinstance(module, LinearGate):
                torch.nn.init.uniform_(module.logits.weight, -0.06, 0.06)
            if isinstance(module, sg.LinearLikelihood):
                torch.nn.init.uniform_(module.affine.weight, -0.25, 0.25)
                for parameter in own_parameters(module.likelihood):
                    torch.nn.init.uniform_(parameter, -0.1, 0.3)  # wide enough for the oracle to resolve
            if isinstance(module, StandardizedDecoder) and module.context is not None:
                torch.nn.init.uniform_(module.shifts.weight, -0.3, 0.3)
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


def by_bound_of_zeros(decoder: sg.LinearLikelihood, x: Tensor, expectation: Expectation) -> Tensor:
    """The bound by its definition, from log-probabilities of counts that are integrated one by one."""
    likelihood = decoder.likelihood
    counted = expectation(lambda z: likelihood.counts(u_of(decoder, z)).log_prob(x))
    inflation = likelihood.zero_logit.sigmoid()
    counted = counted + (1 - inflation).log()
    return torch.where(x == 0, (inflation + counted.exp()).log(), counted).sum(-1)


def by_bound_of_shares(decoder: sg.LinearLikelihood, x: Tensor, expectation: Expectation) -> Tensor:
    """The bound by its definition, from u and e^u integrated one by one."""
    means, masses = expectation(lambda z: u_of(decoder, z)), expectation(lambda z: u_of(decoder, z).exp())
    total = x.sum(-1)
    ways = torch.lgamma(total + 1) - torch.lgamma(x + 1).sum(-1)
    return ways + (x * means).sum(-1) - total * masses.sum(-1).log()


def u_of(decoder: sg.LinearLikelihood, z: Tensor) -> Tensor:
    return decoder.affine(z.reshape(len(z), BATCH, -1))


def by_bound_of_levels(decoder: sg.DiscretizedLogistic, x: Tensor, expectation: Expectation) -> Tensor:
    """The bound by its definition: log(1 + e^u) at the root of the expected square of u, around half its mean."""
    scale = decoder.log_scale.exp()

    def softplus(sign: int, shift: float) -> Tensor:
        def u(z: Tensor) -> Tensor:
            return sign * ((decoder.center - x - shift) / scale + u_of(decoder, z))

        root = expectation(lambda z: u(z).square()).sqrt()
        return expectation(u) / 2 + (2 * (root / 2).cosh()).log()

    below, above = softplus(1, 0.5).where(x < decoder.levels - 1, 0), softplus(-1, -0.5).where(x > 0, 0)
    width = (-torch.expm1(-1 / scale)).log().where((x > 0) & (x < decoder.levels - 1), 0)
    return (width - below - above).sum(-1)


def flat(statistics: Sequence[Tensor]) -> Tensor:
    """All statistics of each example side by side."""
    return torch.cat([statistic.flatten(1) for statistic in statistics], 1)


def statistics_of(decoder: Any, x: Tensor, expectation: Expectation) -> Tensor:
    """Expectations of a decoder's statistics, as they stand at each z."""
    return expectation(
        lambda z: flat(decoder.statistics(x.repeat(len(z), 1), z.flatten(0, 1))).unflatten(0, z.shape[:2])
    )


def off_centre(decoder: sg.StandardizedGaussian) -> sg.StandardizedGaussian:
    """With centres and deviations that differ between outputs."""
    decoder.center.copy_(torch.linspace(-0.5, 2, len(decoder.center)))
    with torch.no_grad():
        decoder.log_scale.copy_(torch.linspace(-1, 1, len(decoder.center)))
    return decoder


GAUSSIANS = [
    Decoder("units of the deviation", lambda d, s: off_centre(sg.StandardizedGaussian(d, s)), by_sampling_law),
    Decoder("fixed variance", lambda d, s: sg.LinearGaussian(d, s, variance=0.3), by_sampling_law),
    Decoder("fixed variance per output",
            lambda d, s: sg.LinearGaussian(d, s, torch.linspace(0.1, 2, math.prod(s)).reshape(s)), by_sampling_law),
    Decoder("linear link, exact", sg.LinearPrecisionGaussian, by_sampling_law, gaussian_or_independent,
            families=("Normal", "Independent", "MultivariateNormal", "LowRankMultivariateNormal")),
    Decoder("linear link, auto", sg.LinearPrecisionGaussian, with_log_term(edgeworth_density), gaussian_or_independent),
    Decoder("linear link, taylor", lambda d, s: sg.LinearPrecisionGaussian(d, s, log_term="taylor"),
            with_log_term(paper_taylor), gaussian_or_independent),
    Decoder("exponential link", lambda d, s: sg.LinearPrecisionGaussian(d, s, link="exp"), by_sampling_law, tilts),
]  # fmt: skip

FEW = ("Normal", "Bernoulli", "Poisson", "Uniform", "LogNormal", "MultivariateNormal", "OneHotCategorical")


def with_likelihood(
    likelihood: Callable[[Shape], Any],
    data: Callable[..., Tensor],
    tractable: Callable[[Latent], bool],
    oracle: Callable[[Any, Tensor, Expectation], Tensor] = by_sampling_law,
    name: str = "",
) -> Decoder:
    name = name or likelihood((OUTPUTS,)).__class__.__name__
    return Decoder(name, lambda d, s: sg.LinearLikelihood(d, s, likelihood(s)), oracle, tractable, data, FEW)


class KnownNoise:
    """N(u, 1/4), in a class of somebody's that inherits from nothing."""

    needs, exactness = likelihoods.Needs.MOMENTS, sg.Exactness.EXACT

    def __call__(self, u: Tensor) -> td.Normal:
        return td.Normal(u, 0.5)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self(mean).log_prob(x) - 2 * variance


class Waiting:
    """Waiting times of rate e^u, likewise."""

    needs, exactness = likelihoods.Needs.GENERATING_FUNCTION, sg.Exactness.EXACT

    def __call__(self, u: Tensor) -> td.Exponential:
        return td.Exponential(u.exp())

    def expectation(self, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
        return mean - x * log_mass.exp()


WITHOUT_A_START = ("Ordinal", "a function", "KnownNoise", "Waiting")
LIKELIHOODS = [
    with_likelihood(lambda s: likelihoods.Bernoulli(), bits, gaussian),
    with_likelihood(lambda s: likelihoods.Poisson(), counts, tilts),
    with_likelihood(likelihoods.NegativeBinomial, counts, gaussian),
    with_likelihood(likelihoods.ZeroInflatedPoisson, counts, tilts, by_bound_of_zeros),
    with_likelihood(likelihoods.ZeroInflatedNegativeBinomial, counts, gaussian, by_bound_of_zeros),
    with_likelihood(lambda s: likelihoods.Binomial(6 + torch.arange(math.prod(s)).reshape(s)), counts, gaussian),
    with_likelihood(lambda s: likelihoods.Ordinal(s, 7), counts, gaussian),
    with_likelihood(lambda s: likelihoods.Multinomial(), counts, tilts, by_bound_of_shares),
    with_likelihood(lambda s: likelihoods.Categorical(), one_hot, tilts, by_bound_of_shares),
    with_likelihood(likelihoods.LogNormal, positive, everything),
    with_likelihood(likelihoods.Gamma, positive, tilts),
    with_likelihood(likelihoods.Normal, reals, everything),
    with_likelihood(lambda s: likelihoods.StudentT(s, 3.0), reals, gaussian),
    with_likelihood(likelihoods.Logistic, reals, gaussian),
    with_likelihood(lambda s: lambda u: td.Gumbel(u, 2.0), reals, gaussian, name="a function"),
    with_likelihood(lambda s: KnownNoise(), reals, everything),
    with_likelihood(lambda s: Waiting(), positive, tilts),
]


STRUCTURED = [
    Decoder("mixture", lambda d, s: sg.Mixture(d, s, 2, per="example", proxy=False), at_expected_leaves, tilts),
    Decoder("circuit", lambda d, s: sg.Circuit(d, s, 2, gates="all", proxy=False), at_expected_leaves, tilts,
            families=("Normal", "Bernoulli", "OneHotCategorical")),
    Decoder("levels", lambda d, s: sg.DiscretizedLogistic(d, s, 7, "exact"), by_sampling_law, gaussian, counts, FEW),
    Decoder("levels, bound", lambda d, s: sg.DiscretizedLogistic(d, s, 7, "bound"), by_bound_of_levels, data=counts,
            families=FEW),
    Decoder("context", lambda d, s: sg.StandardizedGaussian(d, s, context=sg.CausalContext(s, hidden=4)),
            by_sampling_law, families=FEW),
]  # fmt: skip
BOUNDS = by_bound_of_zeros, by_bound_of_shares, by_bound_of_levels, at_expected_leaves  # all below the expectation
ALL_DECODERS = [*GAUSSIANS, *LIKELIHOODS, *STRUCTURED]


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
