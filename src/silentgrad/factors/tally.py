"""How often every output has every count: all that a likelihood's `log_base` needs, however many rows there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from silentgrad.factors.pieces import Piece, derivatives_in

SMALL = 64  # counts below this are told by their place


@dataclass
class Tally:
    """Numbers of entries by output and count.

    Args:
        small: That of counts below `SMALL`, `(SMALL * outputs,)`, in double precision.
        keys: Larger ones: count times the number of outputs plus output, each once, ascending.
        large: How often each of them is there.
    """

    small: Tensor
    keys: Tensor
    large: Tensor

    @classmethod
    def of(cls, piece: Piece) -> "Tally":
        """The tally of a piece, in rows as they count."""
        outputs = piece.x.shape[1]
        counts = piece.x.long()
        if counts.min() < 0 or not torch.equal(counts.to(piece.x), piece.x):
            piece.base()  # raises its own error
        keys = counts.mul_(outputs).add_(torch.arange(outputs, device=counts.device))
        weights = None
        if piece.weights is not None:
            weights = piece.weights.double().unsqueeze(1).expand(keys.shape)
        if piece.mask is not None:
            weights = piece.mask if weights is None else weights * piece.mask
            weights = weights.double()
        is_small = keys < SMALL * outputs
        if not is_small.all():
            large = keys[~is_small]
            of_large = torch.ones_like(large, dtype=torch.float64) if weights is None else weights[~is_small]
            keys, weights = keys[is_small], None if weights is None else weights[is_small]
        else:
            large, of_large = keys.new_zeros(0), keys.new_zeros(0, dtype=torch.float64)
            weights = None if weights is None else weights.flatten()
        small = torch.bincount(keys.flatten(), weights, minlength=SMALL * outputs).double()
        return cls(small, *_merged(large, of_large))

    def __iadd__(self, other: "Tally") -> "Tally":
        self.small += other.small
        keys, large = torch.cat([self.keys, other.keys]), torch.cat([self.large, other.large])
        self.keys, self.large = _merged(keys, large)
        return self

    def table(self, event_shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Counts and how often they are there, both `(counts, *event_shape)`, in double precision."""
        outputs = event_shape.numel()
        counts = torch.arange(SMALL, device=self.keys.device).unsqueeze(1).expand(SMALL, outputs)
        often = self.small.reshape(SMALL, outputs)
        columns, order = (self.keys % outputs).sort(stable=True)
        per_column = torch.bincount(columns, minlength=outputs)
        places = torch.arange(len(columns), device=columns.device) - (per_column.cumsum(0) - per_column)[columns]
        larger = counts.new_zeros(int(per_column.max()), outputs)
        of_larger = often.new_zeros(larger.shape)
        larger[places, columns] = self.keys[order] // outputs
        of_larger[places, columns] = self.large[order]
        counts, often = torch.cat([counts, larger]).double(), torch.cat([often, of_larger])
        return counts.unflatten(1, event_shape), often.unflatten(1, event_shape)


def base_of(likelihood: Any, counts: Tensor, often: Tensor, parameters: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
    """The sum of `log_base` over a table's entries, and its derivatives in a likelihood's own parameters."""
    with torch.enable_grad():
        base = (often * likelihood.log_base(counts)).sum()
        derivatives = derivatives_in(parameters, base)
    return float(base), derivatives


def _merged(keys: Tensor, often: Tensor) -> tuple[Tensor, Tensor]:
    """Each key once, with the sum of what it has."""
    found, places = keys.unique(return_inverse=True)
    return found, often.new_zeros(len(found)).index_add_(0, places, often)
