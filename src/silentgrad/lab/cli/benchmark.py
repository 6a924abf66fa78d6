"""`silentgrad benchmark`."""

import os
from pathlib import Path

import torch

from silentgrad.lab.cli.console import say
from silentgrad.lab.cli.interrupts import going_on
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.experiments.benchmark.plan import Plan, carry_out
from silentgrad.lab.experiments.benchmark.protocol import (
    BenchmarkScale,
    DatasetName,
    LikelihoodKind,
    NetworkKind,
    settings_of,
)
from silentgrad.lab.experiments.benchmark.tables import benchmark_record
from silentgrad.lab.reports.benchmark import write_benchmark_page
from silentgrad.lab.runs.benchmark import write_benchmark
from silentgrad.lab.training import TrainConfig
from silentgrad.lab.training.machine import require_machine
from silentgrad.lab.training.ranges import COUNT, ConfigError, require
from silentgrad.lab.training.suitable import EstimatorName


def benchmark(
    scale: BenchmarkScale = "cpu",
    datasets: list[DatasetName] = ["mnist", "fashion-mnist"],  # noqa: B006
    likelihoods: list[LikelihoodKind] = ["bernoulli", "gaussian"],  # noqa: B006
    networks: list[NetworkKind] = ["linear", "nonlinear", "circuit"],  # noqa: B006
    estimators: list[EstimatorName] | None = None,
    seeds: int | None = None,
    folder: Path | None = None,
    jobs: int | None = None,
    root: Path | None = None,
    accelerator: str = "auto",
) -> None:
    """Compares estimators of the gradient of Bernoulli latents on the protocol of the papers, beside the exact one.

    Every estimator trains the same models on the same batches; the page has their training ELBO, a test bound, the
    variance of their gradients on the same weights, milliseconds and evaluations of a step, and toy problems whose
    gradient is known. What is finished is kept, so this can be stopped and called again.

    Args:
        scale: Size of the runs: smoke only shows that it works, on the digits; cpu is for two processor cores, less
            than three hours; paper is the papers' 1,000,000 steps.
        datasets: The data sets, some of mnist, fashion-mnist.
        likelihoods: What x is: bernoulli for images binarized anew each time, gaussian for images in [-1, 1] with a
            learned variance of every pixel.
        networks: The networks, some of linear, nonlinear (two hidden layers of 200), circuit (gaussian, on mnist).
        estimators: The estimators; all that a setting allows if absent.
        seeds: Number of runs of each kind; if absent, three where the exact gradient is one of the rows, and one
            elsewhere and at smoke.
        folder: Folder for runs, tables and the page; benchmark/SCALE if absent.
        jobs: Number of runs side by side; one per processor core, or one on an accelerator, if absent.
        root: Folder that holds the datasets.
        accelerator: Where to compute: auto, cpu or gpu.
    """
    require("--seeds", seeds, COUNT)
    require("--jobs", jobs, COUNT)
    require_machine(TrainConfig(accelerator=accelerator), "--")
    folder = folder or Path("benchmark") / scale
    require_folder(folder)
    settings = settings_of(datasets, likelihoods, networks)
    if not settings:
        raise ConfigError("there is nothing to compare: a circuit needs --likelihoods gaussian and --datasets mnist")
    plan = Plan(scale, settings, estimators, seeds, folder, root, _device(accelerator))
    for setting in settings:
        if not plan.trained(setting):
            raise ConfigError(
                f"none of --estimators suits {setting.name}: choose among {', '.join(setting.estimators())}"
            )
    with going_on():
        carry_out(plan, jobs or _at_once(plan.device))
    words = _command(scale, datasets, likelihoods, networks, estimators, seeds)
    page = write_benchmark_page(write_benchmark(folder, benchmark_record(plan, words)))
    say(page.with_suffix(".md").read_text())
    say(f"page: {page}")


def _device(accelerator: str) -> torch.device:
    if accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available()):
        return torch.device("cuda")
    return torch.device("cpu")


def _at_once(device: torch.device) -> int:
    if device.type == "cpu":
        return os.cpu_count() or 1
    return 1


def _command(
    scale: str,
    datasets: list[DatasetName],
    likelihoods: list[LikelihoodKind],
    networks: list[NetworkKind],
    estimators: list[EstimatorName] | None,
    seeds: int | None,
) -> str:
    """The command that makes the same tables again."""
    command = f"silentgrad benchmark --scale {scale} --datasets {','.join(datasets)}"
    command += f" --likelihoods {','.join(likelihoods)} --networks {','.join(networks)}"
    if estimators is not None:
        command += f" --estimators {','.join(estimators)}"
    if seeds is not None:
        command += f" --seeds {seeds}"
    return command
