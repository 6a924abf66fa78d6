r"""p(x|z) of a circuit as a distribution of torch.

Of every output the marginal is a mixture of its leaves, with probabilities :math:`\pi_k` that follow from the weights
alone, so its mean is :math:`\sum_k \pi_k \mu_k` and, by the law of total variance, its variance
:math:`\sum_k \pi_k (\sigma_k^2 + \mu_k^2) - (\sum_k \pi_k \mu_k)^2`. A sample is drawn from the roots downwards: a
component of each region, which is the node of each of its parts, and at last a value of the chosen leaf.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from silentgrad.decoders.sum_product import SumProduct
from silentgrad.decoders.sums import Gate


class CircuitDistribution(td.Distribution):
    """A circuit whose leaves are any distributions: those of a tractable decoder, or of a network of your own.

    Args:
        leaves: Distributions of batch shape `(*batch, *event_shape, components)`.
        network: The products and sums.
        logits: The gate's logits `(*batch, regions, components)`, or None, for each of its layers.
        event_dims: Number of dimensions of one example.

    Example:
        >>> from silentgrad.decoders import Circuit
        >>> p = Circuit(2, (4, 4), components=3)(torch.zeros(5, 2))
        >>> p.batch_shape, p.event_shape, p.sample((7,)).shape
        (torch.Size([5]), torch.Size([4, 4]), torch.Size([7, 5, 4, 4]))
    """

    arg_constraints: ClassVar = {}

    def __init__(
        self,
        leaves: td.Distribution,
        network: SumProduct,
        logits: Sequence[Tensor | None],
        event_dims: int,
        validate_args: bool | None = None,
    ) -> None:
        self.leaves, self.network, self.logits = leaves, network, list(logits)
        shape = leaves.batch_shape[:-1]
        at = len(shape) - event_dims
        super().__init__(shape[:at], shape[at:], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(self.leaves.support, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "CircuitDistribution":
        batch = torch.Size(batch_shape)
        leaves = self.leaves.expand(batch + self.event_shape + self.leaves.batch_shape[-1:])
        logits: list[Tensor | None] = []
        for own in self.logits:
            if own is not None:
                own = own.expand(*batch, *own.shape[-2:])
            logits.append(own)
        return CircuitDistribution(leaves, self.network, logits, len(self.event_shape), self._validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        outputs = self.leaves.log_prob(value.unsqueeze(-1))
        batch = outputs.shape[: outputs.dim() - 1 - len(self.event_shape)]
        rows = outputs.reshape(math.prod(batch), -1, outputs.shape[-1])
        return self.network(rows, self._gates(batch)).reshape(batch)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with torch.no_grad():
            whole = torch.Size(sample_shape) + self.batch_shape
            values = self.leaves.sample(torch.Size(sample_shape))
            drawn = self.network.draw(self._gates(whole), math.prod(whole))
            return values.gather(-1, drawn.reshape(*values.shape[:-1], 1)).squeeze(-1)

    @property
    def mean(self) -> Tensor:
        return (self._chances() * self.leaves.mean).sum(-1)

    @property
    def variance(self) -> Tensor:
        within = (self._chances() * self.leaves.variance).sum(-1)
        between = (self._chances() * (self.leaves.mean - self.mean.unsqueeze(-1)).square()).sum(-1)
        return within + between

    def _chances(self) -> Tensor:
        """The probability of each leaf, `(*batch, *event_shape, components)`."""
        batch = self.batch_shape
        return self.network.chances(self._gates(batch), math.prod(batch)).reshape(self.leaves.batch_shape)

    def _gates(self, batch: torch.Size) -> list[Gate | None]:
        gates: list[Gate | None] = []
        for logits in self.logits:
            if logits is None:
                gates.append(None)
            else:
                rows = logits.expand(*batch, *logits.shape[-2:]).reshape(math.prod(batch), *logits.shape[-2:])
                at_z = rows.permute(1, 2, 0).contiguous()
                gates.append(Gate(at_z, at_z))
        return gates
