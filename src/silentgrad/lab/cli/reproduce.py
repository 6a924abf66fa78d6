"""The paper's tables and figures, made again, and three tables that the paper does not have."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from silentgrad.lab.cli.shared import going_on, require_folder, show_findings
from silentgrad.lab.experiments import circuits, guide, linear
from silentgrad.lab.experiments.cells import Request, Scale
from silentgrad.lab.experiments.experiment import Experiment
from silentgrad.lab.experiments.ledger import Ledger
from silentgrad.lab.experiments.paper_tables import OF_THE_PAPER
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import run_all
from silentgrad.lab.reports.experiment import write_findings
from silentgrad.lab.settings import Count
from silentgrad.lab.training import TrainConfig
from silentgrad.lab.training.fabric import fabric_for

What = Literal["variance", "fixed", "bpd", "kld", "mse", "figures", "all", "circuits", "linear", "guide"]
SHARED = dict.fromkeys(("bpd", "kld", "mse"), "learned")  # the file of tables that share runs; else that of its name
EXPERIMENTS: dict[str, Experiment] = {
    **OF_THE_PAPER,
    "circuits": circuits.EXPERIMENT,
    "linear": linear.EXPERIMENT,
    "guide": guide.EXPERIMENT,
}


def reproduce(
    what: What,
    scale: Scale = "cpu",
    seeds: Count = 3,
    datasets: list[str] = ["mnist"],  # noqa: B006
    tune: bool = False,
    folder: Path | None = None,
    results: Path | None = None,
    jobs: Count | None = None,
    cluster: str | None = None,
    root: Path | None = None,
    accelerator: str = "auto",
) -> None:
    """Make the runs behind a table and write it; those of the paper stand beside the paper's own figures.

    Runs that are finished are kept, interrupted ones go on; so this can be stopped and called again. The tables share
    runs: bpd, kld and mse theirs, fixed and variance theirs.

    Args:
        what: The table to make; figures are the reconstructions; all is everything in the paper. Not in
            the paper: circuits compares ways to train them, with and without latents, linear estimators with a linear
            decoder alone, guide networks with and without a guide.
        scale: Size of the runs: smoke only shows that it works, cpu is for two processor cores, conv has the paper's
            convolutional networks with few channels (bpd, kld and mse on mnist), paper is the paper's.
        seeds: Number of runs of each kind, which differ in their seeds.
        datasets: Datasets, separated by commas: of the tables with learned variance, some of mnist, imagenet32,
            cifar10; of linear, mnist, fashion-mnist; of guide, also digits, cifar10; of circuits, imagenet32 too.
        tune: Whether the options of each row, such as its learning rate, are chosen by validation with one seed, and
            the runs of the table made with others.
        folder: Folder of the runs and the tables; reproduce/SCALE if absent.
        results: Folder of the CSV files in which finished runs are entered; what is in them is not trained again, its
            folder may be gone. If absent, results in --folder.
        jobs: Number of runs to make side by side; one per processor core, or one on an accelerator, if absent.
        cluster: Address of a Dask scheduler, tcp://HOST:8786, whose workers make the runs (needs the extra cluster).
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
        accelerator: Kind of device, as Lightning names it: auto, cpu, gpu, mps.
    """
    fabric_for(TrainConfig(accelerator=accelerator), prefix="--")
    folder = folder or Path("reproduce") / scale
    require_folder(folder)
    request = Request(scale, seeds, datasets, root, tune)
    chosen = OF_THE_PAPER if what == "all" else {what: EXPERIMENTS[what]}
    for experiment in chosen.values():
        experiment.require(request)
    make = partial(run_all, folder=folder, jobs=jobs, root=root, accelerator=accelerator, cluster=cluster)
    with going_on():
        for name, experiment in chosen.items():
            entered = (results or folder / "results") / f"{SHARED.get(name, name)}.csv"
            ledger = Ledger(None if experiment.of_folders else entered)
            cells = experiment.make(request, ledger, partial(make, ledger=ledger))
            found = experiment.build(Results(folder, cells, ledger), request)
            show_findings(found)
            print(f"{name}: {write_findings(folder, replace(found, command=command_of(what, request)))}")


def command_of(what: str, request: Request) -> str:
    """Return the command that makes the same tables again."""
    tuned = " --tune true" if request.tune else ""
    command = f"silentgrad reproduce {what} --scale {request.scale} --seeds {request.seeds}{tuned}"
    return f"{command} --datasets {','.join(request.datasets)}"
