r"""Double control variates: leave-one-out samples whose linear parts are taken out and put back in closed form.

To each of K samples belongs a linear function, the first order of a Taylor expansion, with slopes taken at the others:

.. math:: b_k = \alpha\, g_k \cdot (z_k - \mu), \qquad g_k = \frac{1}{K-1} \sum_{j \ne k} f'(z_j).

Since :math:`g_k` does not depend on :math:`z_k`, :math:`b_k` has mean 0, and :math:`E[b_k (z_k - \mu)] = \alpha\,
\mathrm{Cov}(z)\, g_k`. Leave-one-out of :math:`f - b`, with that put back, has the same expectation:

.. math:: \nabla_l \approx \frac1K \sum_k \Bigl[(f_k - b_k) - \frac{1}{K-1} \sum_{j \ne k} (f_j - b_j)\Bigr] (z_k - \mu)
          + \alpha\, \mathrm{Cov}(z)\, \frac1K \sum_k f'(z_k).

For a linear f and :math:`\alpha = 1` it has no variance. The slopes come with the gradient of the integrand's own
parameters, in one backward pass (see `lazy`), and there :math:`\alpha` is learned too. The estimate is
:math:`A + \alpha B`, whose second moment is least at :math:`\alpha = -E[A \cdot B] / E[B \cdot B]`. Both expectations
are running averages over earlier batches, in place of the authors' descent along the gradient of the same quantity.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Integrand, for_each_latent
from silentgrad.estimators.choices import choices_of
from silentgrad.estimators.lazy import mean_with_gradient
from silentgrad.estimators.learning import Learning
from silentgrad.latents.independent import sum_over_latents
from silentgrad.tracing import transformed


class DoubleCV(Learning):
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
    latents = (td.Bernoulli, td.OneHotCategorical)
    scale_averages: Tensor

    def __init__(self, samples: int = 4, scale: float = 1.0, decay: float = 0.99) -> None:
        super().__init__()
        if samples < 2:
            raise DomainError(f"DoubleCV needs at least two samples, got {samples}")
        if not 0 <= decay < 1:
            raise DomainError(f"decay has to be in [0, 1), got {decay}")
        self.samples, self.start_scale, self.decay = samples, scale, decay
        self.register_buffer("scale_averages", torch.zeros(2))  # of -A B and of B B

    @property
    def scale(self) -> Tensor:
        """Alpha, of the batches seen so far."""
        products, squares = self.scale_averages.unbind()
        return torch.where(squares > 0, products / squares, self.start_scale)

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return self.samples

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        choices = choices_of(q, self)
        draws = torch.stack([choices.sample() for _ in range(self.samples)])
        score = choices.score(draws).detach()
        scale, unseen = self.scale, learning  # of earlier batches, however often this one is passed back

        def controlled(f: Tensor, slopes: Tensor) -> Tensor:
            nonlocal unseen
            linear = sum_over_latents(self._of_others(slopes) * score, f.shape)
            plain = self._leave_one_out(f, score)
            control = choices.covariance_times(slopes.mean(0)) - self._leave_one_out(linear, score)
            if unseen and not transformed():
                self._remember(plain, control)
                unseen = False
            return plain + scale.to(plain) * control

        return mean_with_gradient(integrand, q, draws, choices.logits, controlled)

    def _leave_one_out(self, values: Tensor, score: Tensor) -> Tensor:
        """The score function's gradient, each sample with the mean of the others as its baseline."""
        gain = values - self._of_others(values)
        return (for_each_latent(gain, score) * score).mean(0)

    def _of_others(self, numbers: Tensor) -> Tensor:
        """The mean over all samples but one, for each."""
        return (numbers.sum(0) - numbers) / (self.samples - 1)

    def _remember(self, plain: Tensor, control: Tensor) -> None:
        """Takes a batch into the averages, unless it has none: no examples, or values that are not finite."""
        plain, control = plain.to(self.scale_averages), control.to(self.scale_averages)
        found = torch.stack((-(plain * control).mean(), control.square().mean()))
        self.scale_averages.lerp_(torch.where(found.isfinite().all(), found, self.scale_averages), 1 - self.decay)
