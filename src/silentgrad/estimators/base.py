r"""What an estimator is: a latent and a log-probability in, an expected log-probability with a usable gradient out.

`estimator(q, log_prob)` has the value (or an unbiased estimate of it) of :math:`E_{q(z|x)}[\log p(x|z)]`, one number
per example, and when differentiated gives the estimator's gradient in the parameters of q and of the decoder. Each
estimator declares two claims, which the tests measure: `unbiased` (its expected gradient is the gradient) and `exact`
(it has no variance either).
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.errors import IntractableError

LogProb = Callable[[Tensor], Tensor]


class Estimator(nn.Module):
    """Base of all estimators; a module, so that what it remembers is saved with the model."""

    unbiased: ClassVar[bool]
    exact: ClassVar[bool] = False

    def forward(self, q: td.Distribution, log_prob: LogProb) -> Tensor:
        """E_q[log_prob(z)], `(batch,)`."""
        raise NotImplementedError

    def on_epoch(self, epoch: int) -> None:
        """Called when an epoch, counted from 1, begins."""


def base_of(q: td.Distribution) -> td.Distribution:
    """The latent inside any number of `Independent`."""
    return base_of(q.base_dist) if isinstance(q, td.Independent) else q


def bernoulli_of(q: td.Distribution, estimator: Estimator) -> td.Bernoulli:
    """The Bernoulli latent inside q, or an error that names both."""
    base = base_of(q)
    if not isinstance(base, td.Bernoulli):
        raise IntractableError(f"{type(estimator).__name__} is for Bernoulli latents, got {type(base).__name__}")
    return base


def joint_log_prob(q: td.Distribution, z: Tensor) -> Tensor:
    """log q(z|x), `(batch,)`, whether q's latents are its event or part of its batch."""
    log_prob = q.log_prob(z)
    return log_prob.flatten(1).sum(1) if log_prob.dim() > 1 else log_prob


def value_with_gradient_of(value: Tensor, surrogate: Tensor) -> Tensor:
    """The number of the first with the gradient of the second."""
    return value.detach() + surrogate - surrogate.detach()


def uniform_like(x: Tensor) -> Tensor:
    """Uniform numbers in the open interval (0, 1)."""
    tiny = torch.finfo(x.dtype).tiny
    return torch.rand_like(x).clamp(min=tiny, max=1 - torch.finfo(x.dtype).eps)
