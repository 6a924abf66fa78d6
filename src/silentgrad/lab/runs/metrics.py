"""Figures beside the bound: functions of examples x and of p(x|z) for a latent drawn from q(z|x), one number each.

A metric of one's own is a function and its name in :data:`METRICS`; it then stands in a run's files and in print.
"""

from collections.abc import Callable

from torch import Tensor
from torch import distributions as td

Metric = Callable[[Tensor, td.Distribution], Tensor]


def squared_error(x: Tensor, likelihood: td.Distribution) -> Tensor:
    """Squared error of the decoder's mean, summed over outputs."""
    return (likelihood.mean - x).flatten(1).square().sum(1)


METRICS: dict[str, Metric] = {"mse": squared_error}
