r"""Weights of a sum that depend on z: :math:`w(z) = \mathrm{softmax}(l)`, :math:`l = B z + e`.

The bound needs :math:`E\,l`, one matrix product, and :math:`\log E[e^l]` or more: :math:`E\,l + \tfrac12
\mathrm{Var}\,l` for Gaussian latents; the cumulant generating function for the others, or a proxy.

**Proxies** are bounds of :math:`\log E[e^{t \cdot z}]` by one matrix product for all outputs. The generating function
itself needs an array of outputs by batch by latents. Both bounds are separable: a function of each latent's probability
times a function of its weight. For a Bernoulli variable of probability p they are

.. math:: p t + \tfrac12 \sigma^2 t^2, \quad \sigma^2 = \frac{\tanh y}{4 y}, \quad y = \tfrac12 \log \frac{1 - p}{p}
    \qquad \text{(Kearns and Saul)},

.. math:: p t + p (1 - p) \left( e^{|t|} - 1 - |t| \right) \qquad \text{(Bennett)}.

The first grows more slowly with t. The second is tight to second order in t for every p, and exact where p is 0 or 1;
the first is not, since its :math:`\sigma^2` falls only as :math:`1 / \log p`. The smaller of the two sums over latents
is taken.

A one-hot z has :math:`t \cdot z = \min t + (t - \min t) \cdot z`, and for :math:`t \ge 0`

.. math:: E[e^{t \cdot z}] = 1 + \sum_c p_c (e^{t_c} - 1) \le \prod_c \left( 1 + p_c (e^{t_c} - 1) \right),

because no term of the product is negative: each category may be taken as a Bernoulli variable by itself, once its
weights start at zero. The more certain one category is, the tighter the bound.

References:
    Bennett (1962), Probability inequalities for the sum of independent random variables, JASA 57.
    Kearns and Saul (1998), Large deviation methods for approximate probabilistic inference, UAI.
"""

import math

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.projection import tilt, variance_of
from silentgrad.decoders.sums import Gate
from silentgrad.latents.independent import base_of
from silentgrad.latents.moments import AnyMoments, Moments, both_probabilities

SERIES = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835)  # of tanh(y) / y in powers of y^2


def proxy(q: td.Distribution, weights: Tensor) -> Tensor:
    """Return the smaller bound's excess over t . E z, `(outputs, batch)`, for every row t of the weights.

    Args:
        q: Bernoulli or one-hot latents, `latents` numbers for each example.
        weights: `(outputs, latents)`.

    Example:
        >>> q = td.Bernoulli(torch.tensor([[0.5]]))
        >>> proxy(q, torch.tensor([[2.0]]))
        tensor([[0.5000]])
        >>> proxy(td.Bernoulli(torch.tensor([[1.0]])), torch.tensor([[2.0]]))
        tensor([[0.]])
    """
    q = base_of(q)
    assert isinstance(q, td.Bernoulli | td.OneHotCategorical)
    latents = weights.shape[1]
    if isinstance(q, td.Bernoulli):
        spread, logits, (one, zero) = weights, q.logits, both_probabilities(q)
    else:
        groups = weights.unflatten(1, (-1, q.event_shape[-1]))
        spread, (one, zero) = (groups - groups.amin(-1, keepdim=True)).flatten(1), (q.probs, 1 - q.probs)
        logits = q.probs.logit(torch.finfo(q.probs.dtype).eps)  # cut near 0 and 1, where the proxy then is larger
    by_squares = spread.square() @ kearns_saul(logits).reshape(-1, latents).T / 2
    return torch.minimum(by_squares, _bennett(spread.abs(), (one * zero).reshape(-1, latents)))


def _bennett(sizes: Tensor, variance: Tensor) -> Tensor:
    """Return Bennett's excess, infinite for rows whose exponentials would leave the range of numbers."""
    most = math.log(torch.finfo(sizes.dtype).max) / 2
    within = sizes.clamp(max=most)
    excess = (torch.expm1(within) - within) @ variance.T
    return torch.where(sizes.amax(1, keepdim=True) <= most, excess, torch.inf)


def kearns_saul(logits: Tensor) -> Tensor:
    """Return the variance proxy of a Bernoulli variable, between 0 and a quarter."""
    y = logits / 2
    near = y.abs() < 0.05
    square = torch.where(near, y, 0).square()
    series = torch.zeros_like(y)
    for coefficient in reversed(SERIES):
        series = series * square + coefficient
    far = torch.where(near, 1, y)
    return torch.where(near, series, far.tanh() / far) / 4


class LinearGate(nn.Module):
    """Logits l = B z + e of each component in each region.

    With a proxy, Bernoulli and one-hot latents take one matrix product in place of their generating function, which is
    tighter and needs an array of logits by batch by latents.
    """

    def __init__(self, latent_dim: int, regions: int, components: int, proxy: bool = True) -> None:
        super().__init__()
        self.regions, self.components, self.proxy = regions, components, proxy
        self.logits = nn.Linear(latent_dim, regions * components)
        nn.init.zeros_(self.logits.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits at z, `(*batch, regions, components)`."""
        return self.logits(z).unflatten(-1, (self.regions, self.components))

    def start(self, logits: Tensor) -> None:
        """Start the logits at z = 0, `(regions, components)`."""
        with torch.no_grad():
            self.logits.bias.copy_(logits.flatten())

    def expected(self, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Gate:
        """Return E l and log E[e^l] or a bound of it, for latents of this mean, `(*batch, latent_dim)`."""
        means = mean.reshape(-1, mean.shape[-1])
        expected = torch.addmm(self.logits.bias.unsqueeze(1), self.logits.weight, means.T)
        log_mass = self._log_mass(expected, mean, moments, q)
        return Gate(self._in_regions(expected), self._in_regions(log_mass))

    def _log_mass(self, expected: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
        """Return log E[e^l] or a bound of it, `(regions * components, batch)`."""
        weight = self.logits.weight
        if isinstance(moments, Moments) and moments.gaussian:
            variances = moments.s2.reshape(-1, mean.shape[-1])
            return torch.addmm(expected, weight.square(), variances.T, alpha=0.5)
        if moments.gaussian:
            return expected + variance_of(self.logits, moments, mean).reshape(-1, len(weight)).T / 2
        if self.proxy and isinstance(base_of(q), td.Bernoulli | td.OneHotCategorical):
            return expected + proxy(q, weight)
        log_mass = tilt(q, moments, mean, self.logits, self.logits).log_mass
        return log_mass.reshape(-1, len(weight)).T

    def _in_regions(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (self.regions, self.components))
