"""Runs of the benchmark: what is missing is made, side by side, and what is there is kept.

They are trained by the laboratory's loop, of which the steps between two points of a run's curve are an epoch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from silentgrad.evaluation import evaluate
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations, SplitName
from silentgrad.lab.experiments.benchmark.gradients import milliseconds_of, toys_of, variances_at
from silentgrad.lab.experiments.benchmark.problem import build, fixed_batches, observations_of, with_estimator
from silentgrad.lab.experiments.benchmark.protocol import (
    BATCH,
    BenchmarkPlan,
    BenchmarkRun,
    Setting,
    estimator_named,
    weights_file,
)
from silentgrad.lab.experiments.runner import Job, Workers, locked, other_settings, run_jobs, say_runs, workers_at
from silentgrad.lab.runs.evaluation import evaluating, own_draws
from silentgrad.lab.settings import EstimatorName
from silentgrad.lab.store.files import RecordError, read_json, write_json_atomically, write_tensors_atomically
from silentgrad.lab.store.records import record_of
from silentgrad.lab.training import DivergedError, TrainConfig
from silentgrad.lab.training.checkpoints import read_checkpoint, write_checkpoint
from silentgrad.lab.training.fabric import fabric_for
from silentgrad.lab.training.loop import Loop
from silentgrad.schedules import constant

RESULT, CHECKPOINT = "result.json", "state.ckpt"


@dataclass(frozen=True)
class Result:
    """A finished run, in nats per example."""

    protocol: str  # all that decides what it comes to, in words
    steps: list[int]  # the steps of the points of its curve
    elbos: list[float]  # ELBO of fixed training examples at these steps
    test: float | None  # the importance-weighted bound of test examples; None if it is not finite, or the run diverged
    valid: float | None  # the same of validation examples
    diverged: int | None  # the step by which the loss or the weights were not finite; None if they always were

    def first_reach(self, elbo: float) -> int | None:
        """Return the first recorded step at which the ELBO was no less; None if it never was."""
        points = zip(self.steps, self.elbos, strict=True)
        return next((step for step, value in points if value >= elbo), None)


def read_result(folder: Path) -> Result:
    """Read a run's record.

    Raises:
        RecordError: The file is missing or damaged.
    """
    try:
        return record_of(Result, read_json(folder / RESULT))
    except ValueError as error:
        raise RecordError(f"cannot read {folder / RESULT}: remove it, and the run is made again ({error})") from error


def runs_by(plan: BenchmarkPlan, setting: Setting, name: EstimatorName) -> list[BenchmarkRun]:
    """Return the runs of an estimator, one for each seed, all as that of seed 0 which is best in validation."""

    def bound(run: BenchmarkRun) -> float:
        found = read_result(plan.folder / run.name).valid
        return -math.inf if found is None else found

    best = max(plan.candidates(setting, name), key=bound)
    return [best._replace(seed=seed) for seed in range(plan.seeds or plan.size.seeds)]


class CurvePoints:
    """Report that measures a point of the curve on examples, keeps the weights of some steps, writes a checkpoint."""

    def __init__(self, folder: Path, measured: Sequence[int], examples: Sequence[Tensor]) -> None:
        self.folder, self.measured, self.examples = folder, measured, examples
        self.found: dict[str, Any] = {"steps": [], "elbos": []}

    def __call__(self, loop: Loop) -> None:
        self.found["steps"].append(loop.step)
        self.found["elbos"].append(mean_bound(loop.model, self.examples))
        if loop.step in self.measured:
            own = ("estimator.", "tractable_estimator.")  # the estimator's, which measurements do not take
            weights = {name: value for name, value in loop.model.state_dict().items() if not name.startswith(own)}
            write_tensors_atomically(weights_file(self.folder, loop.step), weights)
        write_checkpoint(self.folder / CHECKPOINT, {**loop.state(), "found": self.found})

    def start(self, loop: Loop) -> None:
        """Measure the point before the first step, or go on after that of the last checkpoint."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            self(loop)
            return
        state = read_checkpoint(path, {*loop.state(), "found"})
        loop.restore(state)
        self.found = state["found"]


def train(run: BenchmarkRun, plan: BenchmarkPlan) -> None:
    """Make a run, or go on with what an earlier process left of it, unless it is finished."""
    folder = plan.folder / run.name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not (folder / RESULT).exists():
            _train(run, plan, folder)


