"""The paper's tables and figures, made again, and one that the paper does not have."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from silentgrad.lab.cli.console import say
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Scale, fixed_cells, learned_cells
from silentgrad.lab.experiments.circuits import circuit_cells, circuit_table
from silentgrad.lab.experiments.pictures import pictures
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import ExperimentError, run_all
from silentgrad.lab.experiments.tables import fixed_table, learned_table
from silentgrad.lab.experiments.variances import variance_table
from silentgrad.lab.reports.tables import write_pictures, write_tables
from silentgrad.lab.runs.tables import Table, write_record
from silentgrad.lab.training import TrainConfig
from silentgrad.lab.training.machine import require_machine
from silentgrad.lab.training.ranges import COUNT, require

What = Literal["variance", "fixed", "bpd", "kld", "mse", "figures", "all", "circuits"]
LEARNED = ("bpd", "kld", "mse")
NEED_FIXED = {"fixed", "variance", "figures"}
NEED_LEARNED = {*LEARNED, "figures"}


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
    """Makes the runs behind a table and writes it; those of the paper stand beside the paper's own figures.

    Runs that are finished are kept, interrupted ones go on; so this can be stopped and called again. The tables share
    runs: bpd, kld and mse theirs, fixed and variance theirs.

    Args:
        what: The table to make; figures are the reconstructions; all is everything in the paper; circuits compares
            decoders and estimators, and is not in the paper.
        scale: Size of the runs: smoke only shows that it works, cpu is for two processor cores, paper is the paper's.
        seeds: Number of runs of each kind.
        datasets: The datasets of the learned-variance tables: some of mnist, imagenet32, cifar10.
        folder: Folder for runs and tables; reproduce/SCALE if absent.
        jobs: Number of runs side by side; one per processor core, or one on an accelerator, if absent.
        root: Folder that holds the datasets.
        accelerator: Name of the accelerator in Lightning: auto, cpu, gpu, mps.
    """
    _require_datasets(datasets)
    require("--seeds", seeds, COUNT)
    require("--jobs", jobs, COUNT)
    require_machine(TrainConfig(accelerator=accelerator), "--")
    folder = folder or Path("reproduce") / scale
    require_folder(folder)
    parts = _parts(what)
    if what == "circuits" and scale == "paper":
        raise ExperimentError("circuits are not in the paper: choose --scale cpu or smoke")
    if what == "circuits" and datasets != ["mnist"]:
        raise ExperimentError("circuits are compared on mnist: leave --datasets out")
    fixed, learned, circuits = Results(folder, []), Results(folder, []), Results(folder, [])
    if NEED_FIXED.intersection(parts):
        fixed = Results(folder, fixed_cells(scale, seeds))
    if NEED_LEARNED.intersection(parts):
        learned = Results(folder, learned_cells(scale, datasets, seeds))
    if what == "circuits":
        circuits = Results(folder, circuit_cells(scale, seeds))
    run_all([*fixed.cells, *learned.cells, *circuits.cells], folder, jobs or _at_once(accelerator), root, accelerator)
    command = f"silentgrad reproduce {what} --scale {scale} --seeds {seeds}"
    if what != "circuits":
        command += f" --datasets [{','.join(datasets)}]"
    for part in parts:
        if part == "figures":
            record = pictures(fixed, learned, datasets)
            page = write_pictures(write_record(folder, replace(record, command=command)))
        elif part == "circuits":
            page = write_tables(write_record(folder, replace(circuit_table(circuits, scale), command=command)))
        else:
            table = _table(part, fixed, learned, datasets, scale, root)
            page = write_tables(write_record(folder, replace(table, command=command)))
        say(f"{part}: {page}")


def _require_datasets(names: list[str]) -> None:
    """Refuses names that the paper does not have, and no names at all."""
    unknown = sorted(set(names) - set(paper.DATASETS))
    if unknown or not names:
        given = ", ".join(unknown) or "none"
        raise ExperimentError(f"--datasets takes some of {', '.join(paper.DATASETS)}; got {given}")


def _parts(what: What) -> list[str]:
    """The tables to make, and the figures."""
    if what == "all":
        return ["fixed", "variance", *LEARNED, "figures"]
    return [what]


def _at_once(accelerator: str) -> int:
    """How many runs to make side by side: one per processor core, or one on an accelerator."""
    if accelerator not in ("cpu", "auto"):
        return 1
    return os.cpu_count() or 1


def _table(name: str, fixed: Results, learned: Results, datasets: list[str], scale: Scale, root: Path | None) -> Table:
    """One of the paper's tables, made from the runs."""
    if name == "fixed":
        return fixed_table(fixed, scale)
    if name == "variance":
        return variance_table(fixed, scale, root)
    return learned_table(name, learned, datasets, scale)
