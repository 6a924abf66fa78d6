r"""Estimators made of the integrand's slope: at the latent's mean or at samples, as linear control variates.

**MuProp** is the score function on what a Taylor expansion around the mean leaves. With :math:`\mu = E z` the expansion
:math:`h(z) = f(\mu) + f'(\mu) \cdot (z - \mu)` has the expectation :math:`f(\mu)`, whose gradient backpropagation
through the mean gives. The score function only has to carry the rest:

.. math:: \nabla_l \approx (f(z) - h(z))\, (z - \mu) + \mathrm{Cov}(z)\, f'(\mu).

**Double control variates** are leave-one-out samples whose linear parts are taken out and put back in closed form. To
each of K samples belongs a linear function, the first order of a Taylor expansion, with slopes taken at the others:

.. math:: b_k = \alpha\, g_k \cdot (z_k - \mu), \qquad g_k = \frac{1}{K-1} \sum_{j \ne k} f'(z_j).

Since :math:`g_k` does not depend on :math:`z_k`, :math:`b_k` has mean 0, and :math:`E[b_k (z_k - \mu)] = \alpha\,
\mathrm{Cov}(z)\, g_k`. Leave-one-out of :math:`f - b`, with that put back, has the same expectation:

.. math:: \nabla_l \approx \frac1K \sum_k \Bigl[(f_k - b_k) - \frac{1}{K-1} \sum_{j \ne k} (f_j - b_j)\Bigr] (z_k - \mu)
          + \alpha\, \mathrm{Cov}(z)\, \frac1K \sum_k f'(z_k).

For a linear f and :math:`\alpha = 1` it has no variance. The slopes come with the gradient of the integrand's own
parameters, in one backward pass, and there :math:`\alpha` is learned too. The estimate is
:math:`A + \alpha B`, whose second moment is least at :math:`\alpha = -E[A \cdot B] / E[B \cdot B]`. Both expectations
are running averages over earlier batches, in place of the authors' descent along the gradient of the same quantity.

**Slopes are taken where they pass by**, within the backward pass (`mean_with_gradient`). Some estimators make the
gradient in the latent's parameters of the slopes :math:`f'(z)` at samples, by a rule that is not linear in them. Were
the slopes taken beforehand, a step would pass back through the integrand twice: once for the rule, and once for the
integrand's own parameters. So the integrand stands between two nodes of the graph. Its draws come out of `_Entry`, and
the mean of its K values goes through `_Exit`. In the backward pass the exit sees the cotangent c of each example, and
then the entry sees :math:`c f'(z_k) / K`, whose quotient is the slope. The rule makes of it the gradient that the entry
passes on, times c. An example with c = 0 has no part in the loss, and no gradient.

What the entry sees is the slope as long as z reaches the loss through the integrand's values alone, each example's z
through its own value. A penalty on z, or on what is computed from it, would be taken for part of the slope; where
nothing but such a penalty is differentiated, it ends at the draws. Gradients are of first order: the rule itself is not
differentiated.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import (
    ESTIMATORS,
    Estimator,
    Integrand,
    at_least,
    for_each_latent,
    mean_of_others,
    per_example,
    slope_of,
    value_with_slope,
)
from silentgrad.estimators.choices import Choices, choices_of
from silentgrad.estimators.learning import Learning, RunningMeans
from silentgrad.latents.independent import sum_over_latents
from silentgrad.tracing import batched, require_untransformed, transformed, uncompiled, widened

Rule = Callable[[Tensor, Tensor], Tensor]
"""From values `(draws, *examples)` and slopes of the draws' shape to the gradient, of the shape of one draw."""


class _Passage:
    """State that entry and exit of one integrand share."""

    values: Tensor
    cotangent: Tensor | None = None  # from the exit to the entry of one backward pass

    def __init__(self, rule: Rule) -> None:
        self.rule = rule


class _Entry(torch.autograd.Function):
    """The draws, as if they were functions of the parameter."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, draws: Tensor, passage: _Passage) -> Tensor:
        ctx.passage = passage
        return draws.clone()

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, None, None]:
        passage: _Passage = ctx.passage
        cotangent, passage.cotangent = passage.cotangent, None  # which may hold the graph that holds the passage
        if cotangent is None:
            return None, None, None
        weight = for_each_latent(cotangent, arriving[0])
        with torch.no_grad():
            slopes = arriving / torch.where(weight == 0, 1, weight) * len(arriving)
            gradient = passage.rule(passage.values, slopes)
        return torch.where(weight == 0, 0, weight * gradient), None, None


class _Exit(torch.autograd.Function):
    """The mean of the values; the draws are an input so that the entry is reached where these do not depend on z."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, entered: Tensor, passage: _Passage) -> Tensor:
        ctx.passage, ctx.count = passage, len(values)
        passage.values = values.detach()
        return values.mean(0)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        ctx.passage.cotangent = cotangent
        return (cotangent / ctx.count).expand(ctx.count, *cotangent.shape), None, None


