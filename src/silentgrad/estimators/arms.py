r"""ARMS: n samples of bits that avoid each other, compared as REINFORCE leave-one-out compares independent ones.

Let :math:`b_1, \ldots, b_n` be exchangeable draws of a bit of mean p with correlation :math:`\rho`. The leave-one-out
estimator is the mean over pairs of :math:`\tfrac12 (f(b_i) - f(b_j)) (b_i - b_j)`, and a pair counts where it differs,
which is :math:`1 - \rho` times as often as for independent draws. So

.. math:: \nabla_l E f = E\Bigl[\frac{1}{1 - \rho} \cdot \frac{1}{n} \sum_i
          \Bigl(f(b_i) - \frac{1}{n-1} \sum_{j \ne i} f(b_j)\Bigr)(b_i - p)\Bigr],

with a factor of its own for every bit. Negative correlation spreads the samples out, and their mean varies less.

The draws come from a Dirichlet copula. Of exponential numbers :math:`e_1, \ldots, e_n` the shares
:math:`d_i = e_i / \sum_j e_j` are uniform on the simplex, and :math:`(1 - d_i)^{n-1}` is a uniform number. Let m be the
probability of the bit's rarer value; a sample takes that value where :math:`(1 - d_i)^{n-1} < m`. Two do with
probability :math:`P = \max(0, 2 m^{1/(n-1)} - 1)^{n-1}`, hence

.. math:: \frac{1}{1 - \rho} = \frac{m (1 - m)}{m - P} = \frac{1 - m}{1 - \max(0, 2 - m^{-1/(n-1)})^{n-1}}.

For n = 2 that is :math:`1 - m` and the estimator is DisARM's; for independent draws it is 1 and leave-one-out's.
"""

import torch
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import logsigmoid

from silentgrad.errors import DomainError
from silentgrad.estimators.base import (
    Estimator,
    Integrand,
    bernoulli_of,
    exponential_like,
    for_each_latent,
    per_example,
    value_with_slope,
)


class Arms(Estimator):
    """Several mutually antithetic samples of bits, debiased for their correlation.

    Take it for bits when a step may cost several evaluations: it varies less than as many independent samples.

    Args:
        samples: Number of samples, at least two.
        antithetic: Whether the samples avoid each other; independent ones are those of `Rloo`.

    References:
        Dimitriev and Zhou 2021, ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables, ICML.
    """

    unbiased = True
    latents = (td.Bernoulli,)

    def __init__(self, samples: int = 4, antithetic: bool = True) -> None:
        super().__init__()
        if samples < 2:
            raise DomainError(f"Arms needs at least two samples, got {samples}")
        self.samples, self.antithetic = samples, antithetic

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return self.samples

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        base = bernoulli_of(q, self)
        logits = base.logits
        bits, factor = self._draw(base)
        values = []
        for b in bits:
            values.append(per_example(integrand(b), q))
        f = torch.stack(values)
        gain = (f - f.mean(0)).detach() * self.samples / (self.samples - 1)
        score = torch.stack(bits) - torch.sigmoid(logits.detach())
        slope = factor * (for_each_latent(gain, score) * score).mean(0)
        return value_with_slope(f.mean(0), slope, logits)

    def _draw(self, base: td.Bernoulli) -> tuple[list[Tensor], Tensor]:
        """The samples, and 1 / (1 - correlation) of every bit."""
        if not self.antithetic:
            bits = [base.sample() for _ in range(self.samples)]
            return bits, torch.ones_like(bits[0])
        logits, others = base.logits.detach(), self.samples - 1
        log_rarer = logsigmoid(-logits.abs())
        exponential = exponential_like(logits.expand(self.samples, *logits.shape))
        total = exponential.sum(0)
        bits = []
        for i in range(self.samples):
            rest = exponential[:i].sum(0) + exponential[i + 1 :].sum(0)  # total - e_i would round to 0
            rarer = others * torch.log(rest / total) < log_rarer
            bits.append((rarer ^ (logits > 0)).to(logits.dtype))
        both_over_rarer = (2 - torch.exp(-log_rarer / others)).clamp(min=0) ** others
        return bits, torch.sigmoid(logits.abs()) / (1 - both_over_rarer)
