r"""Antithetic samples of bits: samples that avoid each other, compared by the integrand's values alone.

**ARM** compares a sample with its mirror image. With one uniform number u for a bit of logit l, :math:`z = [u >
\sigma(-l)]` and :math:`z' = [u < \sigma(l)]` are both draws of it, and by Stein's identity for the exponential
distributions behind u

.. math:: \nabla_l E f = E_u\bigl[(f(z) - f(z'))\,(u - \tfrac12)\bigr],

for all bits at once, with a number u for each. Where z and z' are equal the gradient is 0. **DisARM** averages
over what the pair leaves open of u.

**ARMS** and **CARMS** compare n samples as REINFORCE leave-one-out compares independent ones, in pairs. For an
independent pair of a category with probabilities p,

.. math:: \nabla_l E f = E\bigl[\tfrac12 (f(z) - f(z'))\,(z - z')\bigr],

and a pair of equal categories counts nothing. So any exchangeable draws will do under which every two different
categories i and j can meet: a pair that does with probability :math:`P_{ij}` has the weight :math:`p_i p_j / P_{ij}`.
Each latent of an example has a weight of its own, since f of one sample does not know what the other's latents are.

The draws are such that equal pairs are rare. Categories are put in order, the rarest first, and a sample stops at a
category with probability :math:`s_i = p_i / (p_i + p_{i+1} + \ldots)`, at most 1/2. There the n samples decide by a
Dirichlet copula. Of exponential numbers :math:`e_1, \ldots, e_n` the shares :math:`d_k = e_k / \sum_m e_m` are
uniform on the simplex, and :math:`(1 - d_k)^{n-1}` is a uniform number; a sample stops where that is below
:math:`s_i`. Two stop together with probability

.. math:: s_i q_i, \qquad q_i = \max\bigl(0, 2 - s_i^{-1/(n-1)}\bigr)^{n-1},

which is less than :math:`s_i^2`. A pair that differs first at i went on together before, one of both stopped there, and
the other went its own way. The probabilities of all of that multiply, so

.. math:: \frac{p_i p_j}{P_{ij}} = \frac{1 - s_i}{1 - q_i} \prod_{c < i} \frac{(1 - s_c)^2}{1 - 2 s_c + s_c q_c}
          \qquad \text{for } i \text{ before } j.

For two categories, a bit, the product is empty and this is ARMS; for n = 2 the weight is :math:`1 - s_1`, the
probability of the likelier value, and the estimator is DisARM's. For independent draws all weights are 1, and it is
leave-one-out's.

**DisARM-Tree** makes a category of bits, those at the inner nodes of a balanced tree over the categories: the bit at a
node says in which half to go on, and its logit is the logarithm of the odds of the right half. All bits are drawn in
antithetic pairs, so that there are two paths, two categories, and two values of f. For the logit :math:`\alpha` of a
node with the pair b, b' and :math:`p = \sigma(\alpha)`,

.. math:: \nabla_\alpha E f = E\bigl[\tfrac12 (f - f')\, w\bigr], \qquad w = \begin{cases}
          (b - b')\, \sigma(|\alpha|) & \text{on both paths: DisARM} \\
          b - p \text{ or } -(b' - p) & \text{on one: the same, averaged over the bit that does not matter} \\
          0 & \text{on none: the difference of f does not depend on the pair.} \end{cases}
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import (
    ESTIMATORS,
    Estimator,
    Integrand,
    at_least,
    bernoulli_of,
    coin_like,
    exponential_like,
    for_each_latent,
    per_example,
    uniform_like,
    value_with_slope,
)
from silentgrad.estimators.choices import FURTHEST, OneHots, choices_of


@ESTIMATORS.register("arm")
class ARM(Estimator):
    """Augment-REINFORCE-merge: antithetic pairs of bits, weighted by the noise that drew them.

    Take it to compare with the literature; `DisARM` has the same cost and never more variance.

    References:
        Yin and Zhou 2019, ARM: Augment-REINFORCE-Merge Gradient for Stochastic Binary Networks, ICLR.
    """

    unbiased = True
    latents = (td.Bernoulli,)
    calls = 2

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        logits = bernoulli_of(q, self).logits
        u = uniform_like(logits)
        above = (u > torch.sigmoid(-logits.detach())).to(logits.dtype)
        below = (u < torch.sigmoid(logits.detach())).to(logits.dtype)
        f_above, f_below = per_example(integrand(above), q), per_example(integrand(below), q)
        slope = for_each_latent(f_above - f_below, logits) * (u - 0.5).to(logits.dtype)
        return value_with_slope((f_above + f_below) / 2, slope, logits)


def antithetic_pair(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Draw every bit twice, so that the two agree as seldom as two can, as True and False."""
    differ = uniform_like(logits) < 2 * torch.sigmoid(-logits.abs())
    likelier, coin = logits > 0, coin_like(logits)
    return torch.where(differ, coin, likelier), torch.where(differ, ~coin, likelier)


