"""Side information: what is known of examples but x itself, as one object that models and decoders pass on."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.tracing import underlying, widened

WHO_TAKES = {
    "offset": "LinearLikelihood does, with any likelihood",
    "covariates": "LinearLikelihood does, built with covariates=...",
    "mask": "linear decoders do, without a context",
    "scale": "LinearLikelihood does, with sg.likelihoods.Normal",
    "context": "a decoder does whose context is conditional, such as sg.CausalContext(..., given=network)",
}


def usual_size(sums: ArrayLike) -> float:
    """Return what the sizes of rows are relative to: the median of the sums of those that a model is fitted to."""
    return float(np.median(np.asarray(sums)))


@dataclass(frozen=True)
class SideInfo:
    """Side information of a batch of examples; each part may be absent.

    Args:
        offset: Known part of u = W z + b + offset, such as the logarithm of a size: one number per example,
            `(*batch,)`, or one per entry, `(*batch, *event_shape)`.
        covariates: Known numbers of each example, `(*batch, covariates)`, for which the decoder has weights.
        mask: Which entries were observed, in the shape of x. An entry that was not takes no part, whatever stands in x,
            in the offset and in the scale.
        scale: Known standard deviation of each entry's measurement, in the shape of x, in addition to the model's.
        context: What a conditional context is told of each example, such as a label or another image, `(*batch, ...)`.
    """

    offset: Tensor | None = None
    covariates: Tensor | None = None
    mask: Tensor | None = None
    scale: Tensor | None = None
    context: Tensor | None = None

    def __bool__(self) -> bool:
        """Return whether any part is there."""
        return self is not NOTHING and any(part is not None for part in self.parts().values())

    def parts(self) -> dict[str, Tensor | None]:
        """Return the parts by name."""
        return dict(vars(self))  # several times a step, so by no slower way

    def require_none(self, decoder: str, *names: str) -> None:
        """Raise if a part is there that a decoder does not take; `decoder` is its name in the message."""
        for name in names:
            if getattr(self, name) is not None:
                raise IntractableError(f"{decoder} takes no {name}: {WHO_TAKES[name]}")

    def to(self, like: Tensor) -> "SideInfo":
        """Return the same on the device of a tensor, and in its precision; a label stays a whole number."""

        def moved(part: Tensor) -> Tensor:
            if part.dtype == torch.bool or (part is self.context and not part.is_floating_point()):
                return part.to(like.device)
            return part.to(like)

        return self.map(moved)

    def map(self, function: Callable[[Tensor], Tensor]) -> "SideInfo":
        """Apply a function to every part that is there."""
        if not self:
            return NOTHING  # which is asked several times a step, and answers at once
        return SideInfo(**{name: part if part is None else function(part) for name, part in self.parts().items()})

    def between(self, rows: slice) -> "SideInfo":
        """Return the side information of some of the examples."""
        return self.map(lambda part: part[rows])

    def observed(self, x: Tensor, neutral: float) -> Tensor:
        """Return x with a neutral number where an entry was not observed."""
        if self.mask is None:
            return x
        return torch.where(self.mask, x, neutral)

    def total(self, outputs: Tensor) -> Tensor:
        """Sum over the outputs that were observed."""
        if self.mask is None:
            return outputs.sum(-1)
        return torch.where(self.mask, outputs, 0).sum(-1)

    def under(self, batch_shape: torch.Size, event_shape: torch.Size) -> "SideInfo":
        """Return the same, flattened, for examples whose shape may have dimensions of samples before its own."""
        for samples in range(len(batch_shape)):
            with contextlib.suppress(ShapeError):
                return self.flattened(batch_shape[samples:], event_shape)
        return self.flattened(batch_shape, event_shape)  # which says what does not fit

    def flattened(self, examples: torch.Size, event_shape: torch.Size) -> "SideInfo":
        """Return the same once it was checked, every part with one dimension beyond the examples'.

        Args:
            examples: Shape of the examples, `(*batch,)`.
            event_shape: Shape of one example.

        Raises:
            ShapeError, DomainError: A part does not fit the examples, or is none of what it should be.
        """
        whole = examples + event_shape
        _require_shape("mask", self.mask, [whole])
        _require_shape("scale", self.scale, [whole])
        _require_shape("offset", self.offset, [examples, whole])
        for name, part, own in (("covariates", self.covariates, -1), ("context", self.context, len(examples))):
            if part is not None and part.shape[:own] != examples:
                rows = f"expected one row for each of the examples {tuple(examples)}"
                raise ShapeError(f"{name} has shape {tuple(part.shape)}, {rows}")
        if self.mask is not None and self.mask.dtype != torch.bool:
            raise DomainError(f"mask has to be bool, True where an entry was observed; got {self.mask.dtype}")
        known = self._in_rows(len(examples))
        known._require_values()
        return known

    def _in_rows(self, dims: int) -> "SideInfo":
        """Return every part with one dimension beyond the examples' `dims`, neutral where an entry was not observed."""
        offset, mask, scale = self.offset, self.mask, self.scale
        if mask is not None:
            mask = mask.flatten(dims)
        rows = SideInfo(mask=mask)
        if offset is not None:
            if offset.dim() == dims:
                offset = offset.unsqueeze(-1)
            offset = rows.observed(widened(offset).flatten(dims), 0.0)
        if scale is not None:
            scale = rows.observed(widened(scale).flatten(dims), 1.0)
        return SideInfo(offset, self.covariates, mask, scale, self.context)

    def _require_values(self) -> None:
        if torch.compiler.is_compiling():
            return
        if self.scale is not None and not (underlying(self.scale) >= 0).all():
            raise DomainError("a scale cannot be negative or NaN")
        for name in ("offset", "covariates"):
            part: Tensor | None = getattr(self, name)
            if part is not None and not underlying(part).isfinite().all():
                raise DomainError(f"{name} holds a number that is not finite, as the logarithm of a size of zero is")


NOTHING = SideInfo()


def _require_shape(name: str, part: Tensor | None, allowed: list[torch.Size]) -> None:
    if part is None or part.shape in allowed:
        return
    shapes = " or ".join(str(tuple(shape)) for shape in allowed)
    raise ShapeError(f"{name} has shape {tuple(part.shape)}, expected {shapes}")
