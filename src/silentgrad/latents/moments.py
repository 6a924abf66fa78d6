r"""Moments of latents, the only thing a closed form needs to know about q(z|x).

For independent latents :math:`q(z|x) = \prod_i q_i(z_i)` these are the mean and the central moments
:math:`s_n = E[(z_i - E z_i)^n]` up to the fourth, one number per latent.
:func:`silentgrad.latents.central_moments` is a registry over `torch.distributions` classes; a family joins it with one
formula::

    @silentgrad.latents.central_moments.register(MyDistribution)
    def _(q: MyDistribution) -> silentgrad.latents.Moments:
        return silentgrad.latents.Moments(mean, s2, lambda: s3, lambda: s4)

The third and the fourth are functions, called by those who need them: most decoders need two moments only, and a family
may have no more.

Latents that depend on each other within blocks (a full-covariance Gaussian, a one-hot category) have
:class:`JointMoments` instead.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError, IntractableError, UnregisteredLatentError
from silentgrad.tracing import underlying

APERY = 1.2020569031595942  # zeta(3), the third cumulant of the standard Gumbel is twice this


def _not_given() -> Tensor:
    raise IntractableError(
        "the linear precision link needs the third and fourth central moments of the latent, which its formula does "
        "not give: add them to it, Moments(mean, s2, s3, s4), or use link='exp' or LinearGaussian"
    )


@dataclass(frozen=True)
class Moments:
    """Mean and central moments of independent latents, each of the latents' shape.

    Args:
        mean: E z.
        s2: The variance.
        s3: A function that computes the third central moment. A decoder that does not need it never calls it.
        s4: A function that computes the fourth.
        symmetric: A promise that s3 is zero.
        gaussian: A promise that every cumulant beyond the second is zero. Decoders then skip the matrix products that
            would multiply zeros; leaving both promises out is always correct.
    """

    mean: Tensor
    s2: Tensor
    s3: Callable[[], Tensor] = _not_given
    s4: Callable[[], Tensor] = _not_given
    symmetric: bool = False
    gaussian: bool = False

    def k4(self) -> Tensor:
        """Fourth cumulant, s4 - 3 s2^2."""
        return self.s4() - 3 * self.s2.square()


@dataclass(frozen=True)
class JointMoments:
    """Mean `(..., size)` and covariance `(..., size, size)` of blocks of latents that depend on each other."""

    mean: Tensor
    covariance: Tensor
    gaussian: bool = False


AnyMoments = Moments | JointMoments


@singledispatch
def central_moments(q: td.Distribution) -> AnyMoments:
    """Return mean and central moments of a latent, in closed form.

    Args:
        q: A latent of a registered family. `Independent` is looked through.

    Raises:
        UnregisteredLatentError: The family has no formula; the message says what to use, or how to add one.

    Example:
        >>> central_moments(td.Bernoulli(torch.tensor([0.25]))).s3()
        tensor([0.0938])
    """
    raise UnregisteredLatentError(unregistered(q, central_moments.registry, _how_to_register(q)))


def variance_in(moments: AnyMoments) -> Tensor:
    """Return the variance of independent latents, or the covariance of others."""
    if isinstance(moments, Moments):
        return moments.s2
    return moments.covariance


def unregistered(q: object, registered: Iterable[type], remedy: str) -> str:
    """Return the message for a latent that a registry does not hold.

    Args:
        q: The latent, or what was given in its place.
        registered: The classes that the registry holds.
        remedy: How to register the class of q, or an empty string if there is nothing to register.
    """
    name = type(q).__name__
    if not isinstance(q, td.Distribution):
        return f"expected a torch.distributions.Distribution as the latent, got {name}"
    known = sorted({kind.__name__ for kind in registered} - {"object", "Independent"})
    sampled = "RLOO()"
    if q.has_rsample:
        sampled = "Reparameterized()"
    return (
        f"no closed form is registered for {name} latents. Take one of {', '.join(known)}, or an estimator that draws "
        f"samples, such as silentgrad.{sampled}, in a GuidedVAE or by itself.{remedy}"
    )


def _how_to_register(q: object) -> str:
    """Return how to register the mean and variance of a latent that knows them; of others there may be no formula."""
    moments = "Moments(q.mean, q.variance)"
    needed = ["mean", "variance"]
    if isinstance(q, td.Distribution) and q.event_shape:  # latents that depend on each other
        moments = "JointMoments(q.mean, q.covariance_matrix)"
        needed = ["mean", "covariance_matrix"]
    if not all(_finite_part(q, part) for part in needed):
        return ""
    name = type(q).__name__
    return (
        " If these are the mean and the variance of z, register them:\n"
        f"    @silentgrad.latents.central_moments.register({name})\n"
        f"    def _(q): return silentgrad.{moments}"
    )


def _finite_part(q: object, name: str) -> bool:
    """Return whether a distribution has a finite attribute; many have a mean or variance that raises, or is NaN."""
    try:
        part = getattr(q, name)
    except (AttributeError, NotImplementedError):
        return False
    if not isinstance(part, Tensor):
        return False
    return torch.compiler.is_compiling() or bool(underlying(part).isfinite().all())


def symmetric(mean: Tensor, s2: Tensor, s4: Callable[[], Tensor], gaussian: bool = False) -> Moments:
    """Return moments of a family whose third central moment is zero."""
    return Moments(mean, s2, lambda: torch.zeros_like(s2), s4, symmetric=True, gaussian=gaussian)


def from_cumulants(mean: Tensor, k2: Tensor, k3: Callable[[], Tensor], k4: Callable[[], Tensor]) -> Moments:
    """Return moments of a family that is simplest in cumulants."""
    return Moments(mean, k2, k3, lambda: k4() + 3 * k2.square())


@central_moments.register(td.Independent)
def _(q: td.Independent) -> AnyMoments:
    return central_moments(q.base_dist)


@central_moments.register(td.Normal)
def _(q: td.Normal) -> Moments:
    s2 = q.scale.square()
    return symmetric(q.loc, s2, lambda: 3 * s2.square(), gaussian=True)


@central_moments.register(td.Bernoulli)
def _(q: td.Bernoulli) -> Moments:
    s2 = q.probs * (1 - q.probs)
    return Moments(q.probs, s2, lambda: s2 * (1 - 2 * q.probs), lambda: s2 * (1 - 3 * s2))


@central_moments.register(td.Laplace)
def _(q: td.Laplace) -> Moments:
    s2 = 2 * q.scale.square()
    return symmetric(q.loc, s2, lambda: 6 * s2.square())


@central_moments.register(td.Uniform)
def _(q: td.Uniform) -> Moments:
    s2 = (q.high - q.low).square() / 12
    return symmetric((q.low + q.high) / 2, s2, lambda: 9 / 5 * s2.square())


@central_moments.register(td.Poisson)
def _(q: td.Poisson) -> Moments:
    return from_cumulants(q.rate, q.rate, lambda: q.rate, lambda: q.rate)


@central_moments.register(td.Gamma)
def _(q: td.Gamma) -> Moments:
    a, scale = q.concentration, 1 / q.rate
    return from_cumulants(a * scale, a * scale**2, lambda: 2 * a * scale**3, lambda: 6 * a * scale**4)


@central_moments.register(td.Exponential)
def _(q: td.Exponential) -> Moments:
    scale = 1 / q.rate
    return from_cumulants(scale, scale**2, lambda: 2 * scale**3, lambda: 6 * scale**4)


@central_moments.register(td.Binomial)
def _(q: td.Binomial) -> Moments:
    n, p = q.total_count, q.probs
    one = p * (1 - p)  # the variance of a single trial; cumulants add over trials
    k2 = n * one
    return from_cumulants(n * p, k2, lambda: k2 * (1 - 2 * p), lambda: k2 * (1 - 6 * one))


@central_moments.register(td.Geometric)
def _(q: td.Geometric) -> Moments:
    odds = odds_of_failure(q)
    return _negative_binomial(torch.ones_like(odds), odds)


@central_moments.register(td.NegativeBinomial)
def _(q: td.NegativeBinomial) -> Moments:
    return _negative_binomial(q.total_count, odds_of_one_more(q))


def _negative_binomial(r: Tensor, odds: Tensor) -> Moments:
    """Return moments in the odds of one more count, in which no cumulant cancels, as it would in probabilities."""
    square = odds * (1 + odds)
    k2 = r * square
    return from_cumulants(r * odds, k2, lambda: k2 * (1 + 2 * odds), lambda: k2 * (1 + 6 * square))


def odds_of_failure(q: td.Geometric) -> Tensor:
    """Return (1 - p) / p, the mean."""
    if given_as_logits(q):
        return torch.exp(-q.logits)
    return (1 - q.probs) / q.probs


def odds_of_one_more(q: td.NegativeBinomial) -> Tensor:
    """Return p / (1 - p), the mean of one failure's counts."""
    if given_as_logits(q):
        return torch.exp(q.logits)
    return q.probs / (1 - q.probs)


