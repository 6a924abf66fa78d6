"""The unit in which a run is told, from its records."""

from collections.abc import Iterable, Mapping

from silentgrad.lab.data import Unit
from silentgrad.lab.runs.records import Metrics, RecordError, Run

COUNTED = {
    "kld": "nats per example",
    "mse": "squared error per example",
    "active": "latents that are used",
    "loss": "nats per example",
    "weight": "of the tractable decoder, from 0 to 1",
    "variance": "of the linear decoder's outputs",
    "lr": "learning rate",
    "seconds": "of training",
}


def counted(metric: str, unit: Unit) -> str:
    """What a metric beside the clock is counted in; empty for one of a user's own.

    Example:
        >>> counted("bpd", Unit("bpd")), counted("kld", Unit("bpd"))
        ('bits per dimension', 'nats per example')
    """
    if metric == unit.metric:
        return unit.words
    return COUNTED.get(metric, "")


def axis_title(metric: str, unit: Unit) -> str:
    """A metric's name and what it is counted in, above a picture of it.

    Example:
        >>> axis_title("bpd", Unit("bpd")), axis_title("kld", Unit("bpd")), axis_title("worst", Unit("bpd"))
        ('BPD, bits per dimension', 'KLD, nats per example', 'WORST')
    """
    return ", ".join(filter(None, [metric.upper(), counted(metric, unit)]))


def legend(names: Iterable[str], unit: Unit) -> str:
    """What the columns of a table are counted in, in a sentence; empty if none of them is known here.

    Args:
        names: Names of the columns, such as valid_bpd, lr_mean, "test BPD" or KLD.
        unit: Unit of the runs.

    Example:
        >>> legend(["epoch", "valid_bpd", "test_bpd", "KLD"], Unit("bpd"))
        'BPD: bits per dimension; KLD: nats per example.'
    """
    told: dict[str, str] = {}
    for name in names:
        for word in name.lower().replace(",", " ").replace("_", " ").split():
            counted_in = counted(word, unit)
            if counted_in:
                told[word] = f"{_in_print(word)}: {counted_in}"
    if not told:
        return ""
    return "; ".join(told.values()) + "."


def _in_print(word: str) -> str:
    if len(word) <= len("bpd"):
        return word.upper()
    return word


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
