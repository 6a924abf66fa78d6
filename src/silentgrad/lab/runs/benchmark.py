"""The record of a benchmark, which its experiment writes and its page reads."""

from dataclasses import asdict, dataclass
from pathlib import Path

from silentgrad.lab.runs.records import RecordError, read_json, write_json_atomically
from silentgrad.lab.runs.tables import Table, table_from

RECORD = "benchmark.json"


@dataclass(frozen=True)
class Progress:
    """What an estimator has reached, over steps and over seconds.

    Args:
        steps: Steps.
        seconds: Seconds of so many steps, by the time of one that was measured with nothing beside it.
        elbos: ELBO of training examples, in nats.
    """

    steps: list[int]
    seconds: list[float]
    elbos: list[float]


@dataclass(frozen=True)
class Panel:
    """A setting: a table of its estimators, and their curves.

    Args:
        table: The table.
        curves: What each estimator has reached, by its name.
    """

    table: Table
    curves: dict[str, Progress]


@dataclass(frozen=True)
class BenchmarkRecord:
    """A whole benchmark.

    Args:
        panels: Its settings.
        orders: Variances of estimators beside each other, in the order that papers claim.
        toys: The toy problems.
        verdicts: What it says, in sentences.
        notes: How it was made, in sentences.
        command: The command that made it.
    """

    panels: list[Panel]
    orders: Table
    toys: Table
    verdicts: list[str]
    notes: list[str]
    command: str


def write_benchmark(folder: Path, record: BenchmarkRecord) -> Path:
    """Writes the record into the benchmark's folder, and returns the path of its file."""
    path = folder / RECORD
    write_json_atomically(path, asdict(record))
    return path


def read_benchmark(path: Path) -> BenchmarkRecord:
    """Reads the record.

    Raises:
        RecordError: The file is missing or damaged.
    """
    content = read_json(path)
    try:
        panels = []
        for panel in content.pop("panels"):
            curves = {name: Progress(**curve) for name, curve in panel["curves"].items()}
            panels.append(Panel(table_from(panel["table"]), curves))
        orders, toys = table_from(content.pop("orders")), table_from(content.pop("toys"))
        return BenchmarkRecord(panels, orders, toys, **content)
    except (KeyError, TypeError) as error:
        raise RecordError(f"cannot read {path}: it holds no benchmark ({error})") from error
