"""What `silentgrad reproduce` can make: for every table the runs behind it, its builder and the scales that it has.

A new table is an entry of :data:`ENTRIES`, and a word of the command's argument.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, get_args

from silentgrad.lab.experiments import causes, paper
from silentgrad.lab.experiments.causes import cause_cells
from silentgrad.lab.experiments.causes_table import causes_table
from silentgrad.lab.experiments.cells import Cell, Scale, fixed_cells, learned_cells
from silentgrad.lab.experiments.circuits import circuit_cells, circuit_table
from silentgrad.lab.experiments.pictures import pictures
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import ExperimentError
from silentgrad.lab.experiments.tables import fixed_table, learned_table
from silentgrad.lab.experiments.variances import variance_table
from silentgrad.lab.runs.tables import Pictures, Table

CONVOLUTIONAL = ["mnist"]  # the datasets of the scale `conv`


class Request(NamedTuple):
    """What a table is to be made of.

    Args:
        scale: Size of the runs.
        seeds: Number of runs of each kind.
        datasets: The datasets of tables that have several.
        root: Folder that holds the datasets.
    """

    scale: Scale
    seeds: int
    datasets: Sequence[str]
    root: Path | None


@dataclass(frozen=True)
class Entry:
    """A table, or the figures.

    Args:
        cells: From a request to the runs behind the table.
        build: From the finished runs and the request to the record.
        refused: The scales that the table does not have, each with the reason.
        only_mnist: Why the table is of MNIST whatever datasets are asked for; empty if it is not.
        datasets: The datasets that the table can have.
    """

    cells: Callable[[Request], list[Cell]]
    build: Callable[[Results, Request], Table | Pictures]
    refused: Mapping[Scale, str] = field(default_factory=dict)
    only_mnist: str = ""
    datasets: Sequence[str] = tuple(paper.DATASETS)

    def require(self, request: Request) -> None:
        """Refuses a request that the table has no runs for.

        Raises:
            ExperimentError: The scale or the datasets are not among those of the table.
        """
        unknown = sorted(set(request.datasets) - set(self.datasets))
        if unknown or not request.datasets:
            given = ", ".join(unknown) or "none"
            raise ExperimentError(f"--datasets takes some of {', '.join(self.datasets)}; got {given}")
        if request.scale in self.refused:
            raise ExperimentError(f"{self.refused[request.scale]}: choose --scale {self._scales()}")
        if self.only_mnist and list(request.datasets) != ["mnist"]:
            raise ExperimentError(f"{self.only_mnist}: leave --datasets out")
        if request.scale == "conv" and list(request.datasets) != CONVOLUTIONAL:
            raise ExperimentError("--scale conv has runs on mnist only: leave --datasets out")

    def _scales(self) -> str:
        """The scales that the table has, in words."""
        *others, last = sorted(set(get_args(Scale)) - set(self.refused))
        return f"{', '.join(others)} or {last}"


def _fixed(request: Request) -> list[Cell]:
    return fixed_cells(request.scale, request.seeds)


def _learned(request: Request) -> list[Cell]:
    return learned_cells(request.scale, request.datasets, request.seeds)


def _learned_entry(metric: str) -> Entry:
    """The learned-variance table of one metric."""
    return Entry(_learned, lambda results, asked: learned_table(metric, results, asked.datasets, asked.scale))


NO_CONVOLUTIONS: dict[Scale, str] = {"conv": "--scale conv is for the tables bpd, kld and mse"}

ENTRIES: dict[str, Entry] = {
    "fixed": Entry(
        cells=_fixed,
        build=lambda results, asked: fixed_table(results, asked.scale),
        refused=NO_CONVOLUTIONS,
    ),
    "variance": Entry(
        cells=_fixed,
        build=lambda results, asked: variance_table(results, asked.scale, asked.root),
        refused=NO_CONVOLUTIONS,
    ),
    "bpd": _learned_entry("bpd"),
    "kld": _learned_entry("kld"),
    "mse": _learned_entry("mse"),
    "figures": Entry(
        cells=lambda asked: _fixed(asked) + _learned(asked),
        build=lambda results, asked: pictures(results, asked.datasets),
        refused=NO_CONVOLUTIONS,
    ),
    "causes": Entry(
        cells=lambda asked: cause_cells(asked.scale, asked.datasets, asked.seeds),
        build=lambda results, asked: causes_table(results, asked.scale, asked.root),
        refused={**NO_CONVOLUTIONS, "paper": "causes are not in the paper"},
        datasets=causes.DATASETS,
    ),
    "circuits": Entry(
        cells=lambda asked: circuit_cells(asked.scale, asked.seeds),
        build=lambda results, asked: circuit_table(results, asked.scale),
        refused={**NO_CONVOLUTIONS, "paper": "circuits are not in the paper"},
        only_mnist="circuits are compared on mnist",
    ),
}
OF_THE_PAPER = ["fixed", "variance", "bpd", "kld", "mse", "figures"]


def entries_named(what: str) -> dict[str, Entry]:
    """The entry of a name; those of the paper for `all`."""
    names = [what]
    if what == "all":
        names = OF_THE_PAPER
    return {name: ENTRIES[name] for name in names}


def runs_behind(entries: Sequence[Entry], request: Request) -> list[Cell]:
    """The runs of several entries, each once: tables share runs."""
    cells: dict[str, Cell] = {}
    for entry in entries:
        for cell in entry.cells(request):
            cells[cell.name] = cell
    return list(cells.values())
