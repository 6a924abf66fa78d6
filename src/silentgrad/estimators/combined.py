r"""Estimators that are made of another: its mean over several draws, and a control variate around it.

**The silent control variate** is unbiased for the ELBO itself, with the linear part of its noise taken off. A circuit's
log-likelihood is :math:`F(s(z))` with :math:`F` nonlinear: s are the log-densities of its leaves and the logits of its
gates, whose expectations :math:`\bar s = E\,s` are closed forms. With the derivatives :math:`r = F'(\bar s)` held
constant,

.. math:: E[F(s(z))] = E[F(s(z)) - r \cdot (s(z) - \bar s)],

and on the right only F's second order is left to noise. The base estimator takes that function of z; what it leaves
out, :math:`r \cdot \nabla \bar s`, is added without a sample. Every r would do, so the result is unbiased.

Relatives: Paisley, Blei and Jordan take a tractable function as a control variate, Miller et al. a linearized model,
MuProp a Taylor polynomial in z. Here the expansion is in statistics with known expectations, so that functions that are
quadratic in z, as the log-density of a Gaussian leaf, are taken whole.

References:
    Paisley, Blei and Jordan 2012, Variational Bayesian Inference with Stochastic Search, ICML.
    Miller, Foti, D'Amour and Adams 2017, Reducing Reparameterization Gradient Variance, NeurIPS.
    Gu, Levine, Sutskever and Mnih 2016, MuProp: Unbiased Backpropagation for Stochastic Neural Networks, ICLR.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators.base import Estimator, Integrand, per_example
from silentgrad.estimators.integrand import StatisticalIntegrand


class _MadeOfAnother(Estimator):
    """An estimator around another, which has to draw."""

    def __init__(self, estimator: Estimator, nothing: str) -> None:
        super().__init__()
        if estimator.exact:
            raise DomainError(f"{type(estimator).__name__} draws nothing: {nothing}")
        self.estimator = estimator

    def on_epoch(self, epoch: int) -> None:
        self.estimator.on_epoch(epoch)

    def auxiliary_loss(self) -> Tensor | None:
        return self.estimator.auxiliary_loss()


class Averaged(_MadeOfAnother):
    """Averages an estimator over draws; n that are independent divide its variance by n and cost n times as much.

    Take it where an estimator has no number of samples of its own.

    Args:
        estimator: The estimator, which has to draw: an exact one has nothing to average.
        draws: Number of draws.

    Example:
        >>> from silentgrad.estimators import Reparameterized
        >>> q = td.Independent(td.Normal(torch.zeros(5, 2), torch.ones(5, 2)), 1)
        >>> Averaged(Reparameterized(), draws=16)(q, lambda z: z.square().sum(-1)).shape
        torch.Size([5])
    """

    def __init__(self, estimator: Estimator, draws: int) -> None:
        super().__init__(estimator, "there is nothing to average")
        if draws < 1:
            raise DomainError(f"a mean needs at least one draw, got {draws}")
        self.draws = draws
        self.unbiased = estimator.unbiased
        self.uses_prior = estimator.uses_prior
        self.differentiated_twice = draws * estimator.differentiated_twice

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return self.draws * self.estimator.evaluations(latents, values)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        return torch.stack([self.estimator(q, integrand) for _ in range(self.draws)]).mean(0)

    def auxiliary_loss(self) -> Tensor | None:
        loss = super().auxiliary_loss()
        return None if loss is None else loss / self.draws

    def extra_repr(self) -> str:
        return f"draws={self.draws}"


class SilentControlVariate(_MadeOfAnother):
    """Unbiased estimator with a control variate that is linear in statistics of known expectation.

    Take it for circuits and mixtures, whose bound is biased, and for likelihoods that are nonlinear in u, when noise is
    what holds training back: it costs one evaluation more than its base.

    Args:
        base: The estimator, unbiased and sampling: `Reparameterized`, `RLOO`, `Reinforce`, ...

    Example:
        >>> from silentgrad.decoders import Circuit
        >>> from silentgrad.estimators import RLOO, integrand_of
        >>> q = td.Bernoulli(torch.full((5, 2), 0.5))
        >>> SilentControlVariate(RLOO())(q, integrand_of(Circuit(2, 4), torch.zeros(5, 4))).shape
        torch.Size([5])
    """

    unbiased = True

    def __init__(self, base: Estimator) -> None:
        super().__init__(base, "there is no noise to take off")
        if not base.unbiased or base.uses_prior:
            raise DomainError(
                f"{type(base).__name__} is no unbiased estimator of an expectation, so a control variate cannot make "
                "it one"
            )
        self.differentiated_twice = base.differentiated_twice

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 1 + self.estimator.evaluations(latents, values)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        if not isinstance(integrand, StatisticalIntegrand):
            raise IntractableError(
                "SilentControlVariate needs an integrand with statistics, as integrand_of(decoder, x) gives it for "
                f"circuits, mixtures and LinearLikelihood; {type(integrand).__name__} has none"
            )
        expected = integrand.expected_statistics(q)
        slopes = _slopes(integrand.from_statistics, expected)
        centers = [each.detach() for each in expected]

        def controlled(z: Tensor) -> Tensor:
            statistics = integrand.statistics(z)
            value = per_example(integrand.from_statistics(statistics), q)
            moved = [at_z - center for at_z, center in zip(statistics, centers, strict=True)]
            return value - _dot(slopes, moved, value.dim())

        value = self.estimator(q, controlled)
        known = _dot(slopes, expected, value.dim())
        return value + (known - known.detach())


def _slopes(function: Callable[[Sequence[Tensor]], Tensor], at: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the derivatives of a function's sum over examples, as constants."""
    with torch.enable_grad():
        points = [each.detach().requires_grad_() for each in at]
        return torch.autograd.grad(function(points).sum(), points, allow_unused=True, materialize_grads=True)


def _dot(slopes: Sequence[Tensor], statistics: Sequence[Tensor], examples: int) -> Tensor:
    """Return the sum of products over all that each example has."""
    total = torch.zeros(())
    for slope, statistic in zip(slopes, statistics, strict=True):
        total = total.to(slope) + (slope * statistic).flatten(examples).sum(-1)
    return total
