"""`silentgrad benchmark`, and the same from Python."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from silentgrad.lab.cli.shared import going_on, require_folder, show_findings
from silentgrad.lab.experiments.benchmark import protocol
from silentgrad.lab.experiments.benchmark.comparison import benchmark_of, measure
from silentgrad.lab.experiments.cells import Request
from silentgrad.lab.experiments.ledger import Ledger
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import run_all, workers_at
from silentgrad.lab.reports.experiment import write_findings
from silentgrad.lab.settings import ConfigError, Count, EstimatorName, estimator_class
from silentgrad.lab.tables import Findings
from silentgrad.lab.training import TrainConfig
from silentgrad.lab.training.fabric import fabric_for


def benchmark(
    scale: protocol.BenchmarkScale = "cpu",
    datasets: list[protocol.DatasetName] = ["mnist", "fashion-mnist"],  # noqa: B006
    likelihoods: list[protocol.LikelihoodKind] = ["bernoulli", "gaussian"],  # noqa: B006
    networks: list[protocol.NetworkKind] = ["linear", "nonlinear", "circuit"],  # noqa: B006
    latents: list[protocol.LatentsKind] = ["bits"],  # noqa: B006
    estimators: list[EstimatorName] | None = None,
    seeds: Count | None = None,
    tune: bool = False,
    folder: Path | None = None,
    jobs: Count | None = None,
    cluster: str | None = None,
    root: Path | None = None,
    accelerator: str = "auto",
) -> Findings:
    """Compare estimators of the gradient of discrete latents on the protocol of the papers, beside the exact one.

    Every estimator trains the same models on the same batches; the page has their test bound, their training ELBO, bias
    and variance of their gradients on the same weights, evaluations of a step and processor time. What is finished is
    kept, so this can be stopped and called again.

    Args:
        scale: Size of the runs: smoke only shows that it works, on the digits; cpu is 2,000 steps, for two processor
            cores; paper is the papers' 1,000,000 steps.
        datasets: The data sets, some of mnist, fashion-mnist.
        likelihoods: What x is: bernoulli for images binarized anew each time, gaussian for images in [-1, 1] with a
            learned variance of every pixel.
        networks: The networks, some of linear, nonlinear (two hidden layers of 200), circuit (gaussian, on mnist).
        latents: What z is: bits for 200 of them, or groups x categories.
        estimators: The estimators, by name or as package.module:Class, which may be in the current folder; if absent,
            all that a setting allows, but for those of 20 evaluations a step and more, which only paper has then.
        seeds: Number of runs of each kind; if absent, three, and one at smoke.
        tune: Whether to choose each estimator's learning rate, and its temperature, by the validation bound of seed 0.
        folder: Folder for runs, tables and the page; benchmark/SCALE if absent.
        jobs: Number of runs side by side; one per processor core, or one on an accelerator, if absent.
        cluster: Address of a Dask scheduler, tcp://HOST:8786, whose workers make the runs (needs the extra cluster).
        root: Folder that holds the datasets.
        accelerator: Kind of device, as Lightning names it: auto, cpu, gpu, mps.
    """
    fabric_for(TrainConfig(accelerator=accelerator), prefix="--")
    folder = folder or Path("benchmark") / scale
    require_folder(folder)
    settings = protocol.settings_of(datasets, likelihoods, networks, latents)
    if not settings:
        raise ConfigError(
            "there is nothing to compare: a circuit needs --likelihoods gaussian, --datasets mnist and --latents bits"
        )
    plan = protocol.BenchmarkPlan(scale, settings, estimators, folder, root, accelerator)
    for setting in settings:
        family = type(setting.family(plan.size))
        for name in estimators or ():
            if not estimator_class("--estimators", name).suits(family):
                kind = "bits" if setting.latents == "bits" else "categories"
                raise ConfigError(f"--estimators {name} is not for {kind}")
        if not plan.names(setting):
            raise ConfigError(
                f"none of --estimators suits {setting.name}: choose among {', '.join(setting.estimators())}"
            )
    request, ledger = Request(scale, seeds or plan.size.seeds, datasets, root, tune), Ledger()
    experiment = benchmark_of(plan)
    make = partial(
        run_all, folder=folder, jobs=jobs, root=root, accelerator=accelerator, cluster=cluster, ledger=ledger
    )
    with going_on():
        results = Results(folder, experiment.make(request, ledger, make), ledger)
        with workers_at(cluster, jobs, accelerator) as workers:
            measure(plan, workers)
        found = experiment.build(results, request)
    chosen: dict[str, Iterable[str] | None] = {"datasets": datasets, "likelihoods": likelihoods, "networks": networks}
    chosen |= {"latents": latents, "estimators": estimators}
    words = [f" --{option} {','.join(values)}" for option, values in chosen.items() if values]
    words += [f" --seeds {seeds}"] if seeds is not None else []
    words += [" --tune true"] if tune else []
    found = replace(found, command=f"silentgrad benchmark --scale {scale}{''.join(words)}")
    own = [table for table in found.tables if table.name in [setting.name for setting in settings]]
    show_findings(replace(found, parts=own, notes=[]))
    print(f"gradients: {folder / 'gradients.csv'}   page: {write_findings(folder, found)}")
    return found


def run_benchmark(
    estimators: Sequence[EstimatorName] | None = None,
    folder: str | Path | None = None,
    root: str | Path | None = None,
    **options: Any,
) -> Findings:
    """Run `silentgrad benchmark` in this process, and return its tables, curves and verdicts.

    A script needs no `if __name__ == "__main__"`, unless it asks for more `jobs` than the one of this process.

    Args:
        estimators: The estimators, by name or as `package.module:Class`; all that a setting allows if absent.
        folder: Folder for runs, tables and the page.
        root: Folder that holds the datasets.
        options: Further options of `silentgrad benchmark`, by their names.
    """
    places = {name: None if path is None else Path(path) for name, path in (("folder", folder), ("root", root))}
    names = None if estimators is None else list(estimators)
    return benchmark(estimators=names, **{"jobs": 0, **places, **options})
