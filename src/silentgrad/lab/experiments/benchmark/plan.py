"""From a request to finished measurements: what is missing is made, side by side, and what is there is kept."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from silentgrad.lab.experiments.benchmark.loop import Training, protocol_of
from silentgrad.lab.experiments.benchmark.measuring import Weights, measure_noise, milliseconds
from silentgrad.lab.experiments.benchmark.problem import estimator_named
from silentgrad.lab.experiments.benchmark.protocol import (
    EXPENSIVE,
    RATES,
    REFERENCE,
    SIZES,
    BenchmarkRun,
    BenchmarkScale,
    Setting,
    Size,
    data_of,
)
from silentgrad.lab.experiments.benchmark.records import RESULT, read_result
from silentgrad.lab.experiments.benchmark.toys import ToyNoise, measure_toys
from silentgrad.lab.experiments.runner import ExperimentError, progress_bar, require_success, workers
from silentgrad.lab.runs.records import read_json, write_json_atomically
from silentgrad.lab.training.suitable import EstimatorName

POLL_SECONDS = 0.5


class Plan(NamedTuple):
    """What a benchmark is to compare.

    Args:
        scale: Size of the runs.
        settings: The settings.
        estimators: The estimators; those that a setting does not allow are left out of it.
        seeds: Number of runs of each kind; if absent, that of the scale where the exact gradient is one of the rows,
            and one elsewhere.
        folder: Folder of the runs and the measurements.
        root: Folder that holds the data sets.
        device: Where all is computed.
    """

    scale: BenchmarkScale
    settings: Sequence[Setting]
    estimators: Sequence[EstimatorName] | None
    seeds: int | None
    folder: Path
    root: Path | None
    device: torch.device

    @property
    def size(self) -> Size:
        """How large the runs are."""
        return SIZES[self.scale]

    def names(self, setting: Setting) -> list[EstimatorName]:
        """The estimators of a setting."""
        names = setting.estimators()
        if self.estimators is None:
            return names
        return [name for name in names if name in self.estimators]

    def trained(self, setting: Setting) -> list[EstimatorName]:
        """The estimators of a setting that are trained; one whose step takes very many evaluations only at `paper`."""
        names = []
        for name in self.names(setting):
            evaluations = estimator_named(name, self.size.latents).evaluations(self.size.latents)
            if self.scale == "paper" or evaluations < EXPENSIVE:
                names.append(name)
        return names

    def seeds_of(self, setting: Setting) -> int:
        """Number of runs of each kind in a setting."""
        if self.seeds is not None:
            return self.seeds
        if setting.tractable:
            return self.size.seeds
        return 1

    def runs(self) -> list[BenchmarkRun]:
        """All runs; each setting has one by the reference estimator, on whose weights gradients are measured."""
        runs: dict[BenchmarkRun, None] = {}
        for setting in self.settings:
            runs[BenchmarkRun(setting, REFERENCE, 0)] = None
            for seed, name in product(range(self.seeds_of(setting)), self.trained(setting)):
                runs[BenchmarkRun(setting, name, seed)] = None
        return list(runs)

    def weights(self, setting: Setting, step: int) -> Weights:
        """The weights of the reference run after a step."""
        run = BenchmarkRun(setting, REFERENCE, 0)
        return Weights(setting, self.scale, self.size, self.folder / run.name, step)

    def noise_file(self, setting: Setting, step: int) -> Path:
        """Where the noise of the gradients at a step is kept."""
        return self.folder / f"{setting.name}-noise-{step}.json"

    def times_file(self, setting: Setting) -> Path:
        """Where the milliseconds of a setting's steps are kept."""
        return self.folder / f"{setting.name}-milliseconds.json"

    @property
    def toys_file(self) -> Path:
        """Where the figures of the toy problems are kept."""
        return self.folder / "toys.json"


def carry_out(plan: Plan, jobs: int) -> None:
    """Makes the runs and measurements that are missing.

    Args:
        plan: What to make.
        jobs: Number of processes at a time; each takes its share of the processor's cores.
    """
    runs = plan.runs()
    for run in runs:
        _require_same_protocol(plan, run)
    waiting = [run for run in runs if not (plan.folder / run.name / RESULT).exists()]
    told = f"{len(runs)} runs in {plan.folder}, {len(runs) - len(waiting)} of them finished before"
    Console().print(told, soft_wrap=True, markup=False, emoji=False)
    plan.folder.mkdir(parents=True, exist_ok=True)
    tasks: dict[str, Task] = {}
    for run in waiting:
        tasks[run.name] = Task(_train, (run, plan))
    _side_by_side("runs", tasks, jobs)
    _side_by_side("noise of the gradients", _noise_tasks(plan), jobs)
    for setting in plan.settings:  # one after the other, with nothing beside it
        if not plan.times_file(setting).exists():
            found = milliseconds(plan.weights(setting, 0), plan.names(setting), plan.root, plan.device)
            write_json_atomically(plan.times_file(setting), found)
    if not plan.toys_file.exists():
        rows = [noise._asdict() for noise in measure_toys(plan.size.toy_draws, plan.size.learning)]
        write_json_atomically(plan.toys_file, {"toys": rows})


def read_toys(plan: Plan) -> list[ToyNoise]:
    """The figures of the toy problems."""
    return [ToyNoise(**row) for row in read_json(plan.toys_file)["toys"]]


def read_times(plan: Plan, setting: Setting) -> Mapping[str, float]:
    """The milliseconds of the steps of a setting."""
    return read_json(plan.times_file(setting))


def _noise_tasks(plan: Plan) -> "dict[str, Task]":
    tasks: dict[str, Task] = {}
    for setting, step in product(plan.settings, plan.size.measured):
        path = plan.noise_file(setting, step)
        if not path.exists():
            arguments = (plan.weights(setting, step), plan.names(setting), path, plan.root, plan.device)
            tasks[path.stem] = Task(measure_noise, arguments)
    return tasks


def _require_same_protocol(plan: Plan, run: BenchmarkRun) -> None:
    """Refuses a finished run that was made with another protocol, of an earlier version for instance."""
    folder = plan.folder / run.name
    if not (folder / RESULT).exists():
        return
    rate = RATES[data_of(run.setting.dataset, plan.scale)]
    if read_result(folder).protocol != protocol_of(run, plan.size, rate):
        raise ExperimentError(f"{folder} was made with other settings: remove it, or choose another --folder")


class Task(NamedTuple):
    """Something to do in a process of its own.

    Args:
        function: What to call.
        arguments: What to call it with.
    """

    function: Callable[..., None]
    arguments: tuple[object, ...]


def _side_by_side(title: str, tasks: Mapping[str, Task], jobs: int) -> None:
    """Carries out tasks in several processes, with a bar that shows how many are done."""
    if not tasks:
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with progress_bar() as bar, workers(min(jobs, len(tasks)), threads) as pool:
        shown = bar.add_task(title, total=len(tasks))
        names: dict[Future[None], str] = {}
        for name, task in tasks.items():
            names[pool.submit(task.function, *task.arguments)] = name
        pending = set(names)
        while pending:
            ended, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
            for future in ended:
                require_success(future, names[future])
            bar.update(shown, completed=len(tasks) - len(pending))


def _train(run: BenchmarkRun, plan: Plan) -> None:
    Training(run, plan.scale, plan.size, plan.folder / run.name, plan.root, plan.device).finish()
