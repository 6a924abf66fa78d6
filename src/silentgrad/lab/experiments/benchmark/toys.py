r"""Toy problems whose gradient is known: every estimator's bias and variance against the truth.

One bit with :math:`f(z) = (z - 0.499)^2`, and a quadratic in 20 bits, :math:`f(z) = (z - a)^T A (z - a)`. Bits are
independent and :math:`z_i^2 = z_i`, so with probabilities p

.. math:: E f = (p - a)^T A (p - a) + \sum_i A_{ii}\, p_i (1 - p_i),

whose gradient in the logits is exact by differentiation. Every draw of an estimator's gradient is an example of a
large batch, so that many are had at once. One that learns has had some batches to do so before.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators import Estimator
from silentgrad.lab.experiments.benchmark.problem import estimator_named
from silentgrad.lab.training.suitable import EstimatorName, suitable_estimators
from silentgrad.latents.families.bernoulli import Bernoulli

LEARNING_BATCH = 100
AT_ONCE = 10_000  # draws
ROUNDING = 1e-9


@dataclass(frozen=True)
class Toy:
    """A quadratic of bits, and the probabilities at which its gradient is taken.

    Args:
        title: The problem in print.
        centre: a.
        matrix: A.
        logits: Logits of the probabilities.
    """

    title: str
    centre: Tensor
    matrix: Tensor
    logits: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        return self._square(z)

    def _square(self, z: Tensor) -> Tensor:
        residual = z - self.centre
        return ((residual @ self.matrix) * residual).sum(-1)

    def gradient(self) -> Tensor:
        """The gradient of E f in the logits."""
        logits = self.logits.clone().requires_grad_()
        p = torch.sigmoid(logits)
        expectation = self._square(p) + (self.matrix.diagonal() * p * (1 - p)).sum()
        (slope,) = torch.autograd.grad(expectation, logits)
        return slope


class ToyNoise(NamedTuple):
    """An estimator on a toy problem.

    Args:
        toy: The problem in print.
        estimator: Name of the estimator.
        bias: Length of the mean gradient's deviation from the truth, in parts of the truth's length.
        bias_error: How long it would be on average without a bias.
        variance: Variance of one draw, summed over the logits, in parts of the truth's squared length.
        evaluations: Evaluations of f that a draw takes.
    """

    toy: str
    estimator: EstimatorName
    bias: float
    bias_error: float
    variance: float
    evaluations: int

    @property
    def work(self) -> float:
        """Variance times evaluations."""
        return self.variance * self.evaluations

    @property
    def biased(self) -> bool:
        """Whether the deviation is more than four times what draws alone make."""
        return self.bias > 4 * self.bias_error + ROUNDING


def toys() -> list[Toy]:
    """The problems, in double precision."""
    generator = torch.Generator().manual_seed(0)
    one, half = torch.ones(1, 1, dtype=torch.float64), torch.full((1,), 0.499, dtype=torch.float64)
    root = torch.randn(20, 20, generator=generator, dtype=torch.float64) / 20**0.5
    centre = torch.rand(20, generator=generator, dtype=torch.float64)
    logits = torch.randn(20, generator=generator, dtype=torch.float64)
    return [
        Toy("(z - 0.499)², p = 1/2", half, one, torch.zeros_like(half)),
        Toy("(z - 0.499)², p = 3/4", half, one, torch.full_like(half, math.log(3))),
        Toy("quadratic in 20 bits", centre, root @ root.T, logits),
    ]


def measure_toys(draws: int, learning: int) -> list[ToyNoise]:
    """All estimators of bits on all toy problems; the bound of several samples is of another objective.

    Args:
        draws: Number of draws of each gradient.
        learning: Number of batches that an estimator learns from before, if it learns.
    """
    found = []
    for toy in toys():
        for name in suitable_estimators(Bernoulli):
            if name not in ("none", "exact", "vimco"):
                found.append(measure_toy(toy, name, draws, learning))
    return found


def measure_toy(toy: Toy, name: EstimatorName, draws: int, learning: int = 0) -> ToyNoise:
    """An estimator's bias and variance on a toy problem; the arguments are those of :func:`measure_toys`."""
    torch.manual_seed(0)
    latents = toy.logits.numel()
    estimator = estimator_named(name, latents).double()
    _teach(estimator, toy, learning)
    estimator.eval()
    gradients = []
    for start in range(0, draws, AT_ONCE):
        leaf = toy.logits.expand(min(AT_ONCE, draws - start), latents).clone().requires_grad_()
        estimator(td.Bernoulli(logits=leaf), toy).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    drawn, truth = torch.cat(gradients), toy.gradient()
    length = truth.norm()
    variance = drawn.var(0).sum()
    bias = (drawn.mean(0) - truth).norm() / length
    error = (variance / draws).sqrt() / length
    evaluations = estimator.evaluations(latents)
    return ToyNoise(toy.title, name, bias.item(), error.item(), (variance / length.square()).item(), evaluations)


def _teach(estimator: Estimator, toy: Toy, steps: int) -> None:
    """Lets an estimator learn what it learns of a toy problem."""
    own = list(estimator.parameters())
    optimizer = None
    if own:
        optimizer = torch.optim.Adam(own, lr=1e-2)
    for _ in range(steps):
        leaf = toy.logits.expand(LEARNING_BATCH, toy.logits.numel()).clone().requires_grad_()
        estimator.zero_grad()
        estimator(td.Bernoulli(logits=leaf), toy).sum().backward()  # by both of which running averages learn
        loss = estimator.auxiliary_loss()
        if optimizer is not None and loss is not None:
            loss.backward()
            optimizer.step()
