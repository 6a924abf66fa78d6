r"""VIMCO: the bound of several samples for latents that cannot be reparameterized.

The gradient of :math:`L_K` (see `bounds`) has a part through the samples and one through their weights,

.. math:: \nabla L_K = E\Bigl[\sum_k (\hat L - \hat L_{-k})\, \nabla \log q(z_k|x)
          + \sum_k \tilde w_k \nabla \log w_k\Bigr],
          \qquad \hat L = \log \frac1K \sum_j w_j,\quad \tilde w_k = \frac{w_k}{\sum_j w_j}.

The baseline of a sample may depend on all others, and is the bound with its own weight replaced by their geometric
mean: :math:`\hat L_{-k} = \log \frac1K \bigl(\sum_{j \ne k} w_j + (\prod_{j \ne k} w_j)^{1/(K-1)}\bigr)`.
"""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Estimator, Integrand, joint_log_prob, per_example, value_with_gradient_of
from silentgrad.estimators.bounds import divergence, log_mean, prior_log_prob


class Vimco(Estimator):
    """The bound of several samples by the score function, each with the others as its baseline.

    Take it for discrete latents when the importance-weighted bound is what you want to maximize.

    Args:
        samples: Number of samples of the bound, at least two.

    References:
        Mnih and Rezende 2016, Variational Inference for Monte Carlo Objectives, ICML.
    """

    unbiased = True
    uses_prior = True

    def __init__(self, samples: int = 5) -> None:
        super().__init__()
        if samples < 2:
            raise DomainError(f"Vimco needs at least two samples, got {samples}")
        self.samples = samples

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return self.samples

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        log_weights, log_probs = [], []
        for _ in range(self.samples):
            z = q.sample()
            f = per_example(integrand(z), q)
            log_probs.append(joint_log_prob(q, z, f.shape))
            log_weights.append(f + prior_log_prob(q, integrand, z, f.shape) - log_probs[-1])
        log_w, log_q = torch.stack(log_weights), torch.stack(log_probs)
        bound = log_mean(log_w)
        gain = bound.detach() - self._baselines(log_w.detach())
        share = torch.softmax(log_w, 0).detach()
        surrogate = (gain * log_q + share * log_w).sum(0)
        return value_with_gradient_of(bound, surrogate) + divergence(q, integrand, bound.shape)

    def _baselines(self, log_w: Tensor) -> Tensor:
        """The bound with each sample's weight replaced by the geometric mean of the others."""
        own = torch.eye(self.samples, dtype=torch.bool, device=log_w.device)
        own = own.reshape(self.samples, self.samples, *[1] * (log_w.dim() - 1))
        others = torch.where(own, 0, log_w).sum(1) / (self.samples - 1)
        return log_mean(torch.where(own, others, log_w.unsqueeze(1)))
