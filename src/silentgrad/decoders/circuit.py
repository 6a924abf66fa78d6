r"""A probabilistic circuit over the outputs, with leaves and weights that are linear in z.

As a function of its leaves' log-densities :math:`a_l = \log p_l(x_o|z)` the logarithm of a circuit is made of sums and
of :math:`\log \sum_k w_k e^{(\cdot)}`, each convex and non-decreasing. So it is convex, and by Jensen's inequality

.. math:: E_q[\log C(a(z))] \ge \log C(E_q[a(z)]):

one evaluation of the circuit at the expected leaves is a lower bound of the expected log-likelihood, without a sample.
For weights :math:`w(z) = \mathrm{softmax}(l)` the same holds of :math:`\log \sum e^{l + a}`, and Jensen's inequality
for the logarithm gives :math:`E[\log \sum e^l] \le \log \sum E[e^l]`: a node of the bound is
:math:`\log \sum_k e^{E l_k + E a_k} - \log \sum_k E[e^{l_k}]`. It is exact where q has no variance.

References:
    Peharz et al. (2020), Einsum networks: fast and scalable learning of tractable probabilistic circuits.
    Correia et al. (2023), Continuous mixtures of tractable probabilistic models.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.circuit_distribution import CircuitDistribution
from silentgrad.decoders.gates import LinearGate
from silentgrad.decoders.leaves import leaves_of
from silentgrad.decoders.linear import flattened_latent, require_number
from silentgrad.decoders.protocol import Leaf
from silentgrad.decoders.standardized import StandardizedGaussian
from silentgrad.decoders.starts import clusters, leaf_starts, require_examples, shares_of
from silentgrad.decoders.structures import Structure, binary_tree, quad_tree
from silentgrad.decoders.sum_product import SumProduct
from silentgrad.decoders.sums import Gate
from silentgrad.errors import DomainError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.latents.generating import moments_of
from silentgrad.widening import widened, widened_latent

Gates = Literal["leaves", "all", "none"]


class Circuit(nn.Module):
    """p(x|z) as a circuit: leaves of every output, then products and sums over a structure.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        components: Number of leaves of each output, and of nodes of each region.
        structure: The regions; if absent a quad-tree for images, a binary tree for vectors.
        gates: Whose sums have weights linear in z: regions that hold outputs ("leaves"), "all" or "none".
        leaves: One decoder of event shape `(*event_shape, components)`, or a list of as many decoders of `event_shape`;
            if absent, Gaussians whose mean is linear in z; see `StandardizedGaussian`.
        proxy: Whether the gates of Bernoulli and one-hot latents take the sub-Gaussian proxy; see `LinearGate`.
        noise: Noise of the Gaussian leaves, integrated out of the bound; see `StandardizedGaussian`.

    Example:
        >>> decoder = Circuit(2, (1, 28, 28), components=4)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.zeros(5, 1, 28, 28), q).shape
        torch.Size([5])
        >>> decoder.exactness(q)
        <Exactness.LOWER_BOUND: 'lower bound'>
    """

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        components: int = 8,
        structure: Structure | None = None,
        gates: Gates = "leaves",
        leaves: Leaf | Sequence[Leaf] | None = None,
        proxy: bool = True,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        if components < 1:
            raise DomainError(f"a circuit needs components, got {components}")
        if gates not in ("leaves", "all", "none"):
            raise DomainError(f"gates have to be 'leaves', 'all' or 'none', got {gates!r}")
        self.latent_dim, self.components = latent_dim, components
        self.event_shape = event_of(event_shape)
        if leaves is None:
            leaves = StandardizedGaussian(latent_dim, (*self.event_shape, components), noise)
        elif noise:
            raise DomainError("noise belongs to the leaves that were given: build them with it")
        if structure is None:
            structure = default_structure(self.event_shape)
        structure.require(self.event_shape.numel())
        self.structure = structure
        self.leaves = leaves_of(leaves, latent_dim, self.event_shape, components)
        self.network = SumProduct(structure, components)
        self.gates = nn.ModuleDict()
        if components > 1:
            for position in gated(structure, gates):
                regions = self.network.layers[position].regions
                self.gates[str(position)] = LinearGate(latent_dim, regions, components, proxy)

    def _gates(self) -> Iterator[tuple[int, LinearGate]]:
        """The gates, and the positions of their layers."""
        for position, gate in self.gates.items():
            assert isinstance(gate, LinearGate)
            yield int(position), gate

    def forward(self, z: Tensor) -> CircuitDistribution:
        """p(x|z) for latents of shape `(*batch, latent_dim)`, or those of a one-hot latent."""
        flat = flattened_latent(z, self.latent_dim)
        logits: list[Tensor | None] = [None] * len(self.network.layers)
        for position, gate in self._gates():
            logits[position] = gate(flat)
        return CircuitDistribution(self.leaves(flat), self.network, logits, len(self.event_shape))

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        """A lower bound of E_q[log p(x|z)], one number per example, without drawing anything.

        Args:
            x: Examples `(*batch, *event_shape)`.
            q: Their latents, of any family for which the leaves are tractable.
        """
        with torch.autocast(x.device.type, enabled=False):
            leaves, gates = self.expectations(widened(x), widened_latent(q))
            batch = x.shape[: x.dim() - len(self.event_shape)]
            result = self.network(leaves, gates).reshape(batch)
        inputs = {"x": x, "the latent": moments_of(q).mean, **dict(self.named_parameters(prefix="decoder"))}
        require_number(result, inputs)
        return result

    def expectations(self, x: Tensor, q: td.Distribution) -> tuple[Tensor, list[Gate | None]]:
        """The expected leaves `(batch, outputs, components)` and the gates of every layer."""
        if x.shape[max(0, x.dim() - len(self.event_shape)) :] != self.event_shape:
            raise ShapeError(f"expected examples of shape {tuple(self.event_shape)}, got x of shape {tuple(x.shape)}")
        leaves = self.leaves.expected_log_probs(x, q)
        moments = moments_of(q)
        mean = flattened_latent(moments.mean, self.latent_dim, leaves.shape[:-2])
        gates: list[Gate | None] = [None] * len(self.network.layers)
        for position, gate in self._gates():
            gates[position] = gate.expected(mean, moments, q)
        return leaves.reshape(-1, *leaves.shape[-2:]), gates

    def init_from_data(self, data: Tensor) -> None:
        """Starts leaves and gates from data, without a hand: see `silentgrad.decoders.starts`.

        Args:
            data: Examples `(examples, *event_shape)` as the model sees them.
        """
        require_examples(data, self.event_shape)
        flat = data.flatten(1)
        found = clusters(flat, self.components, shared=len(self.event_shape) > 1)
        self.leaves.start(*leaf_starts(found, flat, self.latent_dim))
        shares = shares_of(found, flat)
        for position, gate in self._gates():
            layer = self.network.layers[position]
            if layer.holds_outputs:
                gate.start(layer.over_outputs(shares.log()))

    def exactness(self, q: td.Distribution) -> Exactness:
        """A lower bound, unless the leaves' expectations are less; with a single component what they are."""
        of_leaves = self.leaves.exactness(q)
        if self.components == 1 or of_leaves is Exactness.APPROXIMATION:
            return of_leaves
        return Exactness.LOWER_BOUND

    def extra_repr(self) -> str:
        return f"{self.latent_dim}, {tuple(self.event_shape)}, components={self.components}"


def event_of(event_shape: int | Sequence[int]) -> torch.Size:
    """The shape of one example, of which a number is short for a vector's."""
    if isinstance(event_shape, int):
        event_shape = [event_shape]
    if min(event_shape, default=0) < 1:
        raise ShapeError(f"event_shape has to be positive, got {tuple(event_shape)}")
    return torch.Size(event_shape)


def default_structure(event_shape: torch.Size) -> Structure:
    """A quad-tree for images, a binary tree for vectors."""
    if len(event_shape) in (2, 3):
        return quad_tree(event_shape)
    return binary_tree(event_shape.numel())


def gated(structure: Structure, gates: Gates) -> list[int]:
    """The positions of the levels whose sums have weights linear in z."""
    levels = structure.levels()
    if gates == "none":
        return []
    if gates == "all":
        return list(range(len(levels)))
    return [position for position, level in enumerate(levels) if level.outputs]
