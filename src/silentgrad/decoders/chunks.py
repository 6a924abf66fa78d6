"""Work over outputs in chunks, so that an array of (outputs, batch, latents) is never held whole."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from silentgrad.tracing import transformed

CHUNK = 2**20  # numbers of the (outputs, batch, latents) array at a time: a few such arrays fit a processor's cache

PerOutput = Callable[..., tuple[Tensor, ...]]


def map_outputs(
    function: PerOutput, weights: tuple[Tensor, ...], parameters: tuple[Tensor, ...], batch: torch.Size
) -> tuple[Tensor, ...]:
    """Applies a function of some outputs' weights to all outputs.

    Args:
        function: Takes slices `(chunk, latents)` of the weights, then the parameters; returns tensors `(chunk, *batch)`
            and depends on no other tensor that has a gradient.
        weights: Each `(outputs, latents)`.
        parameters: What every output needs whole.
        batch: Shape of the batch.

    Returns:
        The function's results, `(*batch, outputs)` each.
    """
    outputs, latents = weights[0].shape
    rows = max(1, CHUNK // (latents * max(1, batch.numel())))
    if rows >= outputs or transformed():
        results = function(*weights, *parameters)
    else:
        results = _Chunked.apply(function, rows, len(weights), *weights, *parameters)
    return tuple(result.movedim(0, -1) for result in results)


class _Chunked(torch.autograd.Function):
    """Keeps nothing of a chunk for the backward pass, which computes each chunk again."""

    @staticmethod
    def forward(function: PerOutput, rows: int, sliced: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = ()
        for chunk in _chunks(len(tensors[0]), rows):
            part = function(*(t[chunk] for t in tensors[:sliced]), *tensors[sliced:])
            # Written into one block: small results kept between large temporaries would fragment the memory.
            results = results or tuple(p.new_empty(len(tensors[0]), *p.shape[1:]) for p in part)
            for whole, p in zip(results, part, strict=True):
                whole[chunk] = p
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.function, ctx.rows, ctx.sliced, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a second derivative is wanted: let autograd see the whole computation
            # Of aliases: a parameter may be a function of another, whose gradient would count it twice.
            aliases = [t.view_as(t) for t in ctx.saved_tensors]
            return None, None, None, *_vjp(ctx.function, aliases, grads, create_graph=True)
        totals = [torch.zeros_like(t) for t in ctx.saved_tensors]
        for chunk in _chunks(len(totals[0]), ctx.rows):
            views = [t[chunk] for t in totals[: ctx.sliced]] + totals[ctx.sliced :]
            slices = [t[chunk] for t in ctx.saved_tensors[: ctx.sliced]] + list(ctx.saved_tensors[ctx.sliced :])
            leaves = [t.detach().requires_grad_() for t in slices]
            parts = _vjp(ctx.function, leaves, [g[chunk] for g in grads], create_graph=False)
            for total, part in zip(views, parts, strict=True):
                if part is not None:
                    total += part
        return None, None, None, *totals


def _chunks(outputs: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, outputs, rows))


def _vjp(function: PerOutput, tensors: Any, cotangents: Any, create_graph: bool) -> tuple[Tensor | None, ...]:
    with torch.enable_grad():
        results = function(*tensors)
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(torch.autograd.grad(results, wanted, cotangents, create_graph=create_graph, allow_unused=True))
    return tuple(next(found) if t.requires_grad else None for t in tensors)
