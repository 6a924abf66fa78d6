"""The unit in which a run is told, from its records."""

from collections.abc import Mapping

from silentgrad.lab.data import Unit
from silentgrad.lab.runs.records import Metrics, RecordError, Run


def metric_of(metrics: Metrics) -> str:
    """The metric that a run is told in: bpd, or nll for what is not in levels."""
    if "valid_nll" in metrics:
        return "nll"
    return "bpd"


def unit_of(run: Run) -> Unit:
    """The unit of a run; a run without a summary does not say what its metric is counted per."""
    if run.summary is None:
        return Unit(metric_of(run.metrics))
    return run.summary.unit


def common_unit(runs: Mapping[str, Run]) -> Unit:
    """The unit of all runs.

    Raises:
        RecordError: Two runs are told in different units.
    """
    first, *others = runs
    common = unit_of(runs[first])
    for name in others:
        unit = unit_of(runs[name])
        if not _agree(common, unit):
            raise RecordError(
                f"runs in different units cannot be compared: {first} is told in {common.in_print}, {name} in "
                f"{unit.in_print}; compare those of one unit at a time"
            )
        if unit.of and not common.of:
            first, common = name, unit
    return common


def _agree(one: Unit, other: Unit) -> bool:
    if one.metric != other.metric:
        return False
    return one.of == other.of or not (one.of and other.of)
