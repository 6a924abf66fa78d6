"""Estimators that remember or learn, and what they share: a loss of their own, and one latent that they belong to.

The loss of an estimator's own parameters is differentiated where it arises, and only its gradient is kept. A graph
would have to be kept until the loss is asked for, and could not be copied or saved; and of two uses before that, as two
levels of a hierarchy make them, the first one's would be lost. Gradients add up.

What an estimator has learned belongs to one latent: a baseline of one level is none of another. In a hierarchy the
integrand of one level calls the estimator of the next; an estimator that is called by its own integrand therefore
serves two levels, and refuses. It also refuses latents of another shape than those that it has seen.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import linear

from silentgrad.errors import DomainError, ShapeError
from silentgrad.estimators.base import Estimator, Integrand, value_with_gradient_of

ONE_EACH = "what it learns belongs to one latent, so a hierarchy needs an estimator for each of its levels"


class Learning(Estimator):
    """An estimator with a memory or parameters of its own; a subclass writes `estimate`."""

    def __init__(self) -> None:
        super().__init__()
        self._busy = False
        self._seen: torch.Size | None = None
        self._loss: Tensor | None = None
        self._slopes: list[Tensor] = []

    @abstractmethod
    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        """What `forward` returns; `learning` says whether to learn from it."""

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        if self._busy:
            raise DomainError(f"{type(self).__name__} was called by its own integrand: {ONE_EACH}")
        self._busy = True
        try:
            value = self.estimate(q, integrand, self.training and torch.is_grad_enabled())
        finally:
            self._busy = False
        self._require_same_latents(q, value)
        return value

    def learn(self, loss: Tensor) -> None:
        """Takes in a loss of the estimator's own parameters, which `auxiliary_loss` hands over."""
        slopes = torch.autograd.grad(loss, self._learned(), allow_unused=True, materialize_grads=True)
        if self._loss is None:
            self._loss, self._slopes = loss.detach(), list(slopes)
        else:
            self._loss = self._loss + loss.detach()
            self._slopes = [before + now for before, now in zip(self._slopes, slopes, strict=True)]

    def auxiliary_loss(self) -> Tensor | None:
        """The sum of the losses since it was last asked for; its gradient is theirs."""
        if self._loss is None:
            return None
        loss, slopes = self._loss, self._slopes
        self._loss, self._slopes = None, []
        along = torch.zeros_like(loss)
        for slope, parameter in zip(slopes, self._learned(), strict=True):
            along = along + (slope * parameter).sum()
        return value_with_gradient_of(loss, along)

    def _learned(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def _require_same_latents(self, q: td.Distribution, value: Tensor) -> None:
        shape = (q.batch_shape + q.event_shape)[value.dim() :]
        if self._seen is not None and self._seen != shape:
            raise DomainError(
                f"{type(self).__name__} has seen latents of shape {tuple(self._seen)} an example and now of "
                f"{tuple(shape)}: {ONE_EACH}"
            )
        self._seen = shape


class ExampleNetwork(nn.Module):
    """A network from the numbers of an example's latent to one number, which is 0 at the start.

    Args:
        inputs: The most numbers that an example may have, so that the network is there before the first latent is seen;
            what is beyond an example's numbers counts as zeros.
        hidden: Width of the hidden layer.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.first, self.last = nn.Linear(inputs, hidden), nn.Linear(hidden, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, numbers: Tensor, examples: torch.Size) -> Tensor:
        count = numbers.shape[len(examples) :].numel()
        if count > self.inputs:
            raise ShapeError(f"an example has {count} numbers and the network takes {self.inputs}: give inputs={count}")
        weight, bias = self.first.weight[:, :count], self.first.bias
        hidden = torch.tanh(linear(numbers.reshape(*examples, count).to(weight), weight, bias))
        return self.last(hidden).squeeze(-1).to(numbers)
