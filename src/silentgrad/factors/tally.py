"""Frequencies of every count of every output: all that a likelihood's `log_base` needs, however many rows there are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.factors.pieces import Piece, derivatives_in, own_parameters

SMALL = 64  # counts below this are told by their place


@dataclass
class RowTally:
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
    def of(cls, piece: Piece) -> "RowTally":
        """Count the entries of a piece, in rows as they count."""
        outputs = piece.x.shape[1]
        counts = piece.x.long()
        if counts.min() < 0 or not torch.equal(counts.to(piece.x), piece.x):
            piece.base()  # raises its own error
        keys = counts.mul_(outputs).add_(torch.arange(outputs, device=counts.device)).flatten()
        weights = piece.counted(torch.ones_like(piece.x, dtype=torch.float64)).flatten()
        is_small = keys < SMALL * outputs
        small = torch.bincount(keys[is_small], weights[is_small], minlength=SMALL * outputs).double()
        return cls(small, *_merged(keys[~is_small], weights[~is_small]))

    @classmethod
    def none(cls, piece: Piece) -> "RowTally":
        """Return the tally of no entries."""
        nothing = piece.x.new_zeros(0, dtype=torch.float64)
        return cls(nothing, nothing.long(), nothing)

    def __add__(self, other: "RowTally") -> "RowTally":
        keys, large = torch.cat([self.keys, other.keys]), torch.cat([self.large, other.large])
        return RowTally(self.small + other.small, *_merged(keys, large))

    def table(self, event_shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Return counts and how often they are there, both `(counts, *event_shape)`, in double precision."""
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


def base_of(decoder: LinearLikelihood, counts: Tensor, often: Tensor) -> tuple[float, Tensor]:
    """Sum `log_base` over a table's entries; return that, and its derivatives in the likelihood's own parameters."""
    with torch.enable_grad():
        base = (often * decoder.likelihood.log_base(counts)).sum()  # type: ignore[attr-defined]
        derivatives = derivatives_in(own_parameters(decoder), base)
    return float(base), derivatives


def _merged(keys: Tensor, often: Tensor) -> tuple[Tensor, Tensor]:
    """Return each key once, with the sum of what it has."""
    found, places = keys.unique(return_inverse=True)
    return found, often.new_zeros(len(found)).index_add_(0, places, often)
