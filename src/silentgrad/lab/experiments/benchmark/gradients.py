r"""Noise and cost of every estimator's gradient: on the weights of a run, and on toy problems.

The weights are those of the run by leave-one-out REINFORCE, of the first seed, at fixed steps. An estimator that learns
does so first, for some steps while these weights stand still.

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
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis import Decomposition, gradient_variance
from silentgrad.estimators import Estimator
from silentgrad.lab.experiments.benchmark.problem import build, observations_of, with_estimator
from silentgrad.lab.experiments.benchmark.protocol import (
    BATCH,
    RATES,
    REFERENCE,
    BenchmarkPlan,
    BenchmarkRun,
    Setting,
    estimator_named,
    weights_file,
)
from silentgrad.lab.settings import EstimatorName, suitable_estimators
from silentgrad.lab.store.files import read_json, write_json_atomically
from silentgrad.lab.training import TrainConfig
from silentgrad.lab.training.fabric import fabric_for
from silentgrad.lab.training.measuring import kept_variances, training_batches
from silentgrad.latents.families import Bernoulli

LEARNING_BATCH = 100
AT_ONCE = 10_000  # draws
ROUNDING = 1e-9


class ReferenceWeights:
    """The weights that gradients of a setting are measured on, after a step."""

    def __init__(self, plan: BenchmarkPlan, setting: Setting, step: int) -> None:
        self.size, self.rate, self.numbers = plan.size, RATES[plan.data(setting)], setting.family(plan.size).numbers
        self.device = fabric_for(TrainConfig(accelerator=plan.accelerator), prefix="--").device
        self.observations = observations_of(setting, plan)
        self.model = build(setting, plan.size, self.observations, seed=0)
        run = BenchmarkRun(setting, REFERENCE, 0)
        self.model.load_state_dict(load_file(weights_file(plan.folder / run.name, step)))
        self.model.to(self.device)

    def variances(self, names: Sequence[EstimatorName]) -> dict[str, Decomposition]:
        """The variance of each estimator's gradient."""
        estimators = {name: self._taught(name) for name in names}
        batches = self._batches(self.size.batches, seed=1)
        return gradient_variance(self.model.eval(), batches, self.size.draws, estimators)

    def milliseconds(self, names: Sequence[EstimatorName]) -> dict[str, float]:
        """The median time of each estimator's step, forward and backward; the estimators take turns."""
        (x,) = self._batches(1, seed=1)
        estimators = {name: estimator_named(name, self.numbers) for name in names}
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(1 + self.size.rounds):
            for name, estimator in estimators.items():
                with_estimator(self.model, estimator).train()
                start = time.perf_counter()
                self._pass_back(x)
                if self.device.type != "cpu":
                    torch.accelerator.synchronize(self.device)
                times[name].append(1e3 * (time.perf_counter() - start))
        return {name: statistics.median(rounds[1:]) for name, rounds in times.items()}

    def _batches(self, count: int, seed: int) -> Iterator[Tensor]:
        for x in training_batches(self.observations, BATCH, count, seed):
            yield x.to(self.device)

    def _pass_back(self, x: Tensor) -> None:
        """Compute a gradient of the whole objective."""
        self.model.zero_grad(set_to_none=True)
        self.model(x, epoch=1).total.backward()

    def _taught(self, name: EstimatorName) -> Estimator:
        """An estimator that has learned what it learns, while the model stands still."""
        torch.manual_seed(0)
        estimator = estimator_named(name, self.numbers)
        with_estimator(self.model, estimator).train()
        learned = list(estimator.parameters())
        if not learned and not list(estimator.buffers()):
            return estimator
        optimizer = torch.optim.Adam(learned, lr=self.rate) if learned else None
        for x in self._batches(self.size.learning, seed=2):
            self._pass_back(x)  # by which running averages learn too
            if optimizer is not None:
                optimizer.step()
        return estimator


def variances_at(plan: BenchmarkPlan, setting: Setting, step: int) -> dict[str, Decomposition]:
    """The variance of all estimators' gradients after a step of the reference run; measured, unless a file keeps it."""

    def measure(names: Sequence[EstimatorName]) -> dict[str, Decomposition]:
        return ReferenceWeights(plan, setting, step).variances(names)

    return kept_variances(_variances_file(plan, setting, step), plan.names(setting), measure)


def missing_variances(plan: BenchmarkPlan) -> list[partial[dict[str, Decomposition]]]:
    """The calls by which gradients are measured where they still have to be."""
    missing = []
    for setting, step in product(plan.settings, plan.size.measured):
        if not _keeps(_variances_file(plan, setting, step), plan.names(setting)):
            missing.append(partial(variances_at, plan, setting, step))
    return missing


def milliseconds_of(plan: BenchmarkPlan, setting: Setting) -> dict[str, float]:
    """The milliseconds of a step by each estimator of a setting; measured, unless a file keeps all of them."""
    path, names = plan.folder / f"{setting.name}-milliseconds.json", plan.names(setting)
    if not _keeps(path, names):
        write_json_atomically(path, ReferenceWeights(plan, setting, 0).milliseconds(names))
    return read_json(path)


def _variances_file(plan: BenchmarkPlan, setting: Setting, step: int) -> Path:
    return plan.folder / f"{setting.name}-noise-{step}.json"


def _keeps(path: Path, names: Sequence[EstimatorName]) -> bool:
    """Whether a file has figures of all these estimators."""
    return path.exists() and set(names) <= read_json(path).keys()


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
        """The gradient of E f in the logits."""
        logits = self.logits.clone().requires_grad_()
        p = torch.sigmoid(logits)
        expectation = self(p) + (self.matrix.diagonal() * p * (1 - p)).sum()
        (slope,) = torch.autograd.grad(expectation, logits)
        return slope


class ToyNoise(NamedTuple):
    """An estimator on a toy problem."""

    toy: str  # the problem in print
    estimator: EstimatorName  # name of the estimator
    bias: float  # length of the mean gradient's deviation from the truth, in parts of the truth's length
    bias_error: float  # how long it would be on average without a bias
    variance: float  # variance of one draw, summed over the logits, in parts of the truth's squared length
    evaluations: int  # evaluations of f that a draw takes

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


def measure_toy(toy: Toy, name: EstimatorName, draws: int, learning: int = 0) -> ToyNoise:
    """Bias and variance over some draws of an estimator's gradient, after batches that it may learn from."""
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
    learned = list(estimator.parameters())
    optimizer = torch.optim.Adam(learned, lr=1e-2) if learned else None
    for _ in range(steps):
        leaf = toy.logits.expand(LEARNING_BATCH, toy.logits.numel()).clone().requires_grad_()
        estimator.zero_grad()
        estimator(td.Bernoulli(logits=leaf), toy).sum().backward()  # by both of which running averages learn
        loss = estimator.auxiliary_loss()
        if optimizer is not None and loss is not None:
            loss.backward()
            optimizer.step()


def toys_of(plan: BenchmarkPlan) -> list[ToyNoise]:
    """All estimators of bits on all toy problems; measured, unless a file keeps it.

    The bound of several samples is left out: its objective is another.
    """
    path = plan.folder / "toys.json"
    if not path.exists():
        rows = []
        for toy, name in product(toys(), suitable_estimators(Bernoulli)):
            if name not in ("none", "exact", "enumerate", "vimco"):
                rows.append(measure_toy(toy, name, plan.size.toy_draws, plan.size.learning)._asdict())
        write_json_atomically(path, {"toys": rows})
    return [ToyNoise(**row) for row in read_json(path)["toys"]]
