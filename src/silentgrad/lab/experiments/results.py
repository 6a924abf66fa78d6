r"""The figures of an experiment's runs: over their seeds, and compared by pairs of seeds.

Runs of one seed see the same batches in the same order, so that some of what differs between seeds cancels. With
differences :math:`d_1, ..., d_n` of mean m and standard deviation s, Student's interval of 95 % is
:math:`m \pm t_{n-1} s / \sqrt n`; at three seeds t is 4.3.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scipy.special import stdtrit  # type: ignore[import-untyped]

from silentgrad.lab.build import annealed
from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.ledger import Ledger, RunRow
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.tables import Content, Interval, Spread

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Results:
    """The runs of one table: their rows in the ledger, and a folder that may still hold a folder for each."""

    folder: Path
    cells: Sequence[Cell]
    ledger: Ledger

    @cached_property
    def known(self) -> dict[str, RunRow]:
        """The rows of the finished runs, by the runs' names."""
        rows = {cell.name: self.ledger.row(cell.settings) for cell in self.cells}
        return {name: row for name, row in rows.items() if row is not None}

    def where(self, **wanted: object) -> list[Cell]:
        """Return the runs whose fields have these values."""
        return [cell for cell in self.cells if all(getattr(cell, name) == value for name, value in wanted.items())]

    def rows(self, **wanted: object) -> list[RunRow]:
        """Return what the finished runs that fit came to."""
        return [self.known[cell.name] for cell in self.where(**wanted) if cell.name in self.known]

    def over_seeds(self, metric: str, **wanted: object) -> Content:
        """Return a figure, by its name, over the seeds of the runs that fit; text if one of them diverged."""
        rows = self.rows(**wanted)
        diverged = sum(bool(row.failure) for row in rows)
        return f"diverged ({diverged} of {len(rows)})" if diverged else spread(getattr(row, metric) for row in rows)

    def epochs_to(self, level: float, **wanted: object) -> list[float]:
        """Return the epochs that each run took to a figure of validation, with the variance that it ends with."""
        cells = [cell for cell in self.where(**wanted) if cell.name in self.known]
        return [self.known[cell.name].reach(level, _annealing(cell)) for cell in cells]

    def first(self, field: str, **wanted: object) -> Content:
        """Return a field of the first of the runs that fit in which it is known."""
        return next((value for row in self.rows(**wanted) if (value := getattr(row, field)) is not None), None)

    def run(self, cell: Cell) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.folder / cell.name)

    def labels(self, cells: Sequence[Cell]) -> dict[str, str]:
        """Return the runs that have a folder among some, for curves and pictures: label -> name of the folder."""
        return {cell.label: cell.name for cell in cells if self.run(cell).summary.exists()}


def _annealing(cell: Cell) -> int:
    """Return the number of epochs before the fixed variance of a run is the one that it ends with."""
    variance, epochs = annealed(cell.settings.model, "variance"), cell.settings.train.epochs
    return next(epoch for epoch in range(epochs) if variance(epoch + 1) == variance(epochs))


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return mean and standard deviation (n - 1) of the figures of several seeds; None if there is no figure.

    Example:
        >>> spread([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951, seeds=2)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return Spread(statistics.fmean(known), deviation, len(known))


def mean_of(content: Content) -> float:
    """Return the mean of a figure over seeds, or the figure itself; infinite if there is none."""
    if isinstance(content, Spread):
        return content.mean
    return content if isinstance(content, float) else math.inf


@dataclass(frozen=True)
class Difference(Interval):
    """Mean difference over seeds, with Student's interval."""

    @property
    def verdict(self) -> str:
        """Verdict for a lower-is-better metric."""
        if self.margin is None:
            return "one seed"
        if abs(self.mean) <= self.margin:
            return "undecided"
        return "helps" if self.mean < 0 else "hurts"


def paired(changed: Sequence[float], reference: Sequence[float]) -> Difference | None:
    """Return the difference of two sides' figures, in the order of their seeds; None if there is no seed.

    Example:
        >>> paired([1.0, 2.0, 3.0], [2.0, 3.0, 4.5])
        Difference(mean=-1.1666666666666667, margin=0.7171...)
    """
    differences = [a - b for a, b in zip(changed, reference, strict=True)]
    if not differences:
        return None
    mean = statistics.fmean(differences)
    if len(differences) == 1:
        return Difference(mean, None)
    quantile = float(stdtrit(len(differences) - 1, (1 + CONFIDENCE) / 2))
    return Difference(mean, quantile * statistics.stdev(differences) / math.sqrt(len(differences)))


def compared(ours: Sequence[RunRow], theirs: Sequence[RunRow], metric: str = "test") -> Difference | None:
    """Return the change of a figure over the seeds that both sides have.

    There is none where a run failed: what is left would be chosen, and to beat a dead run says nothing.
    """
    if any(row.failed for row in [*ours, *theirs]):
        return None
    before = {row.seed: getattr(row, metric) for row in theirs}
    pairs = [(getattr(row, metric), before[row.seed]) for row in ours if row.seed in before]
    return paired([changed for changed, _ in pairs], [reference for _, reference in pairs])
