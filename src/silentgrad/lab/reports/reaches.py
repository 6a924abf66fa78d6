"""How fast runs got where they are: when each first reached a value of the validation metric."""

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from silentgrad.lab.reports import html
from silentgrad.lab.reports.figures import points, y_limits
from silentgrad.lab.reports.units import common_unit, metric_of
from silentgrad.lab.runs.records import Metrics, Run
from silentgrad.lab.runs.tables import Column, Content, Table


class Reach(NamedTuple):
    """When a target was reached first.

    Args:
        epoch: Number of the epoch.
        seconds: Seconds of training until then; None if they were not recorded.
    """

    epoch: float
    seconds: float | None


def first_reach(metrics: Metrics, target: float) -> Reach | None:
    """The first epoch at whose end the validation metric was at most `target`.

    Example:
        >>> first_reach({"epoch": [1, 2, 3], "seconds": [5, 10, 15], "valid_bpd": [4.0, 3.0, 2.0]}, 3.5)
        Reach(epoch=2, seconds=10)
    """
    epochs = metrics["epoch"]
    seconds = metrics.get("seconds", [None] * len(epochs))
    values = metrics.get(f"valid_{metric_of(metrics)}", [])
    for epoch, second, value in zip(epochs, seconds, values, strict=False):
        if epoch is not None and value is not None and value <= target:
            return Reach(epoch, second)
    return None


def reaches(runs: Mapping[str, Run]) -> Table | None:
    """When each run reached some targets, from those that all reach to those that only the best does.

    None if no run has a validation metric yet.
    """
    unit = common_unit(runs)
    targets = _targets(runs, unit.metric)
    if not targets:
        return None
    rows: list[list[Content]] = []
    for name, run in runs.items():
        row: list[Content] = [name]
        for target in targets:
            row.append(_in_print(first_reach(run.metrics, target)))
        rows.append(row)
    columns = [Column("run")]
    for target in targets:
        columns.append(Column(f"{target:g}"))
    return Table("reaches", f"First to reach a validation {unit.title} of", columns, rows)


def _targets(runs: Mapping[str, Run], metric: str) -> list[float]:
    """Round numbers, from what is usual after the first epochs down to the best."""
    values: list[float] = []
    for run in runs.values():
        values += points(run.metrics, "epoch", f"valid_{metric}").y
    if not values:
        return []
    best, usual = min(values), y_limits(values, None)[1]
    ticks = MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]).tick_values(best, usual)
    return [float(tick) for tick in reversed(ticks) if best <= tick <= usual]


def _in_print(reach: Reach | None) -> str:
    if reach is None:
        return "not reached"
    if reach.seconds is None:
        return f"epoch {reach.epoch:.0f}"
    return f"epoch {reach.epoch:.0f}, {html.duration(reach.seconds)}"
