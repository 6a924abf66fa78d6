r"""RODEO: control variates for leave-one-out samples that a discrete Stein operator makes of any function.

Gibbs sampling leaves q as it is: to draw one latent anew, the others held, changes no expectation. So for every
function h, of numbers or of vectors, and D latents of probabilities p,

.. math:: (A h)(z) = \frac1D \sum_i \Bigl[\sum_v p_{iv}\, h(z_{i \to v}) - h(z)\Bigr]
          \qquad \text{has} \qquad E\, A h = 0.

To each of K samples belong two functions, :math:`h_k` and :math:`\tilde h_k`, made of the values and slopes at the
others. The first corrects the baselines, the second is added times the score, whose change by :math:`i \to v` is known:

.. math:: \nabla_l \approx \frac1K \sum_k \Bigl[\Bigl(f_k - \frac{1}{K-1} \sum_{j \ne k} \bigl(f_j + (A h_j)(z_j)\bigr)
          \Bigr) (z_k - \mu) + \bigl(A\, \tilde h_k \cdot (\cdot - \mu)\bigr)(z_k)\Bigr].

Given the others, :math:`(A h_j)(z_j)` has mean 0, whatever they are. So the estimate is unbiased for all h, and no
evaluation of f is needed beyond the samples'. With :math:`f'` the slopes, both functions are a network of

.. math:: t_k(z) = \frac{1}{K-1} \sum_{j \ne k} f'(z_j) \cdot (z - z_j), \qquad
          \bar f_k = \frac{1}{K-1} \sum_{j \ne k} f_j,

which at a neighbor of a sample costs two additions. It minimizes the square of the estimate, whose mean it cannot
change. Slopes are met within the backward pass (:mod:`silentgrad.estimators.slopes`), so what a step teaches is in the
`auxiliary_loss` of the next. Bits are taken as two categories.
"""

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import leaky_relu

from silentgrad.estimators.base import ESTIMATORS, Integrand, at_least, for_each_latent, mean_of_others
from silentgrad.estimators.choices import OneHots, choices_of
from silentgrad.estimators.learning import Learning
from silentgrad.estimators.slopes import mean_with_gradient
from silentgrad.latents.independent import sum_over_latents
from silentgrad.tracing import batched, require_untransformed, transformed


@ESTIMATORS.register("rodeo")
class RODEO(Learning):
    """Leave-one-out with learned Stein control variates.

    Take it when training is long enough to learn them: bits or categories, two evaluations, no bias.

    Args:
        samples: Number of samples, at least two.
        hidden: Width of the network.

    References:
        Shi, Zhou, Hwang, Titsias and Mackey 2022, Gradient Estimation with Discrete Stein Operators, NeurIPS.
    """

    unbiased = True
    latents = (td.Bernoulli, td.OneHotCategorical)

    def __init__(self, samples: int = 2, hidden: int = 16) -> None:
        super().__init__()
        self.calls = self.samples = at_least(2, samples, self)
        self.first, self.last = nn.Linear(2, hidden), nn.Linear(hidden, 2)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        require_untransformed(type(self).__name__)
        choices = choices_of(q, self)
        ones = choices.one_hots()
        draws = torch.stack([choices.to_one_hots(choices.sample()) for _ in range(self.samples)])
        unseen = learning
        if learning:
            self.learn(0 * self._surrogates(draws.new_zeros(()), draws.new_zeros(())).sum())  # nothing, until a slope

        def controlled(f: Tensor, slopes: Tensor) -> Tensor:
            nonlocal unseen
            teaching = unseen and not (transformed() or batched(slopes) or batched(f))
            with torch.set_grad_enabled(teaching):
                gradient = self._gradient(ones.at(ones.logits.detach()), draws, f, slopes)
                if teaching and f.numel() > 0:
                    self.learn(gradient.square().sum() / f[0].numel())
                    unseen = False
            return gradient.detach() if teaching else gradient  # no graph else, and no rule for it in transforms

        def of_one_hots(z: Tensor) -> Tensor:
            return integrand(choices.from_one_hots(z))

        return mean_with_gradient(of_one_hots, q, draws, ones.logits, controlled)

    def _gradient(self, ones: OneHots, draws: Tensor, f: Tensor, slopes: Tensor) -> Tensor:
        latents = draws.shape[f.dim() : -1].numel()
        mean, score = ones.mean, draws - ones.mean
        others = mean_of_others(slopes)
        at_sample = sum_over_latents(others * draws, f.shape) - mean_of_others(
            sum_over_latents(slopes * draws, f.shape)
        )
        moves = others - (others * draws).sum(-1, keepdim=True)
        baseline = mean_of_others(f)
        here = self._surrogates(at_sample, baseline)
        there = self._surrogates(for_each_latent(at_sample, moves) + moves, for_each_latent(baseline, moves))
        change, change_of_vector = (
            sum_over_latents(mean * (there[..., i] - for_each_latent(here[..., i], moves)), f.shape) / latents
            for i in range(2)
        )
        moved = mean * there[..., 1]
        moved = (moved - draws * moved.sum(-1, keepdim=True)) / latents
        gain = f - mean_of_others(f + change) + change_of_vector
        return (for_each_latent(gain, score) * score + moved).mean(0)

    def _surrogates(self, linear: Tensor, baseline: Tensor) -> Tensor:
        """Evaluate both functions, along a last dimension."""
        shape = torch.broadcast_shapes(linear.shape, baseline.shape)
        inputs = torch.stack((linear.expand(shape), baseline.expand(shape)), -1).to(self.first.weight)
        return self.last(leaky_relu(self.first(inputs), 0.3)).to(linear)