@uncompiled  # which would call the rule before there are values
def mean_with_gradient(
    integrand: Integrand, q: td.Distribution, draws: Tensor, parameter: Tensor, rule: Rule
) -> Tensor:
    """Average an integrand over draws, with its own gradient and, in a parameter of the latents, that of a rule.

    Args:
        integrand: The function of z.
        q: The latents.
        draws: Values of z, `(draws, *shape of z)`.
        parameter: The parameter, of the shape of z.
        rule: From the integrand's values and slopes at the draws to the mean's gradient in the parameter, every
            example's from its own numbers. It is called within each backward pass.
    """
    passage = _Passage(rule)
    entered = _Entry.apply(parameter, draws, passage)
    values = torch.stack([per_example(integrand(z), q) for z in entered])
    values = values.to(torch.promote_types(values.dtype, parameter.dtype))
    mean: Tensor = _Exit.apply(values, entered, passage)
    return mean


@ESTIMATORS.register("muprop")
class MuProp(Estimator):
    """Backpropagation through the mean, made unbiased by the score function.

    Take it when the integrand is nearly linear between its values; nothing has to be learned. In the benchmark
    `RLOO` varies less after training, at the same evaluations.

    References:
        Gu, Levine, Sutskever and Mnih 2016, MuProp: Unbiased Backpropagation for Stochastic Neural Networks, ICLR.
    """

    unbiased = True
    latents = (td.Bernoulli, td.OneHotCategorical)
    calls = 2

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        require_untransformed(type(self).__name__)
        choices = choices_of(q, self)
        z = choices.sample()
        f = per_example(integrand(z), q)
        mean = choices.mean.detach()
        with torch.enable_grad():
            at_mean = integrand(mean.requires_grad_())
            slope = slope_of(at_mean, mean)
        score = choices.score(z).detach()
        rest = (f - at_mean).detach() - sum_over_latents(slope * score, f.shape)
        gradient = for_each_latent(rest, score) * score + choices.covariance_times(slope)
        return value_with_slope(f, gradient, choices.logits)


class ScaledControl(Learning):
    """An estimator of several samples and a control variate made of slopes, whose scale it learns in passing.

    Args:
        samples: Number of samples, at least two.
        scale: Value of alpha before anything was seen.
        decay: Decay of the running averages that alpha is learned by.
    """

    latents = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, samples: int, scale: float, decay: float) -> None:
        super().__init__()
        self.calls = self.samples = at_least(2, samples, self)
        self.start_scale = scale
        self.averages = RunningMeans(2, decay)  # of -A B and of B B

    @property
    def scale(self) -> Tensor:
        """Alpha, of the batches seen so far."""
        products, squares = self.averages()
        return torch.where(squares > 0, products / squares, self.start_scale)

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        require_untransformed(type(self).__name__)
        choices = choices_of(q, self)
        draws = torch.stack([choices.sample() for _ in range(self.samples)])
        scale, unseen = self.scale, learning  # of earlier batches, however often this one is passed back

        def controlled(f: Tensor, slopes: Tensor) -> Tensor:
            nonlocal unseen
            plain, control = self.parts(choices, draws, f, slopes)
            if unseen and not (transformed() or batched(plain) or batched(control)):
                wide = widened(control)
                self.averages.remember(-widened(plain) * wide, wide.square())
                unseen = False
            return plain + scale.to(plain) * control

        return mean_with_gradient(integrand, q, draws, choices.logits, controlled)

    @abstractmethod
    def parts(self, choices: Choices, draws: Tensor, f: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradient without the control variate, and that variate, of values and slopes at the draws."""


@ESTIMATORS.register("double-cv")
class DoubleCV(ScaledControl):
    """Leave-one-out with a Taylor expansion as a second control variate.

    Take it when the integrand is smooth and close to linear in z, as those of wide decoders are.

    Args:
        samples: Number of samples, at least two.
        scale: Value of alpha before anything was seen.
        decay: Decay of the running averages that alpha is learned by.

    References:
        Titsias and Shi 2022, Double Control Variates for Gradient Estimation in Discrete Latent Variable Models,
        AISTATS.
    """

    unbiased = True

    def __init__(self, samples: int = 4, scale: float = 1.0, decay: float = 0.99) -> None:
        super().__init__(samples, scale, decay)

    def parts(self, choices: Choices, draws: Tensor, f: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        score = choices.score(draws).detach()
        linear = sum_over_latents(mean_of_others(slopes) * score, f.shape)
        control = choices.covariance_times(slopes.mean(0)) - self._leave_one_out(linear, score)
        return self._leave_one_out(f, score), control

    def _leave_one_out(self, values: Tensor, score: Tensor) -> Tensor:
        """Return the score function's gradient, each sample with the mean of the others as its baseline."""
        gain = values - mean_of_others(values)
        return (for_each_latent(gain, score) * score).mean(0)
