r"""Levels without noise: a logistic variable, linear in z in units of its scale, rounded; or constant probabilities.

With the borders :math:`a = (x + \tfrac12 - c) / s - u` and :math:`b = (x - \tfrac12 - c) / s - u` of a level,
:math:`u = W z + b_0`, nothing cancels in

.. math:: \log P(x|z) = -\log(1 + e^{-a}) - \log(1 + e^{b}) + \log(1 - e^{-1/s}),

of which the lowest level has the first term only and the highest the second, since they reach to infinity. The
expectation is that of two softplus functions of linear functions of z. For Gaussian latents it is an integral over one
number. For every latent by which u has a mean m and a variance V,

.. math:: E \log(1 + e^u) \le \tfrac{m}{2} + \log 2 \cosh \tfrac12 \sqrt{m^2 + V},

because :math:`\log 2 \cosh(\sqrt t / 2)` is concave in t: a lower bound of the expected log-likelihood, exact where
V is zero. A density on dequantized levels pays at least 0.25 bits an output, whatever it knows; a probability does not.

References:
    Jaakkola and Jordan (2000), Bayesian parameter estimation via variational methods, Statistics and Computing 10.
    Salimans et al. (2017), PixelCNN++, ICLR.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad import distributions
from silentgrad.decoders.checks import event_of, whole_levels
from silentgrad.decoders.context import Context
from silentgrad.decoders.linear import ClosedForm
from silentgrad.decoders.projection import variance_of
from silentgrad.decoders.standardized import StandardizedDecoder
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.latents.generating import moments_of
from silentgrad.latents.independent import base_of
from silentgrad.latents.moments import AnyMoments
from silentgrad.mathematics.quadrature import expected_softplus
from silentgrad.mathematics.softplus import softplus_bound
from silentgrad.side_info import SideInfo

Expectation = Literal["auto", "exact", "bound"]


class DiscretizedLogistic(StandardizedDecoder):
    """p(x|z) of whole levels 0, 1, ..., levels - 1: a logistic variable around center + scale (W z + b), rounded.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        levels: Number of levels.
        expectation: The "exact" expectation, which Gaussian latents have; the "bound", which is faster and for every
            latent with a mean and a variance; or the best one of the two that there is ("auto").
        context: Features of each output by earlier ones; see `CausalContext`.

    Example:
        >>> decoder = DiscretizedLogistic(2, (28, 28))
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.full((5, 28, 28), 255.0), q).shape
        torch.Size([5])
        >>> decoder.exactness(q), decoder.exactness(td.Bernoulli(torch.full((5, 2), 0.5)))
        (<Exactness.EXACT: 'exact'>, <Exactness.LOWER_BOUND: 'lower bound'>)
    """

    unit_variance = math.pi**2 / 3

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        levels: int = 256,
        expectation: Expectation = "auto",
        context: Context | None = None,
    ) -> None:
        super().__init__(latent_dim, event_shape, context)
        if levels < 2:
            raise DomainError(f"expected at least two levels, got {levels}")
        if expectation not in ("auto", "exact", "bound"):
            raise DomainError(f"expectation has to be 'auto', 'exact' or 'bound', got {expectation!r}")
        self.levels, self.expectation = levels, expectation

    def outputs(self, location: Tensor, scale: Tensor) -> td.Distribution:
        return distributions.DiscretizedLogistic(location, scale, self.levels, validate_args=False)

    def extra_repr(self) -> str:
        return f"{self.latent_dim}, {tuple(self.event_shape)}, levels={self.levels}, expectation={self.expectation!r}"

    def exactness(self, q: td.Distribution) -> Exactness:
        """Exact for Gaussian latents, unless the bound was asked for; a lower bound for all others."""
        if self._bounded(moments_of(q).gaussian):
            return Exactness.LOWER_BOUND
        return Exactness.EXACT

    def given_form(self, output_form: ClosedForm, side_info: SideInfo) -> ClosedForm:
        side_info.require_none(type(self).__name__, "offset")  # which would move x between levels
        return super().given_form(output_form, side_info)

    def _decoded(self, z: Tensor, known: SideInfo) -> td.Independent:
        known.require_none(type(self).__name__, "offset")
        return super()._decoded(z, known)

    def _bounded(self, gaussian: bool) -> bool:
        return self.expectation == "bound" or (self.expectation == "auto" and not gaussian)

    def init_from_data(self, data: Tensor, method: str = "ppca", prior: td.Distribution | None = None) -> None:
        super().init_from_data(whole_levels(data, self.levels - 1), method, prior)

    def output_form(
        self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution, features: Tensor | None = None
    ) -> Tensor:
        expected = softplus_bound
        if not self._bounded(moments.gaussian):
            if not moments.gaussian:
                name = type(base_of(q)).__name__
                raise IntractableError(f"{name} latents have no exact expectation here: take expectation='bound'")
            expected = expected_softplus
        x = whole_levels(x, self.levels - 1)
        variance = variance_of(self.affine, moments, mean)
        center, log_scale = self.in_context(features)
        per_level = torch.exp(-log_scale)
        above = self.against(x + 0.5, center) * per_level - self.affine(mean)
        log_below, log_above = -expected(-above, variance), -expected(above - per_level, variance)
        parts = (part.unflatten(-1, (x.shape[-1], -1)) for part in (per_level, log_below, log_above))
        return distributions.log_level(x.unsqueeze(-1), self.levels, *parts).flatten(-2)


class ConstantCategorical(nn.Module):
    """p(x) of outputs that take the values 0, 1, ..., categories - 1, whatever z is.

    Its components differ in their probabilities; in a circuit the weights choose between them.

    Args:
        latent_dim: Number of latents, which it does not look at.
        event_shape: Shape of one example.
        categories: Number of values of an output.

    Example:
        >>> leaf = ConstantCategorical(2, 3, categories=4)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> leaf.expected_log_probs(torch.zeros(5, 3), q).shape
        torch.Size([5, 3])
    """

    def __init__(self, latent_dim: int, event_shape: int | Sequence[int], categories: int) -> None:
        super().__init__()
        if categories < 1:
            raise DomainError(f"categories have to be positive, got {categories}")
        self.latent_dim, self.categories = latent_dim, categories
        self.event_shape = event_of(event_shape)
        self.logits = nn.Parameter(torch.randn(*self.event_shape, categories))

    def forward(self, z: Tensor) -> td.Independent:
        shape = (*z.shape[:-1], *self.logits.shape)
        return td.Independent(Numbers(logits=self.logits.expand(shape), validate_args=False), len(self.event_shape))

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        """Return log p(x), which does not depend on z, one number per example."""
        return self.expected_log_probs(x, q).sum(-1)

    def expected_log_probs(self, x: Tensor, q: td.Distribution) -> Tensor:
        """Return log p(x_o) of every output, `(*batch, outputs)`."""
        at = x.dim() - len(self.event_shape)
        if x.shape[at:] != self.event_shape:
            raise ShapeError(f"expected examples of shape {tuple(self.event_shape)}, got {tuple(x.shape)}")
        x = whole_levels(x, self.categories - 1)
        log_probs = self.logits.log_softmax(-1).expand(*x.shape, -1)
        return log_probs.gather(-1, x.long().unsqueeze(-1)).squeeze(-1).flatten(at)

    def exactness(self, q: td.Distribution) -> Exactness:
        return Exactness.EXACT

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        """Start as normal distributions rounded to the values; the weights of z have no use here."""
        values = torch.arange(self.categories).to(means)
        variances = variances.clamp(min=1 / 12)  # of rounding
        fit = -(values - means.unsqueeze(-1)).square() / (2 * variances.unsqueeze(-1))
        with torch.no_grad():
            self.logits.copy_(fit.clamp(min=-10).reshape(self.logits.shape))


class Numbers(td.Categorical):
    """Categories as numbers, which have a mean and a variance."""

    @property
    def mean(self) -> Tensor:
        return (self.probs * self._values()).sum(-1)

    @property
    def variance(self) -> Tensor:
        return (self.probs * (self._values() - self.mean.unsqueeze(-1)).square()).sum(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        if 0 in sample_shape:  # torch refuses to draw nothing
            return self.logits.new_empty(self._extended_shape(torch.Size(sample_shape)))
        return super().sample(torch.Size(sample_shape)).to(self.logits)

    def _values(self) -> Tensor:
        return torch.arange(self.logits.shape[-1]).to(self.logits)
