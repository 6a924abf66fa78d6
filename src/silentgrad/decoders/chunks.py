"""Work over outputs in chunks, so that an array of (outputs, batch, latents) is never held whole."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from silentgrad.tracing import transformed

CHUNK = 2**20  # numbers at a time: a few arrays of so many fit a processor's cache

PerOutput = Callable[..., tuple[Tensor, ...]]


def map_outputs(
    function: PerOutput, weights: tuple[Tensor, ...], parameters: tuple[Tensor, ...], numbers: int
) -> tuple[Tensor, ...]:
    """Applies a function of some outputs' weights to all outputs.

    Args:
        function: A function of slices `(chunk, latents)` of the weights, then of the parameters. It returns tensors
            `(chunk, *batch)` and depends on no other tensor that has a gradient.
        weights: Tensors of shape `(outputs, latents)`, which are sliced.
        parameters: Tensors that every output needs whole.
        numbers: How many numbers the function holds at a time for one output.

    Returns:
        The function's results, `(*batch, outputs)` each.
    """
    outputs = len(weights[0])
    rows = max(1, CHUNK // max(1, numbers))
    if rows >= outputs or transformed():
        results = function(*weights, *parameters)
    else:
        results = _Chunked.apply(function, rows, len(weights), *weights, *parameters)
    return tuple(result.movedim(0, -1) for result in results)


class _Chunked(torch.autograd.Function):
    """Keeps nothing of a chunk for the backward pass, which computes each chunk again."""

    @staticmethod
    def forward(function: PerOutput, rows: int, sliced: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = len(tensors[0])
        results: list[Tensor] = []
        for chunk in _chunks(outputs, rows):
            parts = function(*_at(chunk, tensors, sliced))
            if not results:
                results = _empty(parts, outputs)
            for result, part in zip(results, parts, strict=True):
                result[chunk] = part
        return tuple(results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.function, ctx.rows, ctx.sliced, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a second derivative is wanted: let autograd see the whole computation
            # Aliases, because a parameter may be a function of another, whose gradient would count it twice.
            aliases = [t.view_as(t) for t in ctx.saved_tensors]
            return None, None, None, *_vjp(ctx.function, aliases, grads, create_graph=True)
        totals = [torch.zeros_like(t) for t in ctx.saved_tensors]
        for chunk in _chunks(len(totals[0]), ctx.rows):
            leaves = _leaves(_at(chunk, ctx.saved_tensors, ctx.sliced))
            cotangents = _at(chunk, grads, len(grads))
            parts = _vjp(ctx.function, leaves, cotangents, create_graph=False)
            _add(_at(chunk, totals, ctx.sliced), parts)
        return None, None, None, *totals


def _chunks(outputs: int, rows: int) -> Iterator[slice]:
    for start in range(0, outputs, rows):
        yield slice(start, start + rows)


def _at(chunk: slice, tensors: Sequence[Tensor], sliced: int) -> list[Tensor]:
    """Views of the tensors: a chunk of the first ones, as many as are sliced, and the others whole."""
    views = list(tensors)
    for index in range(sliced):
        views[index] = tensors[index][chunk]
    return views


def _empty(parts: Sequence[Tensor], outputs: int) -> list[Tensor]:
    """One block for each result: small results kept between large temporaries would fragment the memory."""
    blocks = []
    for part in parts:
        blocks.append(part.new_empty(outputs, *part.shape[1:]))
    return blocks


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers, as the beginning of a new graph."""
    leaves = []
    for tensor in tensors:
        leaves.append(tensor.detach().requires_grad_())
    return leaves


def _add(totals: Sequence[Tensor], parts: Sequence[Tensor | None]) -> None:
    for total, part in zip(totals, parts, strict=True):
        if part is not None:
            total += part


def _vjp(function: PerOutput, tensors: Any, cotangents: Any, create_graph: bool) -> tuple[Tensor | None, ...]:
    with torch.enable_grad():
        results = function(*tensors)
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(torch.autograd.grad(results, wanted, cotangents, create_graph=create_graph, allow_unused=True))
    gradients: list[Tensor | None] = []
    for tensor in tensors:
        gradient = None
        if tensor.requires_grad:
            gradient = next(found)
        gradients.append(gradient)
    return tuple(gradients)