@ESTIMATORS.register("disarm")
class DisARM(Estimator):
    """Antithetic pairs of bits, their common noise integrated out (Dong, Mnih and Tucker 2020; also U2G).

    Take it for bits at two evaluations a step: unbiased, nothing to learn, no gradient of the integrand needed.

    With m the smaller of the two probabilities of a bit, the bits of a pair differ with probability 2 m, in either
    order; otherwise both are the likelier one.

    References:
        Dong, Mnih and Tucker 2020, DisARM: An Antithetic Gradient Estimator for Binary Latent Variables, NeurIPS.
    """

    unbiased = True
    latents = (td.Bernoulli,)
    calls = 2

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        logits = bernoulli_of(q, self).logits
        first, second = (bits.to(logits.dtype) for bits in antithetic_pair(logits.detach()))
        f_first, f_second = per_example(integrand(first), q), per_example(integrand(second), q)
        weight = (first - second) * torch.sigmoid(logits.abs()) / 2
        return value_with_slope((f_first + f_second) / 2, for_each_latent(f_first - f_second, weight) * weight, logits)


@ESTIMATORS.register("carms")
class CARMS(Estimator):
    """Several mutually antithetic samples of categories, each pair weighted by how often it would be independent.

    Take it for categories when a step may cost several evaluations: it varies less than as many independent samples.

    Args:
        samples: Number of samples, at least two.

    References:
        Dimitriev and Zhou 2021, CARMS: Categorical-Antithetic-REINFORCE Multi-Sample Gradient Estimator, NeurIPS.
    """

    unbiased = True
    latents: ClassVar[tuple[type[td.Distribution], ...]] = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, samples: int = 4) -> None:
        super().__init__()
        self.calls = self.samples = at_least(2, samples, self)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        choices = choices_of(q, self)
        ones = choices.one_hots()
        draws, weights = self._antithetic(ones)
        f = torch.stack([per_example(integrand(choices.from_one_hots(z)), q) for z in draws])
        difference = (f.unsqueeze(1) - f).detach()  # of every two samples
        pairs = for_each_latent(difference, draws.unsqueeze(1)[..., 0]) * weights
        slope = (pairs.sum(1).unsqueeze(-1) * draws).sum(0) / (self.samples * (self.samples - 1))
        return value_with_slope(f.mean(0), slope, ones.logits)

    @torch.no_grad()
    def _antithetic(self, ones: OneHots) -> tuple[Tensor, Tensor]:
        """Draw samples `(n, *latents, categories)`, and weigh each pair of them `(n, n, *latents)`."""
        log_p, order = torch.log_softmax(ones.logits, -1).sort(-1)  # the rarest first
        log_stop = (log_p - log_p.flip(-1).logcumsumexp(-1).flip(-1))[..., :-1]
        others = self.samples - 1
        exponential = exponential_like(log_stop.expand(self.samples, *log_stop.shape))
        total, stops = exponential.sum(0), []
        for k in range(self.samples):
            rest = exponential[:k].sum(0) + exponential[k + 1 :].sum(0)  # total - e_k would round to 0
            stops.append(others * torch.log(rest / total) < log_stop)
        ends = torch.ones_like(torch.stack(stops)[..., :1])
        rank = torch.cat((torch.stack(stops), ends), -1).to(torch.uint8).argmax(-1)  # of the first to stop at
        chosen = order.expand(self.samples, *order.shape).gather(-1, rank.unsqueeze(-1))
        draws = torch.zeros_like(ones.logits).expand(self.samples, *order.shape).scatter(-1, chosen, 1.0)
        stop = log_stop.exp()
        together = (2 - torch.exp(-log_stop / others)).clamp(min=0) ** others
        goes_on = (1 - stop).square() / (1 - 2 * stop + stop * together)
        before = torch.cat((torch.ones_like(goes_on[..., :1]), goes_on[..., :-1]), -1).cumprod(-1)
        weight = before * (1 - stop) / (1 - together)
        first = torch.minimum(rank.unsqueeze(1), rank).clamp(max=max(weight.shape[-1] - 1, 0))
        return draws, weight.expand(*first.shape, -1).gather(-1, first.unsqueeze(-1)).squeeze(-1)


