"""The paper's tables and figures, made again, and two that the paper does not have."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from silentgrad.lab.cli.console import say, show_table
from silentgrad.lab.cli.interrupts import going_on
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.experiments.cells import Scale
from silentgrad.lab.experiments.reproduction import Entry, Request, entries_named, runs_behind
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import run_all
from silentgrad.lab.reports.tables import shown, write_pictures, write_tables
from silentgrad.lab.runs.tables import Pictures, Table, write_record
from silentgrad.lab.training import TrainConfig
from silentgrad.lab.training.machine import require_machine
from silentgrad.lab.training.ranges import COUNT, require

What = Literal["variance", "fixed", "bpd", "kld", "mse", "figures", "all", "circuits", "causes"]


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
        what: The table to make; figures are the reconstructions; all is everything in the paper. Not in
            the paper: circuits compares decoders and estimators, causes tells what a guide helps by.
        scale: Size of the runs: smoke only shows that it works, cpu is for two processor cores, conv has the paper's
            convolutional networks with few channels (bpd, kld and mse on mnist), paper is the paper's.
        seeds: Number of runs of each kind, which differ in their seeds.
        datasets: Datasets, separated by commas: of the tables with learned variance, some of mnist, imagenet32,
            cifar10; of causes, some of mnist, fashion-mnist, cifar10.
        folder: Folder of the runs and the tables; reproduce/SCALE if absent.
        jobs: Number of runs to make side by side; one per processor core, or one on an accelerator, if absent.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
        accelerator: Kind of device, as Lightning names it: auto, cpu, gpu, mps.
    """
    require("--seeds", seeds, COUNT)
    require("--jobs", jobs, COUNT)
    require_machine(TrainConfig(accelerator=accelerator), "--")
    folder = folder or Path("reproduce") / scale
    require_folder(folder)
    request = Request(scale, seeds, datasets, root)
    entries = entries_named(what)
    for entry in entries.values():
        entry.require(request)
    with going_on():
        run_all(runs_behind(list(entries.values()), request), folder, jobs or _at_once(accelerator), root, accelerator)
        for name, entry in entries.items():
            page = _write_and_show(entry, request, folder, _command(what, request))
            say(f"{name}: {page}")


def _at_once(accelerator: str) -> int:
    """How many runs to make side by side: one per processor core, or one on an accelerator."""
    if accelerator not in ("cpu", "auto"):
        return 1
    return os.cpu_count() or 1


def _command(what: What, request: Request) -> str:
    """The command that makes the same tables again."""
    command = f"silentgrad reproduce {what} --scale {request.scale} --seeds {request.seeds}"
    if what == "circuits":
        return command
    return f"{command} --datasets {','.join(request.datasets)}"


def _write_and_show(entry: Entry, request: Request, folder: Path, command: str) -> Path:
    """Writes what the runs of an entry came to, prints it if it is a table, and returns the path of its page."""
    record = entry.build(Results(folder, entry.cells(request)), request)
    path = write_record(folder, replace(record, command=command))
    if isinstance(record, Pictures):
        return write_pictures(path)
    _show(record)
    return write_tables(path)


def _show(table: Table) -> None:
    """The table and what it says."""
    say(table.title)
    rows = []
    for row in table.rows:
        rows.append([shown(cell, column.digits) for cell, column in zip(row, table.columns, strict=True)])
    show_table([column.name for column in table.columns], rows)
    for sentence in table.verdicts:
        say(sentence)
