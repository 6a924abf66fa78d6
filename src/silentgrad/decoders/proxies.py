r"""Variances :math:`\sigma^2` with :math:`\log E[e^{t \cdot z}] \le t \cdot E z + \tfrac12 \sum_i \sigma_i^2 t_i^2`.

The right side costs one matrix product for all outputs, where the generating function itself needs an array of outputs
by batch by latents. For a Gaussian it is the variance, and equality. For a Bernoulli variable with
:math:`y = \tfrac12 \log \frac{1 - p}{p}` it is Kearns and Saul's :math:`\sigma^2 = \tanh(y) / 4y`.

A one-hot z has :math:`t \cdot z = \min t + (t - \min t) \cdot z`, and for :math:`t \ge 0`

.. math:: E[e^{t \cdot z}] = 1 + \sum_c p_c (e^{t_c} - 1) \le \prod_c \left( 1 + p_c (e^{t_c} - 1) \right),

because no term of the product is negative: each category may be taken as a Bernoulli variable by itself, once its
weights start at zero. The more certain one category is, the tighter the bound.

References:
    Kearns and Saul (1998), Large deviation methods for approximate probabilistic inference, UAI.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.latents.independent import base_of

SERIES = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835)  # of tanh(y) / y in powers of y^2


def has_proxy(q: td.Distribution) -> bool:
    """Whether a latent that is not Gaussian has a proxy here."""
    return isinstance(base_of(q), td.Bernoulli | td.OneHotCategorical)


def proxy(q: td.Distribution, weights: Tensor) -> Tensor:
    """The bound's excess over t . E z, half the sum of the variances times squares, for every row t of the weights.

    Args:
        q: Bernoulli or one-hot latents, `latents` numbers for each example.
        weights: `(outputs, latents)`.

    Returns:
        `(outputs, batch)`.

    Example:
        >>> q = td.Bernoulli(torch.tensor([[0.5]]))
        >>> proxy(q, torch.tensor([[2.0]]))
        tensor([[0.5000]])
    """
    q = base_of(q)
    assert isinstance(q, td.Bernoulli | td.OneHotCategorical)
    latents = weights.shape[1]
    spread = weights
    if isinstance(q, td.OneHotCategorical):
        groups = weights.unflatten(1, (-1, q.event_shape[-1]))
        spread = (groups - groups.amin(-1, keepdim=True)).flatten(1)
    shape = (*q.batch_shape, *q.event_shape)
    batch = torch.Size(shape).numel() // latents
    variance = kearns_saul(_logits(q)).reshape(batch, latents)
    return spread.square() @ variance.T / 2


def _logits(q: td.Bernoulli | td.OneHotCategorical) -> Tensor:
    """Of each number's being one. Where a probability is too near to 0 or 1 they are cut: the proxy then is larger."""
    if isinstance(q, td.Bernoulli):
        return q.logits
    return q.probs.logit(torch.finfo(q.probs.dtype).eps)


def kearns_saul(logits: Tensor) -> Tensor:
    """The variance proxy of a Bernoulli variable, between 0 and a quarter."""
    y = logits / 2
    near = y.abs() < 0.05
    square = torch.where(near, y, 0).square()
    series = torch.zeros_like(y)
    for coefficient in reversed(SERIES):
        series = series * square + coefficient
    far = torch.where(near, 1, y)
    return torch.where(near, series, far.tanh() / far) / 4