@central_moments.register(td.Beta)
def _(q: td.Beta) -> Moments:
    a, b = q.concentration1, q.concentration0
    n = a + b
    s2 = a * b / (n**2 * (n + 1))

    def s3() -> Tensor:
        return 2 * s2 * (b - a) / (n * (n + 2))

    def s4() -> Tensor:
        excess = 6 * ((a - b) ** 2 * (n + 1) - a * b * (n + 2)) / (a * b * (n + 2) * (n + 3))
        return s2.square() * (3 + excess)

    return Moments(a / n, s2, s3, s4)


@central_moments.register(td.Gumbel)
def _(q: td.Gumbel) -> Moments:
    b = q.scale
    k2 = (math.pi * b) ** 2 / 6
    return from_cumulants(q.mean, k2, lambda: 2 * APERY * b**3, lambda: (math.pi * b) ** 4 / 15)


@central_moments.register(td.HalfNormal)
def _(q: td.HalfNormal) -> Moments:
    third = math.sqrt(2 / math.pi) * (4 / math.pi - 1)
    fourth = 8 * (math.pi - 3) / math.pi**2
    return from_cumulants(q.mean, q.variance, lambda: third * q.scale**3, lambda: fourth * q.scale**4)


@central_moments.register(td.LogNormal)
def _(q: td.LogNormal) -> Moments:
    mean, w, w1 = q.mean, q.scale.square().exp(), q.scale.square().expm1()  # w1 = w - 1, exact for small scales
    s2 = mean**2 * w1

    def s4() -> Tensor:
        return s2.square() * (w**4 + 2 * w**3 + 3 * w**2 - 3)

    return Moments(mean, s2, lambda: mean**3 * w1**2 * (w + 2), s4)


