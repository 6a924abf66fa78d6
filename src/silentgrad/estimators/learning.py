"""Estimators that remember or learn, and what they share: a loss of their own, and one latent that they belong to.

The loss of an estimator's own parameters is differentiated where it arises, and only its gradient is kept. A graph
would have to be kept until the loss is asked for, and could not be copied or saved; and of two uses before that, as two
levels of a hierarchy make them, the first one's would be lost. Gradients add up.

What an estimator has learned belongs to one latent: a baseline of one level is none of another. In a hierarchy the
integrand of one level calls the estimator of the next; an estimator that is called by its own integrand therefore
serves two levels, and refuses. It also refuses latents of another shape than those that it has seen.

Activation checkpointing calls a function once more within the backward pass. A baseline that has moved in between would
give the gradient another weight than the value: a bias. So an estimator that is learning refuses to be recomputed; the
decoder inside its integrand may be.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import linear

from silentgrad.errors import DomainError, ShapeError
from silentgrad.estimators.base import Estimator, Integrand, value_with_gradient_of
from silentgrad.tracing import in_backward, require_untransformed, uncompiled

ONE_EACH = "what it learns belongs to one latent, so a hierarchy needs an estimator for each of its levels"


class Learning(Estimator):
    """An estimator with a memory or parameters of its own; a subclass writes `estimate`."""

    def __init__(self) -> None:
        super().__init__()
        self._busy = False
        self._seen: torch.Size | None = None
        self._losses: list[Tensor] = []  # their sum and its gradient

    @abstractmethod
    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        """Return what `forward` does; `learning` says whether to learn from it."""

    @uncompiled  # a compiled graph moves the state before it is read, and keeps no graph of the estimator's own
    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        if self.training:
            require_untransformed(type(self).__name__)
            if in_backward():
                raise DomainError(
                    f"{type(self).__name__} was called within a backward pass, and what it learns has moved since: let "
                    "activation checkpointing recompute the decoder alone, or hold the estimator by its eval()"
                )
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
        """Take in a loss of the estimator's own parameters, which `auxiliary_loss` hands over."""
        learned = self.learned()
        if not learned or not loss.requires_grad:
            return
        parts = [loss.detach(), *torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)]
        self._losses = [a + b for a, b in zip(self._losses, parts, strict=True)] if self._losses else parts

    def auxiliary_loss(self) -> Tensor | None:
        """Hand over the sum of the losses since it was last asked for; its gradient is theirs."""
        parts, self._losses = self._losses, []
        if not parts:
            return None
        loss, *slopes = parts
        along = [(slope * parameter).sum() for slope, parameter in zip(slopes, self.learned(), strict=True)]
        return value_with_gradient_of(loss, torch.stack(along).sum())

    def learned(self) -> list[nn.Parameter]:
        """Return the parameters that the loss is for: those that are not frozen."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def _require_same_latents(self, q: td.Distribution, value: Tensor) -> None:
        shape = (q.batch_shape + q.event_shape)[value.dim() :]
        if self._seen is not None and self._seen != shape:
            raise DomainError(
                f"{type(self).__name__} has seen latents of shape {tuple(self._seen)} an example and now of "
                f"{tuple(shape)}: {ONE_EACH}"
            )
        self._seen = shape


class RunningMeans(nn.Module):
    """Means over earlier batches, as buffers; a batch counts less with every one that follows.

    Args:
        count: Number of means.
        decay: Decay of a batch's weight.
    """

    sums: Tensor
    weight: Tensor

    def __init__(self, count: int, decay: float) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise DomainError(f"decay has to be in [0, 1), got {decay}")
        self.decay = decay
        self.register_buffer("sums", torch.zeros(count))
        self.register_buffer("weight", torch.zeros(()))

    def forward(self) -> tuple[Tensor, ...]:
        """Return the means, corrected for having started from zero; 0 before the first batch."""
        return (self.sums / self.weight.clamp(min=torch.finfo(self.weight.dtype).tiny)).unbind()

    @torch.no_grad()
    def remember(self, *values: Tensor) -> None:
        """Take in a batch, unless it has no mean: no examples, or values that are not finite."""
        means = torch.stack([each.mean() for each in values]).to(self.sums)
        share = (1 - self.decay) * means.isfinite().all().to(self.sums)
        self.sums.lerp_(means.nan_to_num(), share)
        self.weight.lerp_(torch.ones_like(self.weight), share)


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
