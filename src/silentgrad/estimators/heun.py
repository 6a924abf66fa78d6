r"""ReinMax and what lowers its variance: straight-through gradients by Heun's rule, right to second order.

**ReinMax.** The gradient of an expectation over a category is made of differences :math:`f(z') - f(z)`.
Straight-through takes for each the slope at the sample, which is Euler's rule, of first order. Heun's, of second order,
takes the mean of the slopes at both ends. Summed over the categories and written at the sample alone, that is

.. math:: \nabla_l \approx M(z)\, f'(z), \qquad M(z) = 2\, J(\tfrac12 (\mu_\tau + z)) - \tfrac12 J(\mu),
          \qquad J(p) = \mathrm{diag}(p) - p p^T,

with :math:`\mu` the probabilities and :math:`\mu_\tau` those at a temperature. At temperature 1 it is unbiased for
every quadratic function of one latent.

**ReinMax-Rao** takes for the first J, which is that of a softmax at the logits :math:`\theta_z = \log \tfrac12 (\mu +
z)`, the mean over Gumbel noise that makes z the largest of :math:`\theta_z + g`:

.. math:: \nabla_l \approx 2\, E\Bigl[\tfrac1\tau J\bigl(\mathrm{softmax}_\tau(\theta_z + g)\bigr) \mid z\Bigr] f'(z)
          - \tfrac12 J(\mu)\, f'(z).

**ReinMax-CV** has ReinMax's mean and less variance. With :math:`\mu = E z`,

.. math:: E\, (\mu + z)(\mu + z)^T = 3 \mu \mu^T + \mathrm{diag}(\mu), \qquad \text{hence} \qquad
          E\, M(z) = \tfrac32 J(\mu) - \tfrac12 J(\mu) = J(\mu).

So :math:`(M(z) - J(\mu))\, g` has mean 0 for every g that does not depend on z. Of K samples each takes for g the mean
slope at the others, and a scale :math:`\alpha` is learned as that of `DoubleCV` is:

.. math:: \nabla_l \approx \frac1K \sum_k \bigl[M(z_k)\, f'(z_k) - \alpha\, (M(z_k) - J(\mu))\, g_k\bigr],
          \qquad g_k = \frac{1}{K-1} \sum_{j \ne k} f'(z_j).

For a linear f and :math:`\alpha = 1` it has no variance.

The authors' variate is another: a multiple of the difference between the J of ReinMax-Rao and that of one draw of the
noise. If that is drawn given z, the difference has mean 0 given z; ReinMax does not vary given z, so by the law of
total variance every multiple adds variance. If it is the noise that drew z from l, as in their code, the difference has
another mean than 0, and the estimator another than ReinMax's.
"""

import torch
from torch import Tensor

from silentgrad.estimators.base import ESTIMATORS, at_least, mean_of_others, require_positive
from silentgrad.estimators.choices import Choices
from silentgrad.estimators.pathwise import Softened
from silentgrad.estimators.slopes import ScaledControl


@ESTIMATORS.register("reinmax")
class ReinMax(Softened):
    """Heun's rule in place of straight-through's Euler step: one evaluation, a bias of third order.

    Take it when one evaluation is all that a step may cost and the integrand is smooth in z.

    Args:
        temperature: Temperature of the probabilities at the other end of the step.

    References:
        Liu, Dong, Liu, Yu and Gao 2023, Bridging Discrete and Backpropagation: Straight-Through and Beyond, NeurIPS.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        require_positive(temperature)
        self.temperature = temperature

    def draw(self, choices: Choices) -> tuple[Tensor, Tensor]:
        z, logits = choices.sample(), choices.logits
        midway = (choices.relaxed(logits, self.temperature) + z).detach() / 2
        mean = choices.mean.detach()
        return z, 2 * choices.covariance_at(midway, logits) - choices.covariance_at(mean, logits) / 2


@ESTIMATORS.register("reinmax-rao")
class ReinMaxRao(Softened):
    """ReinMax whose step starts at a softmax averaged over the noise that gives the sample. Biased.

    Take it in place of `ReinMax` when less variance is worth some bias and a temperature to tune.

    Args:
        temperature: Temperature of the softmax.
        samples: Number of draws of the noise given the sample.

    References:
        Wang and Bui 2026, Beyond ReinMax: Low-Variance Gradient Estimators for Discrete Latent Variables,
        arXiv:2603.08257.
    """

    def __init__(self, temperature: float = 1.0, samples: int = 10) -> None:
        super().__init__()
        require_positive(temperature)
        self.temperature, self.samples = temperature, at_least(1, samples, self)

    def draw(self, choices: Choices) -> tuple[Tensor, Tensor]:
        z, logits, mean = choices.sample(), choices.logits, choices.mean.detach()
        with torch.no_grad():
            midway = choices.with_mean((mean + z) / 2)
            relaxed = [midway.relaxed(midway.noisy_given(z), self.temperature) for _ in range(self.samples)]
        averaged = choices.mean_covariance_at(relaxed, logits) / self.temperature
        return z, 2 * averaged - choices.covariance_at(mean, logits) / 2


@ESTIMATORS.register("reinmax-cv")
class ReinMaxCV(ScaledControl):
    """ReinMax with the slopes at other samples as a control variate: the same mean, less variance. Biased.

    Take it in place of `ReinMax` when a step may cost two evaluations and the integrand is close to linear in z.

    Args:
        samples: Number of samples, at least two.
        scale: Value of alpha before anything was seen.
        decay: Decay of the running averages that alpha is learned by.

    References:
        Wang and Bui 2026, Beyond ReinMax: Low-Variance Gradient Estimators for Discrete Latent Variables,
        arXiv:2603.08257, who give ReinMax another control variate, by which its mean changes.
    """

    def __init__(self, samples: int = 2, scale: float = 0.0, decay: float = 0.99) -> None:
        super().__init__(samples, scale, decay)

    def parts(self, choices: Choices, draws: Tensor, f: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        mean = choices.mean.detach()

        def heun(v: Tensor) -> Tensor:
            steps = 2 * choices.covariance_at((mean + draws) / 2, v) - choices.covariance_at(mean, v) / 2
            return steps.mean(0)

        return heun(slopes), choices.covariance_times(slopes.mean(0)) - heun(mean_of_others(slopes))
