r"""Likelihoods: a callable from u to the distribution of x, elementwise, and what it may declare beside that.

For Gaussian latents :math:`u = w \cdot z + b` is exactly Gaussian, so :math:`E[\log p(x|u)]` is a function of its mean
and variance and an integral over one number, with no sampling variance. That is all a plain callable gets, by
Gauss-Hermite quadrature. A likelihood that knows better says so by attributes of its class:

- `needs`, one of :class:`Needs`, and the method that goes with it: then it takes other latents too;
- `sign`, -1 if what it needs is log E[e^-u] instead of log E[e^u];
- `expected_log_prob(x, mean, variance)`, a rule of its own for the expectation;
- `exactness`, what that rule's result is. Unless it is declared, an approximation;
- `u_at_mean(mean)`, the u at which x has this mean, and its derivative: for a start from data;
- `rough_u(x)`, a u for every entry of the data: then a start takes the principal components of these instead;
- `start_spread(means, variances)`, which starts its own parameters from those of the data;
- `mean_of_u(mean, variance)`, the mean of u of a variance at which x has a mean, for the same;
- `with_scale(scale)`, the likelihood of entries that were measured with known standard deviations;
- `event_dim`, how many of the last dimensions of an example are one event, as the categories of a share; 0 by default;
- `derivatives(x, mean, variance)`, for a fit: the expectation less `log_base(x)`, a function of counts x and its own
  parameters alone, and its first two derivatives in the mean; otherwise they are found by autograd. With a parameter of
  its own, `own_derivatives(x, mean, *derivatives)` has the first two in that;
- `concave`, whether it is in u, for every x;
- `neutral`, a number that x can be, which stands where an entry is missing; 0 unless it is declared.

Its results are of the shape of x, without the last `event_dim` dimensions.
"""

import copy
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.errors import ShapeError
from silentgrad.exactness import Exactness
from silentgrad.latents.moments import required
from silentgrad.mathematics.quadrature import gauss_hermite
from silentgrad.tracing import widened

Likelihood = Callable[[Tensor], td.Distribution]
Module = TypeVar("Module", bound=nn.Module)


class Needs(Enum):
    """What of u the expected log-likelihood depends on, which decides the latents that the likelihood takes.

    - `MOMENTS`: the mean and the variance. `expected_log_prob(x, mean, variance)` holds for every u that has them.
    - `GENERATING_FUNCTION`: E[u] and log E[e^u], or log E[e^-u]. `expectation(x, mean, log_mass)` takes them.
    - `GAUSSIAN`: u has to be Gaussian.
    """

    MOMENTS = "moments"
    GENERATING_FUNCTION = "generating function"
    GAUSSIAN = "Gaussian"


def needs_of(likelihood: Likelihood) -> Needs:
    """Return what a likelihood declares to need; a Gaussian u if it declares nothing."""
    needs: Needs = getattr(likelihood, "needs", Needs.GAUSSIAN)
    return needs


def sign_of(likelihood: Likelihood) -> int:
    """Return the sign of u in the exponential whose expectation a likelihood needs."""
    sign: int = getattr(likelihood, "sign", 1)
    return sign


def exactness_of(likelihood: Likelihood) -> Exactness:
    """Return what a likelihood declares its expectation to be; an approximation if it declares nothing."""
    exactness: Exactness = getattr(likelihood, "exactness", Exactness.APPROXIMATION)
    return exactness


def expected_log_prob(likelihood: Likelihood, x: Tensor, mean: Tensor, variance: Tensor, nodes: int = 32) -> Tensor:
    """Return E[log p(x|u)] for u ~ N(mean, variance), elementwise.

    Args:
        likelihood: From u to the distribution of x; one of this package or any callable.
        x: Data, of any shape.
        mean: Mean of u, of the same shape.
        variance: Variance of u, of the same shape.
        nodes: Number of nodes of the quadrature, for a likelihood without a rule of its own.

    Example:
        >>> import torch
        >>> from silentgrad.likelihoods import Bernoulli
        >>> zero, one = torch.zeros(3), torch.ones(3)
        >>> expected_log_prob(Bernoulli(), one, zero, one)
        tensor([-0.8061, -0.8061, -0.8061])
        >>> expected_log_prob(lambda u: td.Bernoulli(logits=u), one, zero, one)
        tensor([-0.8061, -0.8061, -0.8061])
    """
    if not x.shape == mean.shape == variance.shape:
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, mean, variance))
        raise ShapeError(f"x, mean and variance have to be of one shape, got {shapes}")
    x, mean, variance = widened(x), widened(mean), widened(variance)
    variance = required(variance, variance >= 0, "a variance cannot be negative or NaN")
    if needs_of(likelihood) is Needs.GENERATING_FUNCTION:
        log_mass = torch.add(variance / 2, mean, alpha=sign_of(likelihood))
        return from_generating_function(likelihood, x, mean, log_mass)
    own_rule = getattr(likelihood, "expected_log_prob", None)
    if own_rule is not None:
        result: Tensor = own_rule(x, mean, variance)
        return result
    return gauss_hermite(lambda u: likelihood(u).log_prob(x), mean, variance, nodes)


def with_tensors(module: Module, **tensors: Tensor) -> Module:
    """Return a module like another, with these tensors for its parameters, of which the gradients go on."""
    other = copy.copy(module)
    other._parameters = {**module._parameters, **tensors}  # type: ignore[dict-item]
    return other


def from_generating_function(likelihood: Likelihood, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
    """Return E[log p(x|u)] from E[u] and log E[e^u], or log E[e^-u], for a likelihood that needs no more."""
    result: Tensor = likelihood.expectation(x, mean, log_mass)  # type: ignore[attr-defined]
    return result
