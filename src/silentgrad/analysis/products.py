r"""The mean and the variance of a batch's gradient over draws, out of vector-Jacobian products with the encoder.

A product costs as much as the encoder's backward pass. The mean over draws is one of them, since
:math:`\bar g = J^T \bar c`. The variance is

- `every`: one for every draw, :math:`\sum_s |J^T (c_s - c_1)|^2 - S |J^T (\bar c - c_1)|^2`;
- `sketch`: K of them, whatever the number of draws. With random signs :math:`r_s` the cross terms vanish in

  .. math:: E_r \Bigl| J^T \sum_s r_s (c_s - \bar c) \Bigr|^2 = \sum_s |J^T (c_s - \bar c)|^2,

  and the sums over s are taken as the draws come.

Both subtract the first draw before anything else: draws that do not differ then give zero, not what rounding left.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from silentgrad.analysis.drawing import Cotangent

Gradient = list[Tensor]


class Pullback:
    """J^T: from cotangents of the latent's parameters to the encoder's gradient, as often as asked."""

    def __init__(self, outputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        self.outputs, self.parameters = outputs, parameters

    def __call__(self, cotangent: Cotangent) -> Gradient:
        return list(
            torch.autograd.grad(
                self.outputs, self.parameters, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        )


class Every:
    """The sum over draws of |g_s - mean|^2, one number per parameter tensor, by one product for every draw."""

    def __init__(self, pullback: Callable[[Cotangent], Gradient]) -> None:
        self.pullback = pullback
        self.squares = torch.zeros(())

    def add(self, differences: Cotangent) -> None:
        """Take in draws `(count, batch, ...)`, relative to the first."""
        for draw in zip(*differences, strict=True):
            self.squares = self.squares + squared_norms(self.pullback(list(draw)))

    def sum_of_squares(self, mean: Cotangent, draws: int) -> Tensor:
        """Return the result, given the mean of all differences."""
        return self.squares - draws * squared_norms(self.pullback(mean))


class Sketch:
    """The same sum by as many products as there are sign vectors."""

    def __init__(self, pullback: Pullback, products: int, generator: torch.Generator) -> None:
        self.pullback, self.products, self.generator = pullback, products, generator
        self.sums: Cotangent = []
        self.balance = torch.zeros(products)

    def add(self, differences: Cotangent) -> None:
        first = differences[0]
        signs = 2 * torch.randint(2, (self.products, len(first)), generator=self.generator) - 1
        signs = signs.to(first)
        self.sums = added(self.sums, [torch.tensordot(signs, difference, 1) for difference in differences])
        self.balance = self.balance.to(first) + signs.sum(1)

    def sum_of_squares(self, mean: Cotangent, draws: int) -> Tensor:
        norms = []
        for balance, *sums in zip(self.balance, *self.sums, strict=True):
            sketch = [s - balance * m for s, m in zip(sums, mean, strict=True)]
            norms.append(squared_norms(self.pullback(sketch)))
        return torch.stack(norms).mean(0)


SquaresMethod = Every | Sketch


class OverDraws(NamedTuple):
    """The mean cotangent over draws, and the unbiased variance of the gradient per parameter tensor."""

    mean: Cotangent
    variance: Tensor


def over_draws(chunks: Iterable[Cotangent], method: SquaresMethod, draws: int) -> OverDraws:
    """Stream the draws through a method; nothing is kept of a single draw but the first."""
    first: Cotangent = []
    total: Cotangent = []
    for chunk in chunks:
        if not first:
            first = [cotangents[0] for cotangents in chunk]
        differences = difference(chunk, first)
        total = added(total, [each.sum(0) for each in differences])
        method.add(differences)
    mean = [t / draws for t in total]
    return OverDraws(added(first, mean), method.sum_of_squares(mean, draws) / (draws - 1))


def squared_norms(gradient: Gradient) -> Tensor:
    """Compute |g|^2 of each parameter tensor."""
    return inner_products(gradient, gradient)


def inner_products(a: Gradient, b: Gradient) -> Tensor:
    """Multiply each parameter tensor with its counterpart."""
    return torch.stack([torch.dot(x.flatten(), y.flatten()) for x, y in zip(a, b, strict=True)])


def added(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    """Add tensor by tensor; an empty first list is zero."""
    return [x + y for x, y in zip(a, b, strict=True)] if a else b


def difference(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    """Subtract tensor by tensor."""
    return [x - y for x, y in zip(a, b, strict=True)]
