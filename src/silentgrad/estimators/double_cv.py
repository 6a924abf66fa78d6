r"""Double control variates: leave-one-out samples whose linear parts are taken out and put back in closed form.

To each of K samples belongs a linear function, the first order of a Taylor expansion, with slopes taken at the others:

.. math:: b_k = \alpha\, g_k \cdot (z_k - \mu), \qquad g_k = \frac{1}{K-1} \sum_{j \ne k} f'(z_j).

Since :math:`g_k` does not depend on :math:`z_k`, :math:`b_k` has mean 0, and :math:`E[b_k (z_k - \mu)] = \alpha\,
\mathrm{Cov}(z)\, g_k`. Leave-one-out of :math:`f - b`, with that put back, has the same expectation:

.. math:: \nabla_l \approx \frac1K \sum_k \Bigl[(f_k - b_k) - \frac{1}{K-1} \sum_{j \ne k} (f_j - b_j)\Bigr] (z_k - \mu)
          + \alpha\, \mathrm{Cov}(z)\, \frac1K \sum_k f'(z_k).

For a linear f and :math:`\alpha = 1` it has no variance. The slopes come with the evaluations by one backward pass;
:math:`\alpha` is learned, so as to lower the variance.
"""

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Integrand, for_each_latent, per_example, slope_of, value_with_slope
from silentgrad.estimators.choices import choices_of
from silentgrad.estimators.learning import Learning
from silentgrad.latents.independent import sum_over_latents


class DoubleCV(Learning):
    """Leave-one-out with a Taylor expansion as a second control variate.

    Take it when the integrand is smooth and close to linear in z, as those of wide decoders are.

    Args:
        samples: Number of samples, at least two.
        scale: Value that alpha starts from.

    References:
        Titsias and Shi 2022, Double Control Variates for Gradient Estimation in Discrete Latent Variable Models,
        AISTATS.
    """

    unbiased = True
    latents = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, samples: int = 4, scale: float = 1.0) -> None:
        super().__init__()
        if samples < 2:
            raise DomainError(f"DoubleCV needs at least two samples, got {samples}")
        self.samples = samples
        self.scale = nn.Parameter(torch.tensor(scale))

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return self.samples

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        choices = choices_of(q, self)
        draws, values, slopes = [], [], []
        for _ in range(self.samples):
            z = choices.sample()
            with torch.enable_grad():
                f = per_example(integrand(z.requires_grad_()), q)
                slopes.append(slope_of(f, z))
            draws.append(z.detach())
            values.append(f)
        f, slope = torch.stack(values), torch.stack(slopes)
        score = choices.score(torch.stack(draws)).detach()
        linear = sum_over_latents(self._of_others(slope) * score, f.shape)
        put_back = choices.covariance_times(slope.mean(0)).detach()
        with torch.enable_grad():
            scale = self.scale.to(f.dtype)
            signal = f.detach() - scale * linear
            gain = signal - self._of_others(signal)
            gradient = (for_each_latent(gain, score) * score).mean(0) + scale * put_back
        if learning and f.numel() > 0:
            self.learn(gradient.square().sum() / f[0].numel())
        return value_with_slope(f.mean(0), gradient, choices.logits)

    def _of_others(self, numbers: Tensor) -> Tensor:
        """The mean over all samples but one, for each."""
        return (numbers.sum(0) - numbers) / (self.samples - 1)
