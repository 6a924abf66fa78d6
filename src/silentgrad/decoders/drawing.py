r"""p(x|z) of a circuit: the distribution that its leaves make together.

Of every output the circuit's marginal is a mixture of its leaves, with probabilities :math:`\pi_k` that follow from the
weights alone, so its mean is :math:`\sum_k \pi_k \mu_k` and, by the law of total variance, its variance :math:`\sum_k
\pi_k (\sigma_k^2 + \mu_k^2) - (\sum_k \pi_k \mu_k)^2`. A sample is drawn from the roots downwards: a component of each
region, which is the node of each of its parts, and at last a value of the chosen leaf.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from silentgrad.decoders.causal import Causal
from silentgrad.decoders.checks import require_dtype, whole_levels
from silentgrad.decoders.leaves import require_single
from silentgrad.decoders.sums import Gate, SumProduct, gate_at, weighed
from silentgrad.tracing import widened


class CircuitDistribution(td.Distribution):
    """A circuit whose leaves are any distributions: those of a tractable decoder, or of a network of your own.

    Args:
        leaves: Distributions of batch shape `(*batch, *event_shape, components)`.
        network: The products and sums.
        logits: The gate's logits `(*batch, regions, components)`, or None, for each of its layers.
        event_dims: Number of dimensions of one example.
        firsts: The first output of each of the deepest regions, whose context weighs the region's leaves.

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
        firsts: Tensor | None = None,
    ) -> None:
        require_single(leaves)
        self.leaves, self.network, self.logits, self.firsts = leaves, network, list(logits), firsts
        shape = leaves.batch_shape[:-1]
        at = len(shape) - event_dims
        super().__init__(shape[:at], shape[at:], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(self.leaves.support, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "CircuitDistribution":
        batch = torch.Size(batch_shape)
        leaves = self.leaves.expand(batch + self.event_shape + self.leaves.batch_shape[-1:])
        logits = [None if own is None else own.expand(*batch, *own.shape[-2:]) for own in self.logits]
        dims = len(self.event_shape)
        return CircuitDistribution(leaves, self.network, logits, dims, self._validate_args, self.firsts)

    def _validate_sample(self, value: Tensor) -> None:
        if isinstance(self.leaves.support, constraints.integer_interval):  # torch's message would hold all of x
            whole_levels(value, self.leaves.support.upper_bound)
        super()._validate_sample(value)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args and value.numel() > 0:  # torch cannot check a support over no examples
            self._validate_sample(value)
        value = widened(value)
        require_dtype("x", value, self.network.dtype)
        weights: Tensor | None = None
        if isinstance(self.leaves, Causal):
            found, weights = self.leaves.weighed(value.unsqueeze(-1))
        else:
            found = self.leaves.log_prob(value.unsqueeze(-1))
        outputs = widened(found)
        batch = outputs.shape[: outputs.dim() - 1 - len(self.event_shape)]
        rows = outputs.reshape(math.prod(batch), self.event_shape.numel(), outputs.shape[-1])
        gates = self._gates(batch)
        if weights is not None and self.firsts is not None:
            gates[0] = weighed(gates[0], of_regions(weights.expand(outputs.shape), self.firsts, self.event_shape))
        return self.network(rows, gates).reshape(batch)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with torch.no_grad():
            whole = torch.Size(sample_shape) + self.batch_shape
            if isinstance(self.leaves, Causal):  # the components from the roots down, then the outputs in order
                leaves = self.leaves.expand(whole + self.leaves.batch_shape[len(self.batch_shape) :])
                if self.firsts is not None:
                    return leaves.sample_of(_Chosen(self, whole, self.firsts))
                drawn = self._drawn(whole)
                return leaves.sample_of(lambda weights, front: drawn)
            values = self.leaves.sample(torch.Size(sample_shape))
            return values.gather(-1, self._drawn(whole)).squeeze(-1)

    def _drawn(self, batch: torch.Size) -> Tensor:
        """Return a component of each output, `(*batch, *event_shape, 1)`."""
        return self.network.draw(self._gates(batch), math.prod(batch)).reshape(*batch, *self.event_shape, 1)

    @property
    def mean(self) -> Tensor:
        return (self._chances() * self.leaves.mean).sum(-1)

    @property
    def variance(self) -> Tensor:
        within = (self._chances() * self.leaves.variance).sum(-1)
        between = (self._chances() * (self.leaves.mean - self.mean.unsqueeze(-1)).square()).sum(-1)
        return within + between

    def _chances(self) -> Tensor:
        """Return the probability of each leaf, `(*batch, *event_shape, components)`."""
        batch = self.batch_shape
        return self.network.chances(self._gates(batch), math.prod(batch)).reshape(self.leaves.batch_shape)

    def _gates(self, batch: torch.Size) -> list[Gate | None]:
        return [None if own is None else gate_at(own.expand(*batch, *own.shape[-2:])) for own in self.logits]


def of_regions(weights: Tensor, firsts: Tensor, event_shape: torch.Size) -> Tensor:
    """Return logits `(regions, components, batch)` from those of outputs, `(*batch, *event_shape, components)`."""
    rows = weights.reshape(-1, event_shape.numel(), weights.shape[-1])
    return rows[:, firsts].permute(1, 2, 0)


class _Chosen:
    """The leaf of each output, drawn when the first output of its region is next and the context there is known."""

    def __init__(self, p: CircuitDistribution, batch: torch.Size, firsts: Tensor) -> None:
        self.p, self.firsts = p, firsts
        self.gates = p._gates(batch)
        self.layer = p.network.layers[0]
        self.nodes, _ = p.network.draw_nodes(self.gates, batch.numel())
        self.leaves = firsts.new_zeros((*batch, *p.event_shape, 1))

    def __call__(self, weights: Tensor | None, front: Tensor) -> Tensor:
        gate = self.gates[0]
        if weights is not None:
            every = weights.expand(*self.leaves.shape[:-1], weights.shape[-1])
            gate = weighed(gate, of_regions(every, self.firsts, self.p.event_shape))
        now = torch.isin(self.firsts, front)
        drawn = self.layer.draw(self.nodes, gate)
        over = self.layer.over_outputs
        rows = over.rows[over.spread(now)]
        flat = self.leaves.view(-1, self.p.event_shape.numel())
        flat[:, rows] = over.spread(drawn)[over.spread(now)].T
        return self.leaves
