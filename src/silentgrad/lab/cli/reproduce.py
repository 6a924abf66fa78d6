"""The paper's tables and figures, made again."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from silentgrad.lab.cli.console import say
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Scale, fixed_cells, learned_cells
from silentgrad.lab.experiments.pictures import pictures
from silentgrad.lab.experiments.runner import ExperimentError, run_all
from silentgrad.lab.experiments.tables import Results, fixed_table, learned_table
from silentgrad.lab.experiments.variances import variance_table
from silentgrad.lab.reports.tables import write_pictures, write_tables
from silentgrad.lab.runs.tables import Pictures, Table, write_record
from silentgrad.lab.training import TrainConfig
from silentgrad.lab.training.machine import require_machine
from silentgrad.lab.training.ranges import COUNT, require

What = Literal["variance", "fixed", "bpd", "kld", "mse", "figures", "all"]
LEARNED = ("bpd", "kld", "mse")


def reproduce(
    what: What,
    scale: Scale = "cpu",
    seeds: int = 3,
    datasets: list[str] = ["mnist"],  # noqa: B006
    folder: Path | None = None,
    jobs: int | None = None,
    root: Path | None = None,
    accelerator: str = "auto",
) -> None:
    """Makes the runs behind one of the paper's tables and writes it beside the paper's own figures.

    Runs that are finished are kept, interrupted ones go on; so this can be stopped and called again. The tables share
    runs: bpd, kld and mse theirs, fixed and variance theirs.

    Args:
        what: Which table; figures are the reconstructions; all is everything.
        scale: smoke only shows that it works, cpu is for two processor cores, paper is what the paper did.
        seeds: How many runs of each kind.
        datasets: Of the learned-variance tables: mnist, imagenet32, cifar10.
        folder: Where runs and tables go; reproduce/SCALE if absent.
        jobs: Runs side by side; one per processor core, or one on an accelerator, if absent.
        root: Folder that holds the datasets.
        accelerator: As Lightning names them: auto, cpu, gpu, mps.
    """
    unknown = sorted(set(datasets) - set(paper.DATASETS))
    if unknown or not datasets:
        given = ", ".join(unknown) or "none"
        raise ExperimentError(f"--datasets takes some of {', '.join(paper.DATASETS)}; got {given}")
    require("--seeds", seeds, COUNT)
    require("--jobs", jobs, COUNT)
    require_machine(TrainConfig(accelerator=accelerator), "--")
    folder = folder or Path("reproduce") / scale
    require_folder(folder)
    at_once = jobs if jobs is not None else (os.cpu_count() or 1 if accelerator in ("cpu", "auto") else 1)
    fixed = Results(folder, fixed_cells(scale, seeds) if what in ("fixed", "variance", "figures", "all") else [])
    learned = Results(folder, learned_cells(scale, datasets, seeds) if what in (*LEARNED, "figures", "all") else [])
    run_all([*fixed.cells, *learned.cells], folder, at_once, root, accelerator)
    command = f"silentgrad reproduce {what} --scale {scale} --seeds {seeds} --datasets [{','.join(datasets)}]"
    for name, make, write in _parts(fixed, learned, datasets, scale, root):
        if what in (name, "all"):
            page = write(write_record(folder, replace(make(), command=command)))
            say(f"{name}: {page}")


def _parts(
    fixed: Results, learned: Results, datasets: list[str], scale: Scale, root: Path | None
) -> list[tuple[str, Callable[[], Table | Pictures], Callable[[Path], Path]]]:
    """Name, how it is made from the runs, how it is written, of everything that can be reproduced."""
    tables = [
        ("fixed", lambda: fixed_table(fixed, scale), write_tables),
        ("variance", lambda: variance_table(fixed, scale, root), write_tables),
        *(
            (metric, lambda metric=metric: learned_table(metric, learned, datasets, scale), write_tables)
            for metric in LEARNED
        ),
    ]
    return [*tables, ("figures", lambda: pictures(fixed, learned, datasets), write_pictures)]