def _train(run: BenchmarkRun, plan: BenchmarkPlan, folder: Path) -> None:
    size, observations = plan.size, observations_of(run.setting, plan)
    loop = loop_of(run, plan, observations)
    points = CurvePoints(folder, size.measured, list(fixed_batches(observations, "train", size.examples)))
    bounds: dict[SplitName, Any] = {"test": None, "valid": None}
    diverged = None
    try:
        points.start(loop)
        loop.run([points], lambda _: None)
        for split in bounds:
            bound = mean_bound(loop.model, fixed_batches(observations, split, size.examples), size.samples)
            bounds[split] = bound if math.isfinite(bound) else None
    except (DivergedError, ValueError) as error:  # latents refuse numbers that are not finite
        refused = error.__cause__ if isinstance(error, DivergedError) else error
        if refused is not None and all(parameter.isfinite().all() for parameter in loop.model.parameters()):
            raise refused from None  # something else is wrong
        diverged = loop.step
    result = Result(plan.protocol(run), **points.found, **bounds, diverged=diverged)
    write_json_atomically(folder / RESULT, asdict(result))
    (folder / CHECKPOINT).unlink(missing_ok=True)


def loop_of(run: BenchmarkRun, plan: BenchmarkPlan, observations: Observations) -> Loop:
    """Return the loop that trains a run, at its start."""
    size, numbers = plan.size, run.setting.family(plan.size).numbers
    train = TrainConfig(size.steps // size.reported, lr=plan.rate(run), seed=run.seed, accelerator=plan.accelerator)
    fabric = fabric_for(train, prefix="--")
    fabric.launch()
    model = build(run.setting, size, observations, run.seed)
    with_estimator(model, estimator_named(run.estimator, numbers, run.temperature))
    adam = partial(torch.optim.Adam, fused=True)
    return Loop(fabric, model, train, observations, BATCH, constant(1.0), size.reported, adam)


def mean_bound(model: GuidedVAE, batches: Iterable[Tensor], samples: int = 1) -> float:
    """Return the mean ELBO of examples, in closed form or by one sample, or their bound of several samples.

    The draws are the same each time, and leave those of the training alone.
    """
    total, count, device = 0.0, 0, next(model.parameters()).device
    with evaluating(model), own_draws(device) as seed:
        seed(0)
        for x in batches:
            found = evaluate(model, x.to(device), samples)
            total += float(found.elbo if samples == 1 else found.sampled)
            count += len(x)
    return total / count


def carry_out(plan: BenchmarkPlan, jobs: int | None, cluster: str | None = None) -> None:
    """Make the runs and measurements that are missing, by processes of this machine or of a Dask cluster.

    Args:
        plan: What is to be made.
        jobs: Number of processes; one does all of it in this process.
        cluster: Address of a Dask scheduler.

    Raises:
        ExperimentError: A finished run was made with another protocol, of an earlier version for instance.
    """
    inline = nullcontext(Workers(_done, lambda: 1))
    with inline if jobs == 1 and cluster is None else workers_at(cluster, jobs, plan.accelerator) as workers:
        _make("runs", plan, plan.first_runs(), workers)
        others = [runs_by(plan, setting, name)[1:] for setting in plan.settings for name in plan.trained(setting)]
        _make("other seeds", plan, [run for of_one in others for run in of_one], workers)
        places = list(product(plan.settings, plan.size.measured))
        noises = [Job(partial(variances_at, plan, setting, step)) for setting, step in places]
        run_jobs("noise of the gradients", noises, len(noises), workers)
    for setting in plan.settings:  # one after the other, with nothing beside it
        milliseconds_of(plan, setting)
    toys_of(plan)


def _make(title: str, plan: BenchmarkPlan, runs: Sequence[BenchmarkRun], workers: Workers) -> None:
    """Make those of some runs that are missing."""
    waiting = []
    for run in runs:
        folder = plan.folder / run.name
        if not (folder / RESULT).exists():
            waiting.append(Job(partial(train, run, plan)))
        elif read_result(folder).protocol != plan.protocol(run):
            raise other_settings(folder)
    say_runs(plan.folder, len(runs), len(waiting))
    run_jobs(title, waiting, len(waiting), workers)


def _done(work: Callable[[], object]) -> Future[object]:
    """Do a job in this process, for which a script needs no guard of its main part."""
    future: Future[object] = Future()
    future.set_result(work())
    return future
