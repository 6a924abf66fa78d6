"""Anderson's acceleration of a fixed-point iteration x -> g(x), from its latest steps.

The combination of the latest g(x) is taken whose residual g(x) - x is smallest in the least-squares sense. It takes the
products of residuals' differences, which are sums: parts of x may be in different places, each with its `History`.

References:
    Walker and Ni (2011), Anderson acceleration for fixed-point iterations, SIAM Journal on Numerical Analysis 49.
"""

import torch
from torch import Tensor

MEMORY = 5
REGULARIZATION = 1e-8
ROWS = 2**13  # of which differences are formed at a time


class History:
    """The latest steps of a part of x: where they ended, g(x), and the residuals g(x) - x.

    Example:
        >>> history, x = History(), torch.tensor([5.0, 5.0], dtype=torch.float64)
        >>> for _ in range(4):
        ...     history.add(x, torch.tensor([0.9, 0.5]) * x + 1)  # an iteration whose fixed point is (10, 2)
        ...     x = history.extrapolated(shares_of(history.products(torch.ones(2))))
        >>> x
        tensor([10.0000,  2.0000], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.residuals: list[Tensor] = []

    def add(self, x: Tensor, g: Tensor) -> None:
        """Note a step from x to g."""
        self.outputs = [*self.outputs[-MEMORY:], g]
        self.residuals = [*self.residuals[-MEMORY:], g - x]

    def products(self, metric: Tensor) -> Tensor:
        """Products of the residuals' differences with one another and with the last residual, `(steps, steps + 1)`."""
        steps = len(self.residuals) - 1
        total = metric.new_zeros(steps, steps + 1, dtype=torch.float64)
        if steps == 0:
            return total
        for start in range(0, len(metric), ROWS):
            rows = slice(start, start + ROWS)
            residuals = torch.stack([residual[rows].flatten() for residual in self.residuals]).double()
            bends = residuals.diff(dim=0)
            total += bends * metric[rows].flatten() @ torch.cat([bends, residuals[-1:]]).T
        return total

    def extrapolated(self, shares: Tensor) -> Tensor:
        """Return the last g(x) less shares of the differences between the g(x) before."""
        place = self.outputs[-1].clone()
        for share, before, after in zip(shares.tolist(), self.outputs, self.outputs[1:], strict=False):
            place.sub_(after - before, alpha=share)
        return place


def shares_of(products: Tensor) -> Tensor:
    """Return the shares that leave the smallest residual."""
    gram, right = products[:, :-1], products[:, -1]
    if len(gram) == 0:
        return right
    least = torch.finfo(gram.dtype).tiny  # for steps that are all the same
    ridge = (REGULARIZATION * gram.trace() + least) * torch.eye(len(gram)).to(gram)
    return torch.linalg.solve(gram + ridge, right)
