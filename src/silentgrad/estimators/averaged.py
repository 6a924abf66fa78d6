"""The mean of several draws of another estimator: the same expected gradient, with less variance."""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import DomainError
from silentgrad.estimators.base import Estimator, Integrand


class Averaged(Estimator):
    """Averages an estimator over draws; n that are independent divide its variance by n and cost n times as much.

    Take it where an estimator has no number of samples of its own.

    Args:
        estimator: The estimator, which has to draw: an exact one has nothing to average.
        draws: Number of draws.

    Example:
        >>> from silentgrad.estimators import Reparameterized
        >>> q = td.Independent(td.Normal(torch.zeros(5, 2), torch.ones(5, 2)), 1)
        >>> Averaged(Reparameterized(), draws=16)(q, lambda z: z.square().sum(-1)).shape
        torch.Size([5])
    """

    def __init__(self, estimator: Estimator, draws: int) -> None:
        super().__init__()
        if estimator.exact:
            raise DomainError(f"{type(estimator).__name__} draws nothing: there is nothing to average")
        if draws < 1:
            raise DomainError(f"a mean needs at least one draw, got {draws}")
        self.estimator, self.draws = estimator, draws
        self.unbiased = estimator.unbiased
        self.uses_prior = estimator.uses_prior
        self.differentiated_twice = draws * estimator.differentiated_twice
        self._losses: list[Tensor] = []

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return self.draws * self.estimator.evaluations(latents, values)

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        results: list[Tensor] = []
        self._losses = []
        for _ in range(self.draws):
            results.append(self.estimator(q, integrand))
            loss = self.estimator.auxiliary_loss()
            if loss is not None:
                self._losses.append(loss)
        return torch.stack(results).mean(0)

    def on_epoch(self, epoch: int) -> None:
        self.estimator.on_epoch(epoch)

    def auxiliary_loss(self) -> Tensor | None:
        losses, self._losses = self._losses, []
        if not losses:
            return None
        return torch.stack(losses).mean(0)

    def extra_repr(self) -> str:
        return f"draws={self.draws}"
