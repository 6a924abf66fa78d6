"""Anderson's acceleration of a fixed-point iteration."""

import torch
from torch import Tensor

MEMORY = 5
REGULARIZATION = 1e-8


class Anderson:
    """Extrapolates an iteration x -> g(x) from its latest steps (Walker and Ni 2011).

    The combination of the latest g(x) is taken whose residual g(x) - x is smallest in the least-squares sense.

    Example:
        >>> method, x = Anderson(), torch.tensor([5.0, 5.0], dtype=torch.float64)
        >>> for _ in range(4):
        ...     x = method.next(x, torch.tensor([0.9, 0.5]) * x + 1, torch.ones(2))  # whose fixed point is (10, 2)
        >>> x
        tensor([10.0000,  2.0000], dtype=torch.float64)

    References:
        Walker and Ni (2011), Anderson acceleration for fixed-point iterations, SIAM Journal on Numerical Analysis 49.
    """

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def forget(self) -> None:
        """Starts anew."""
        self.inputs.clear()
        self.outputs.clear()

    def next(self, x: Tensor, g: Tensor, metric: Tensor) -> Tensor:
        """Where to go on, after the iteration went from x to g; squares of residuals are weighted by the metric."""
        self.inputs = [*self.inputs[-MEMORY:], x]
        self.outputs = [*self.outputs[-MEMORY:], g]
        if len(self.inputs) == 1:
            return g
        outputs = torch.stack(self.outputs)
        residuals = outputs - torch.stack(self.inputs)
        bends = residuals.diff(dim=0)
        gram = bends * metric @ bends.T
        least = torch.finfo(gram.dtype).tiny  # for steps that are all the same
        gram += (REGULARIZATION * gram.trace() + least) * torch.eye(len(gram)).to(gram)
        shares = torch.linalg.solve(gram, bends * metric @ residuals[-1])
        return g - shares @ outputs.diff(dim=0)