@central_moments.register(td.StudentT)
def _(q: td.StudentT) -> Moments:
    df = required(q.df, q.df > 2, "the variance of StudentT exists only for df > 2")
    s2 = q.scale.square() * df / (df - 2)

    def s4() -> Tensor:
        four = required(df, df > 4, "the fourth moment of StudentT exists only for df > 4; use LinearGaussian")
        return s2.square() * (3 + 6 / (four - 4))

    return symmetric(q.loc, s2, s4)


@central_moments.register(td.MultivariateNormal)
@central_moments.register(td.LowRankMultivariateNormal)
def _(q: td.MultivariateNormal | td.LowRankMultivariateNormal) -> JointMoments:
    return JointMoments(q.loc, q.covariance_matrix, gaussian=True)


@central_moments.register(td.OneHotCategorical)
def _(q: td.OneHotCategorical) -> JointMoments:
    p = q.probs
    return JointMoments(p, torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2))


def both_probabilities(q: td.Bernoulli | td.Binomial) -> tuple[Tensor, Tensor]:
    """Return the probabilities of one and of zero; from logits the smaller one is as accurate as the larger."""
    if given_as_logits(q):
        return torch.sigmoid(q.logits), torch.sigmoid(-q.logits)
    return q.probs, 1 - q.probs


def given_as_logits(q: td.Bernoulli | td.Binomial | td.Geometric | td.NegativeBinomial) -> bool:
    """Return whether a latent was built from logits: torch adds the other form behind it, when first asked for it."""
    forms = [name for name in vars(q) if name in ("probs", "logits")]
    return forms[0] == "logits"


def required(value: Tensor, condition: Tensor, message: str) -> Tensor:
    """Return the value if the condition holds everywhere; otherwise raise, or NaN in a graph, which cannot raise."""
    if torch.compiler.is_compiling():
        return torch.where(condition, value, torch.nan)
    if not underlying(condition).all():
        raise DomainError(message)
    return value
