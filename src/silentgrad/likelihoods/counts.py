r"""Likelihoods of counts: Poisson, negative binomial, both with more zeros than they expect, and binomial.

With u the logarithm of the mean and :math:`v = u - \log r`, the negative binomial has

.. math:: \log p(x|u) = \log \frac{\Gamma(x + r)}{\Gamma(r)\, x!} - r \log(1 + e^v) - x \log(1 + e^{-v}),

a sum of terms of which none cancels another. :mod:`silentgrad.mathematics.softplus` has the expectations of both, and
:mod:`silentgrad.mathematics.gamma` the first term, each with a small relative error, so that the mean may be a
millionth of r or a million times r.

A count with too many zeros is a mixture of its likelihood, of weight :math:`1 - \pi`, with one that is always zero. The
logarithm of a sum of exponentials is convex, so at a zero

.. math:: E \log(\pi + (1 - \pi)\, p(0|u)) \ge \log(\pi + (1 - \pi)\, e^{E \log p(0|u)}),

a lower bound; elsewhere :math:`\log(1 - \pi) + E \log p(x|u)` is exact.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad import distributions
from silentgrad.errors import DomainError
from silentgrad.exactness import Exactness
from silentgrad.latents.independent import shape_of
from silentgrad.latents.moments import required
from silentgrad.likelihoods.base import Needs
from silentgrad.mathematics.gamma import log_rising
from silentgrad.mathematics.softplus import expected_softplus_of_both, softplus_and_slopes

SMALLEST_RATE = 0.02  # where a start from data begins: a count that was never seen should not start beyond recall
START_ZEROS = 0.1
LEAST, MOST = 0.1, 1e3  # of the inverse dispersion at a start from data


def counts_of(x: Tensor, name: str) -> Tensor:
    """Return the data themselves, if they are counts."""
    return required(
        x, (x >= 0) & (x.frac() == 0), f"the {name} likelihood takes counts: x has to be a whole number from 0 on"
    )


class LogRate(nn.Module):
    """Base of likelihoods whose u is the logarithm of the mean count: how they start from data."""

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u at which x has this mean, and its derivative."""
        rate = mean.clamp(min=SMALLEST_RATE)
        return rate.log(), 1 / rate

    def rough_u(self, x: Tensor) -> Tensor:
        """Return a u for every entry of the data, whose principal components a decoder starts with."""
        return required(x, x >= 0, "a start from data takes counts: x cannot be negative or NaN").log1p()

    def mean_of_u(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the mean of a Gaussian u of this variance at which x has this mean."""
        return mean.clamp(min=SMALLEST_RATE).log() - variance / 2


class Poisson(LogRate):
    """Counts of rate e^u. Closed for every latent with a cumulant generating function: only log E[e^u] is needed."""

    needs = Needs.GENERATING_FUNCTION
    exactness = Exactness.EXACT
    concave = True

    def forward(self, u: Tensor) -> td.Poisson:
        return td.Poisson(u.exp(), validate_args=False)

    def expectation(self, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
        """Return E[log p(x|u)] from E[u] and log E[e^u]."""
        x = counts_of(x, "Poisson")
        return x * mean - log_mass.exp() - torch.lgamma(x + 1)

    def log_base(self, x: Tensor) -> Tensor:
        """Return log p(x|u) where the rate is x, which depends on x alone, once x was found to be counts."""
        x = counts_of(x, "Poisson")
        return torch.xlogy(x, x) - x - torch.lgamma(x + 1)

    def derivatives(self, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return E[log p(x|u)] for Gaussian u, less `log_base`, and its first two derivatives in the mean.

        Less that base it is small where x is large, and known to as many digits as its parts.
        """
        rate = torch.add(mean, variance, alpha=0.5).exp_()
        first = x - rate
        log_x = x.clamp(min=1).log_()
        return torch.addcmul(first, x, torch.sub(mean, log_x, out=log_x)), first, rate.neg_()


class NegativeBinomial(LogRate):
    """Counts of mean e^u and variance e^u + e^(2u) / r, with a learned inverse dispersion r per output.

    Args:
        event_shape: Shape of one example, or () for one r that all outputs share.

    Example:
        >>> likelihood = NegativeBinomial(3)
        >>> likelihood(torch.zeros(3)).mean
        tensor([1., 1., 1.], grad_fn=<MulBackward0>)
    """

    exactness = Exactness.EXACT
    concave = True

    def __init__(self, event_shape: int | Sequence[int]) -> None:
        super().__init__()
        self.log_inverse_dispersion = nn.Parameter(torch.zeros(shape_of(event_shape)))

    @property
    def inverse_dispersion(self) -> Tensor:
        """The parameter r."""
        return self.log_inverse_dispersion.exp()

    def forward(self, u: Tensor) -> td.NegativeBinomial:
        logits = u - self.log_inverse_dispersion
        return td.NegativeBinomial(self.inverse_dispersion, logits=logits, validate_args=False)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        x = counts_of(x, "negative binomial")
        above, below = expected_softplus_of_both(mean - self.log_inverse_dispersion, variance)
        r = self.inverse_dispersion
        return log_rising(x, r.expand_as(x)) - r * above - x * below

    def log_base(self, x: Tensor) -> Tensor:
        """Return the part of log p(x|u) that depends on x and r alone."""
        x = counts_of(x, "negative binomial")
        return log_rising(x, self.inverse_dispersion.to(x).expand_as(x))

    def derivatives(self, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return E[log p(x|u)] for Gaussian u, less `log_base`, and its first two derivatives in the mean."""
        r = self.inverse_dispersion
        found = softplus_and_slopes(mean - self.log_inverse_dispersion, variance)
        value = (found.of_u * r).addcmul_(x, found.of_minus_u).neg_()
        first = (x * found.slope_of_minus).addcmul_(r.expand_as(x), found.slope, value=-1)
        return value, first, (x + r).mul_(found.bend).neg_()

    def own_derivatives(
        self, x: Tensor, mean: Tensor, value: Tensor, first: Tensor, second: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the first two derivatives of that in log r, for each entry.

        With v = u - log r, they are -r E log(1 + e^v) - g', and that plus 2 r E sigmoid(v) + g' + g''.
        """
        r = self.inverse_dispersion
        above = torch.addcmul(-value, x, mean - self.log_inverse_dispersion)  # (r + x) E log(1 + e^v)
        share = r / (r + x)
        slope = above.mul_(-share).sub_(first)
        return slope, (x - first).mul_(2 * share).add_(slope).add_(first).add_(second)

    def start_spread(self, means: Tensor, variances: Tensor) -> None:
        """Start r where counts of these means have these variances, in the shape of an example."""
        excess = (variances - means).clamp(min=torch.finfo(means.dtype).tiny)
        r = (means.square() / excess).clamp(LEAST, MOST)
        if self.log_inverse_dispersion.dim() == 0:
            r = r.log().mean().exp()
        with torch.no_grad():
            self.log_inverse_dispersion.copy_(r.log().reshape(self.log_inverse_dispersion.shape))


class ZeroInflated(LogRate):
    """A likelihood of counts, beside which a count may also be zero for another reason.

    Args:
        counts: The likelihood of counts that are not zero for that reason.
        event_shape: Shape of one example: each output learns the probability of such a zero.
    """

    exactness = Exactness.LOWER_BOUND

    def __init__(self, counts: LogRate, event_shape: int | Sequence[int]) -> None:
        super().__init__()
        self.counts = counts
        self.zero_logit = nn.Parameter(torch.full(shape_of(event_shape), math.log(START_ZEROS / (1 - START_ZEROS))))

    def forward(self, u: Tensor) -> distributions.ZeroInflated:
        return distributions.ZeroInflated(self.counts(u), self.zero_logit, validate_args=False)

    @property
    def counted(self) -> Tensor:
        """The probability that a count is not zero for that reason."""
        return torch.sigmoid(-self.zero_logit)

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        u, slope = super().u_at_mean(mean / self.counted)
        return u, slope / self.counted

    def mean_of_u(self, mean: Tensor, variance: Tensor) -> Tensor:
        return super().mean_of_u(mean / self.counted, variance)


class ZeroInflatedPoisson(ZeroInflated):
    """Poisson counts with more zeros; a lower bound for every latent with a cumulant generating function.

    Args:
        event_shape: Shape of one example.
    """

    needs = Needs.GENERATING_FUNCTION
    counts: Poisson

    def __init__(self, event_shape: int | Sequence[int]) -> None:
        super().__init__(Poisson(), event_shape)

    def expectation(self, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
        """Return a lower bound of E[log p(x|u)] from E[u] and log E[e^u]."""
        # At a rate beyond all numbers a zero is one of the others, and the slope in u is 0, not 0 times infinity.
        most = math.log(torch.finfo(log_mass.dtype).max) - 1
        log_mass = torch.where(x == 0, log_mass.clamp(max=most), log_mass)
        return distributions.zero_inflated(x, self.counts.expectation(x, mean, log_mass), self.zero_logit)


class ZeroInflatedNegativeBinomial(ZeroInflated):
    """Negative binomial counts with more zeros.

    Args:
        event_shape: Shape of one example.
    """

    counts: NegativeBinomial

    def __init__(self, event_shape: int | Sequence[int]) -> None:
        super().__init__(NegativeBinomial(event_shape), event_shape)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return distributions.zero_inflated(x, self.counts.expected_log_prob(x, mean, variance), self.zero_logit)

    def start_spread(self, means: Tensor, variances: Tensor) -> None:
        """Start the inverse dispersion as `NegativeBinomial` does."""
        self.counts.start_spread(means, variances)


class Binomial(nn.Module):
    """The number of successes in a known number of trials, each with probability sigmoid(u).

    Args:
        trials: Number of trials: one for all outputs, or a tensor of the shape of an example.
    """

    exactness = Exactness.EXACT
    trials: Tensor

    def __init__(self, trials: int | Tensor) -> None:
        super().__init__()
        trials = torch.as_tensor(trials, dtype=torch.get_default_dtype())
        if not ((trials >= 1) & (trials.frac() == 0)).all():
            raise DomainError(f"trials have to be whole numbers from 1 on, got {trials.min():g} at the least")
        self.register_buffer("trials", trials)

    def forward(self, u: Tensor) -> td.Binomial:
        return td.Binomial(self.trials, logits=u, validate_args=False)

    def u_at_mean(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u at which x has this mean, and its derivative."""
        p = (mean / self.trials.expand_as(mean)).clamp(0.02, 0.98)
        return p.logit(), 1 / (self.trials * p * (1 - p))

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        within = "the binomial likelihood takes at most as many successes as there are trials"
        x = required(counts_of(x, "binomial"), x <= self.trials, within)
        above, below = expected_softplus_of_both(mean, variance)
        failures = self.trials - x
        return log_rising(x, failures + 1) - x * below - failures * above
