"""A mixture of tractable decoders, per output, per group of outputs or per example: a circuit without a tree."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.decoders.circuit import Circuit, event_of
from silentgrad.decoders.protocol import Leaf
from silentgrad.decoders.structures import Structure, pixels, separate
from silentgrad.errors import DomainError

Per = Literal["output", "pixel", "example"]


class Mixture(Circuit):
    """p(x|z) as a product of mixtures, whose weights are constant or linear in z.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        components: Number of components of each mixture.
        per: What is mixed by itself: every "output", every "pixel" with its colours, the whole "example", or every
            group of a list of groups of outputs, numbered as in a flattened example.
        gates: Whether the weights are linear in z.
        leaves: The leaves, as for `Circuit`.
        proxy: The proxy, as for `Circuit`.
        noise: The noise, as for `Circuit`.

    Example:
        >>> decoder = Mixture(2, (3, 8, 8), per="pixel")
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> x = torch.zeros(5, 3, 8, 8)
        >>> decoder.expected_log_prob(x, q).shape
        torch.Size([5])
        >>> decoder.responsibilities(x, q).shape
        torch.Size([5, 8, 8, 3])
    """

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        components: int = 3,
        per: Per | Sequence[Sequence[int]] = "output",
        gates: bool = True,
        leaves: Leaf | Sequence[Leaf] | None = None,
        proxy: bool = True,
        noise: float = 0.0,
    ) -> None:
        shape = event_of(event_shape)
        groups, self.groups_shape = _groups(shape, per)
        which: Literal["leaves", "none"] = "none"
        if gates:
            which = "leaves"
        super().__init__(latent_dim, shape, components, separate(groups), which, leaves, proxy, noise)

    def responsibilities(self, x: Tensor, q: td.Distribution) -> Tensor:
        """The posterior of the components given x, where the bound is best; it adds to one over the last dimension.

        Args:
            x: Examples `(*batch, *event_shape)`.
            q: Their latents.

        Returns:
            `(*batch, *event_shape, components)` for mixtures per output, `(*batch, height, width, components)` per
            pixel, `(*batch, components)` per example, `(*batch, groups, components)` per group.
        """
        leaves, gates = self.expectations(x, q)
        batch = x.shape[: x.dim() - len(self.event_shape)]
        return self.network.posterior(leaves, gates).reshape(*batch, *self.groups_shape, self.components)


def mixtures(event_shape: torch.Size, per: Per | Sequence[Sequence[int]]) -> Structure:
    """The structure of mixtures per output, per pixel, per example or per group."""
    return separate(_groups(event_shape, per)[0])


def _groups(event_shape: torch.Size, per: Per | Sequence[Sequence[int]]) -> tuple[Sequence[Sequence[int]], torch.Size]:
    """The outputs of each mixture, and the shape in which the mixtures lie."""
    outputs = range(event_shape.numel())
    if not isinstance(per, str):
        return per, torch.Size([len(per)])
    if per == "output":
        return [[output] for output in outputs], event_shape
    if per == "pixel":
        return pixels(event_shape), event_shape[-2:]
    if per == "example":
        return [outputs], torch.Size()
    raise DomainError(f"per has to be 'output', 'pixel', 'example' or groups of outputs, got {per!r}")