@ESTIMATORS.register("arms")
class ARMS(CARMS):
    """Several mutually antithetic samples of bits: `CARMS` for two categories.

    Take it for bits when a step may cost several evaluations: it varies less than as many independent samples.

    Args:
        samples: Number of samples, at least two.

    References:
        Dimitriev and Zhou 2021, ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables, ICML.
    """

    latents = (td.Bernoulli,)


@ESTIMATORS.register("disarm-tree")
class DisARMTree(Estimator):
    """Categories as paths through a tree of bits, which are drawn in antithetic pairs.

    Take it for categories at two evaluations a step: unbiased, nothing to learn, no gradient of the integrand needed.

    References:
        Dong, Mnih and Tucker 2021, Coupled Gradient Estimators for Discrete Latent Variables, NeurIPS.
    """

    unbiased = True
    latents = (td.Bernoulli, td.OneHotCategorical)
    calls = 2

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        choices = choices_of(q, self)
        logits = choices.one_hots().logits
        categories = logits.shape[-1]
        paths = torch.ones_like(logits[..., :1], dtype=torch.bool).expand(2, *logits.shape[:-1], 1)
        score = torch.zeros_like(logits[..., 0])
        for alpha in _node_logits(logits):
            pair = torch.stack(antithetic_pair(alpha.detach()))
            score = score + (_node_weights(pair, paths, alpha.detach()) * alpha).sum(-1)
            halves = torch.stack((~pair, pair), -1)
            paths = (paths.unsqueeze(-1) & halves).flatten(-2)
        first, second = (choices.from_one_hots(path[..., :categories].to(logits.dtype)) for path in paths)
        f_first, f_second = per_example(integrand(first), q), per_example(integrand(second), q)
        mean = (f_first + f_second) / 2
        return value_with_slope(mean, for_each_latent(f_first - f_second, score) / 2, score)


def _node_logits(logits: Tensor) -> list[Tensor]:
    """Compute the log-odds of the right half at a balanced tree's nodes, `(..., 1)` at the root, then twice as many."""
    missing = 2 ** (logits.shape[-1] - 1).bit_length() - logits.shape[-1]
    mass = torch.nn.functional.pad(torch.log_softmax(logits, -1), (0, missing), value=-2 * FURTHEST)
    levels = []
    while mass.shape[-1] > 1:
        left, right = mass.unflatten(-1, (-1, 2)).unbind(-1)
        levels.append(right - left)
        mass = torch.logaddexp(left, right)
    return levels[::-1]


def _node_weights(pair: Tensor, paths: Tensor, alpha: Tensor) -> Tensor:
    """Compute the factor of half the difference of f in the gradient of each node's logit."""
    first, second = pair.to(alpha.dtype)
    (on_first, on_second), p = paths, torch.sigmoid(alpha)
    both = (first - second) * torch.sigmoid(alpha.abs())
    one = torch.where(on_first, first - p, torch.where(on_second, p - second, 0))
    return torch.where(on_first & on_second, both, one)
