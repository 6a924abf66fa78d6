r"""Noise and cost of every estimator's gradient: on the weights of a run, and on toy problems.

The weights are those of the run by leave-one-out REINFORCE, of the first seed, after chosen epochs. An estimator that
learns does so first, for some steps while these weights stand still.

The toy problems have a gradient that is known, so that bias and variance are held against the truth: one bit with
:math:`f(z) = (z - 0.499)^2`, and a quadratic in 20 bits, :math:`f(z) = (z - a)^T A (z - a)`. Bits are independent and
:math:`z_i^2 = z_i`, so with probabilities p

.. math:: E f = (p - a)^T A (p - a) + \sum_i A_{ii}\, p_i (1 - p_i),

whose gradient in the logits is exact by differentiation. Every draw of an estimator's gradient is an example of a
large batch, so that many are had at once.
"""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis import Decomposition, gradient_variance
from silentgrad.estimators import Estimator
from silentgrad.lab.experiments.benchmark.protocol import BATCH, BenchmarkPlan, Setting
from silentgrad.lab.settings import EstimatorName, estimator_class, suitable_estimators
from silentgrad.lab.store.files import read_json, write_json_atomically
from silentgrad.lab.training import TrainConfig, load_weights, read_config
from silentgrad.lab.training.fabric import fabric_for
from silentgrad.lab.training.loading import observations_of
from silentgrad.lab.training.measuring import estimators_of, kept_variances, training_batches
from silentgrad.latents.families import Bernoulli

LEARNING_BATCH = 100
AT_ONCE = 10_000  # draws
ROUNDING = 1e-9


class ReferenceWeights:
    """The weights that gradients of a setting are measured on, after an epoch."""

    def __init__(self, plan: BenchmarkPlan, setting: Setting, epoch: int) -> None:
        run = plan.weights(setting)
        self.size, self.settings = plan.size, read_config(run.path)
        self.device = fabric_for(TrainConfig(accelerator=plan.accelerator), prefix="--").device
        self.observations = observations_of(self.settings, root=plan.root)
        self.model = load_weights(run.path, run.kept(epoch), self.observations).to(self.device)

    def variances(self, names: Sequence[EstimatorName]) -> dict[str, Decomposition]:
        """Return the variance of each estimator's gradient."""
        estimators = {name: self._taught(name) for name in names}
        batches = self._batches(self.size.batches, seed=1)
        return gradient_variance(self.model.eval(), batches, self.size.draws, estimators)

    def milliseconds(self, names: Sequence[EstimatorName]) -> dict[str, float]:
        """Return the median time of each estimator's step, forward and backward; the estimators take turns."""
        (x,) = self._batches(1, seed=1)
        estimators = {name: self._estimator(name) for name in names}
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(1 + self.size.rounds):
            for name, estimator in estimators.items():
                self._take(estimator)
                start = time.perf_counter()
                self._pass_back(x)
                if self.device.type != "cpu":
                    torch.accelerator.synchronize(self.device)
                times[name].append(1e3 * (time.perf_counter() - start))
        return {name: statistics.median(rounds[1:]) for name, rounds in times.items()}

    def _batches(self, count: int, seed: int) -> Iterator[Tensor]:
        for x in training_batches(self.observations, BATCH, count, seed):
            yield x.to(self.device)

    def _estimator(self, name: EstimatorName) -> Estimator:
        (estimator,) = estimators_of(self.settings.model, [name], epoch=1)
        return estimator.to(self.device)

    def _take(self, estimator: Estimator) -> None:
        """Have the model trained by an estimator."""
        setattr(self.model, "tractable_estimator" if self.model.nonlinear is None else "estimator", estimator)
        self.model.train()

    def _pass_back(self, x: Tensor) -> None:
        """Compute a gradient of the whole objective."""
        self.model.zero_grad(set_to_none=True)
        self.model(x, epoch=1).total.backward()

    def _taught(self, name: EstimatorName) -> Estimator:
        """Return an estimator that has learned what it learns, while the model stands still."""
        torch.manual_seed(0)
        estimator = self._estimator(name)
        self._take(estimator)
        learned = list(estimator.parameters())
        optimizer = torch.optim.Adam(learned, lr=self.settings.train.rate) if learned else None
        for x in self._batches(self.size.learning, seed=2) if [*learned, *estimator.buffers()] else ():
            self._pass_back(x)  # by which running averages learn too
            if optimizer is not None:
                optimizer.step()
        return estimator


