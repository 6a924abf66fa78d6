"""Checks of what a decoder is built with and given: shapes, precisions, and results that are numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from silentgrad.errors import DomainError, ShapeError
from silentgrad.latents.independent import shape_of
from silentgrad.latents.moments import required
from silentgrad.tracing import NARROW, underlying


def event_of(event_shape: int | Sequence[int]) -> torch.Size:
    """Return the shape of one example, of which a number is short for a vector's."""
    shape = shape_of(event_shape)
    if min(shape, default=0) < 1:
        raise ShapeError(f"event_shape has to be positive, got {tuple(shape)}")
    return shape


def require_number(result: Tensor, inputs: dict[str, Tensor]) -> None:
    """Refuse a result that is not finite, and names the inputs that are not."""
    # Looking at one number per example, not at every input, keeps the check off the hot path.
    if torch.compiler.is_compiling() or underlying(result).isfinite().all():
        return
    guilty = [name for name, value in inputs.items() if not underlying(value).isfinite().all()]
    if guilty:
        raise DomainError(f"expected_log_prob is not a number; not finite: {', '.join(guilty)}")
    raise DomainError(
        f"expected_log_prob overflows {result.dtype}: a precision, rate or square is beyond its largest number"
    )


def require_wide(dtype: torch.dtype) -> None:
    """Raise if a decoder's own numbers are in half precision."""
    if dtype in NARROW:
        raise DomainError(
            f"the decoder is {dtype}, too narrow for its closed form: call decoder.float(); x and q may stay as they "
            "are"
        )


def require_dtype(name: str, value: Tensor, dtype: torch.dtype) -> None:
    """Raise if a value has another precision than the decoder's, unless autocast is to mix them."""
    if value.dtype == dtype or torch.is_autocast_enabled(value.device.type):
        return
    remedy = f"bring {name} to the decoder's by .to({dtype})"
    if value.is_floating_point():
        remedy += f", or the decoder to its by decoder.to({value.dtype})"
    raise DomainError(f"{name} is {value.dtype}, the decoder {dtype}: {remedy}")


def whole_levels(x: Tensor, top: int) -> Tensor:
    """Return x if it is whole levels from 0 to the top; otherwise raise, or NaN in a graph, which cannot raise."""
    whole, message = (x >= 0) & (x <= top) & (x == x.round()), f"x has to be whole levels from 0 to {top}"
    if not torch.compiler.is_compiling() and not underlying(whole).all():
        found = float(underlying(x)[~underlying(whole)][0])
        message += f", found {found:.3g}"
        if 0 < found < 1:
            message += f": for images in 0 to 1, (x * {top}).round()"
    return required(x, whole, message)


def flattened_latent(z: Tensor, latent_dim: int, examples: torch.Size | None = None) -> Tensor:
    """Return latents as `(*batch, latent_dim)`; see `LinearDecoder.flatten_latent`."""
    if examples is not None:
        latents = z.shape[len(examples) :].numel()
        if z.shape[: len(examples)] == examples and latents == latent_dim:
            return z.reshape(*examples, latent_dim)
    held = 1
    for position in range(z.dim() - 1, -1, -1):
        held *= z.shape[position]
        if held == latent_dim:
            return z.flatten(position)
    raise ShapeError(f"the decoder takes {latent_dim} latents, got a latent of shape {tuple(z.shape)}")
