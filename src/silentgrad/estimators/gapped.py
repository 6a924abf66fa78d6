r"""Gapped straight-through: logits that are moved by no more than the sample asks for, in place of noise.

Straight-through Gumbel-Softmax works because its soft sample has its largest place where the hard one is, and by a
margin. Both can be had without noise. With D the sample, the logits l are moved by constants

.. math:: m_1 = (\max l - l_D)\, D, \qquad m_2 = (l + \gamma - \max l)_+ (1 - D),

so that :math:`l + m_1 - m_2` has its maximum at D and a gap of at least :math:`\gamma` below it. The gradient is that
of :math:`\mathrm{softmax}_\tau(l + m_1 - m_2)`. A bit is two categories with the logits 0 and l; the difference of the
moved logits is :math:`s \max(s l, \gamma)` with :math:`s = 2z - 1`.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Estimator, Integrand, per_example, straight_through
from silentgrad.estimators.choices import choices_of


class GappedStraightThrough(Estimator):
    """A soft sample that agrees with the hard one by a margin, without noise beside the sample's own.

    Take it as `GumbelRao` without its draws: one softmax, about as little variance.

    Args:
        temperature: Temperature of the softmax.
        gap: Margin between the logit of the sample and all others.

    References:
        Fan, Chi, Rudnicky and Ramadge 2022, Training Discrete Deep Generative Models via Gapped Straight-Through
        Estimator, ICML.
    """

    unbiased = False
    latents = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, temperature: float = 1.0, gap: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise DomainError(f"the temperature has to be positive, got {temperature}")
        if not gap >= 0:
            raise DomainError(f"the gap has to be at least 0, got {gap}")
        self.temperature, self.gap = temperature, gap

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        choices = choices_of(q, self)
        z = choices.sample()
        with torch.no_grad():
            moves = choices.gapped(z, self.gap) - choices.logits
        soft = choices.relaxed(choices.logits + moves, self.temperature)
        return per_example(integrand(straight_through(z, soft)), q)