def variances_at(plan: BenchmarkPlan, setting: Setting, epoch: int) -> dict[str, Decomposition]:
    """Return the variance of all estimators' gradients after an epoch of the reference run; measured once."""

    def measure(names: Sequence[EstimatorName]) -> dict[str, Decomposition]:
        return ReferenceWeights(plan, setting, epoch).variances(names)

    return kept_variances(plan.weights(setting).kept_variance(epoch, plan.scale), plan.names(setting), measure)


def milliseconds_of(plan: BenchmarkPlan, setting: Setting) -> dict[str, float]:
    """Return the milliseconds of a step by each estimator of a setting; measured once, all of them in turns."""
    path, names = plan.folder / f"{setting.name}-milliseconds.json", plan.names(setting)
    if not path.exists() or not set(names) <= read_json(path).keys():
        write_json_atomically(path, ReferenceWeights(plan, setting, plan.size.measured[0]).milliseconds(names))
    return read_json(path)


@dataclass(frozen=True)
class Toy:
    """A quadratic of bits, and the probabilities at which its gradient is taken."""

    title: str  # the problem in print
    centre: Tensor  # a
    matrix: Tensor  # A
    logits: Tensor  # logits of the probabilities

    def __call__(self, z: Tensor) -> Tensor:
        residual = z - self.centre
        return ((residual @ self.matrix) * residual).sum(-1)

    def gradient(self) -> Tensor:
        """Return the gradient of E f in the logits."""
        logits = self.logits.clone().requires_grad_()
        p = torch.sigmoid(logits)
        expectation = self(p) + (self.matrix.diagonal() * p * (1 - p)).sum()
        (slope,) = torch.autograd.grad(expectation, logits)
        return slope


class ToyNoise(NamedTuple):
    """An estimator on a toy problem; lengths in parts of the truth's."""

    toy: str  # the problem in print
    estimator: EstimatorName
    bias: float  # length of the mean gradient's deviation from the truth
    bias_error: float  # how long it would be on average without a bias
    variance: float  # of one draw, summed over the logits
    evaluations: int  # of f, by a draw

    @property
    def work(self) -> float:
        """Variance times evaluations."""
        return self.variance * self.evaluations

    @property
    def biased(self) -> bool:
        """True if the deviation is more than four times what draws alone make."""
        return self.bias > 4 * self.bias_error + ROUNDING


def toys() -> list[Toy]:
    """Return the problems, in double precision."""
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


def measure_toy(toy: Toy, name: EstimatorName, draws: int, learning: int = 0) -> ToyNoise:
    """Return bias and variance over some draws of an estimator's gradient, after batches that it may learn from."""
    torch.manual_seed(0)
    latents = toy.logits.numel()
    estimator = estimator_class("--estimators", name).sized(latents).double()

    def gradients(count: int) -> Tensor:
        leaf = toy.logits.expand(count, latents).clone().requires_grad_()
        estimator(td.Bernoulli(logits=leaf), toy).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    learned = list(estimator.parameters())
    optimizer = torch.optim.Adam(learned, lr=1e-2) if learned else None
    for _ in range(learning):
        estimator.zero_grad()
        gradients(LEARNING_BATCH)  # by which running averages learn too
        loss = estimator.auxiliary_loss()
        if optimizer is not None and loss is not None:
            loss.backward()
            optimizer.step()
    estimator.eval()
    drawn = torch.cat([gradients(min(AT_ONCE, draws - start)) for start in range(0, draws, AT_ONCE)])
    truth, variance = toy.gradient(), drawn.var(0).sum()
    figures = (drawn.mean(0) - truth).norm(), (variance / draws).sqrt(), variance / truth.norm()
    bias, error, spread = [(figure / truth.norm()).item() for figure in figures]
    return ToyNoise(toy.title, name, bias, error, spread, estimator.evaluations(latents))


def toys_of(plan: BenchmarkPlan) -> list[ToyNoise]:
    """Return all estimators of bits on all toy problems; measured once.

    The bound of several samples is left out: its objective is another.
    """
    path = plan.folder / "toys.json"
    if not path.exists():
        left_out = ("none", "exact", "enumerate", "vimco")
        names = [name for name in suitable_estimators(Bernoulli) if name not in left_out]
        measured = [measure_toy(*pair, plan.size.toy_draws, plan.size.learning) for pair in product(toys(), names)]
        rows = [one._asdict() for one in measured]
        write_json_atomically(path, {"toys": rows})
    return [ToyNoise(**row) for row in read_json(path)["toys"]]
