"""What the runs of an experiment came to, over their seeds."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import Metrics, read_summary
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.runs.tables import Content, Spread


class Results(NamedTuple):
    """The runs of one table.

    Args:
        folder: Folder that holds a folder for each run.
        cells: The runs.
    """

    folder: Path
    cells: Sequence[Cell]

    def over_seeds(self, metric: str, **wanted: object) -> Content:
        """A figure, by its name, over the seeds of the runs that fit; text if one of them diverged."""
        cells = self.where(**wanted)
        failed = sum(self.run(cell).failure.exists() for cell in cells)
        if failed:
            return f"diverged ({failed} of {len(cells)})"
        values = []
        for cell in cells:
            value = figure_named(metric, self.summary(cell))
            if value is not None:
                values.append(value)
        return spread(values)

    def where(self, **wanted: object) -> list[Cell]:
        """The runs whose fields have these values."""
        return [cell for cell in self.cells if _fits(cell, wanted)]

    def only(self, cells: Sequence[Cell]) -> "Results":
        """Some of the runs."""
        return self._replace(cells=cells)

    def data(self, **wanted: object) -> str:
        """What the data of the runs that fit are called in print; the runs are of one dataset."""
        return self.where(**wanted)[0].data

    def run(self, cell: Cell) -> RunFolder:
        """The folder of a run."""
        return RunFolder(self.folder / cell.name)

    def summary(self, cell: Cell) -> Summary:
        """The final figures of a run."""
        return read_summary(self.run(cell).summary)

    def finished(self, **wanted: object) -> list[Cell]:
        """The runs that fit and have a summary."""
        return [cell for cell in self.where(**wanted) if self.run(cell).summary.exists()]

    def first_seeds(self) -> dict[str, str]:
        """The finished runs of the first seed, for curves: label -> name of the folder."""
        names = {}
        for cell in self.finished(seed=0):
            names[_label(cell)] = cell.name
        return names


def _fits(cell: Cell, wanted: dict[str, object]) -> bool:
    return all(getattr(cell, name) == value for name, value in wanted.items())


def _label(cell: Cell) -> str:
    if cell.title:
        return cell.title
    method = paper.METHODS[cell.method.removesuffix(paper.GUIDED)]
    if cell.method.endswith(paper.GUIDED):
        method += " + SG"
    if cell.scheduled:
        method += ", scheduled"
    return f"{cell.data} {paper.BLOCKS[cell.latent].lower()} {method}"


def figure_named(name: str, summary: Summary) -> float | None:
    """The figure of a run that tables call by a name; None if the run has none of that name."""
    if name == summary.unit.metric:
        return summary.figure
    if name == "kld":
        return summary.kld
    if name == "seconds":
        return summary.seconds
    return summary.metrics.get(name)


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation (n - 1) of the figures of several seeds; None if there is no figure.

    Example:
        >>> spread([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951, seeds=2)
    """
    if not values:
        return None
    deviation = None
    if len(values) > 1:
        deviation = statistics.stdev(values)
    return Spread(statistics.fmean(values), deviation, len(values))


def mean_of(content: Content) -> float:
    """The mean of a figure over seeds, or the figure itself; infinite if there is none."""
    if isinstance(content, Spread):
        return content.mean
    if isinstance(content, float):
        return content
    return math.inf


def reached(metrics: Metrics, seconds: float) -> float | None:
    """The best validation figure up to some time; None if there was none yet.

    Example:
        >>> reached({"seconds": [5, 10, 15], "valid_bpd": [4.0, 3.0, 2.0]}, 12.0)
        3.0
    """
    figures = []
    for time, figure in zip(metrics["seconds"], metrics["valid_bpd"], strict=True):
        if time is not None and figure is not None and time <= seconds:
            figures.append(figure)
    return min(figures, default=None)
