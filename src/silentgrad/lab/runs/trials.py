"""The records of a sweep, which experiments write and reports read."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from silentgrad.lab.data import Unit
from silentgrad.lab.runs.folder import SweepFolder
from silentgrad.lab.runs.records import RecordError, read_json, write_json_atomically

DONE = ("complete", "pruned", "diverged")
STATES = (*DONE, "running", "waiting")


@dataclass(frozen=True)
class Trial:
    """One training at a point of a sweep's grid.

    Args:
        number: Its number in the study.
        state: One of STATES.
        point: The value of each setting that is varied.
        valid: The best validation figure, in the unit of the sweep; None if no epoch is finished.
        test: The test figure, in the unit of the sweep; None if the trial is not complete.
        epochs: Number of finished epochs.
        seconds: The time it took; None if it is not over.
        folder: The name of its folder in the sweep's.
        remark: Why it diverged.
    """

    number: int
    state: str
    point: dict[str, Any]
    valid: float | None
    test: float | None
    epochs: int
    seconds: float | None
    folder: str
    remark: str | None

    @property
    def reached(self) -> float:
        """The best validation figure, by which trials are compared; infinite if no epoch is finished."""
        if self.valid is None:
            return math.inf
        return self.valid


@dataclass(frozen=True)
class SweepRecord:
    """A sweep as far as it has come.

    Args:
        study: Its name.
        unit: The unit in which its figures are told.
        size: The number of points of its grid.
        settings: What all trials have in common, in groups.
        space: The values of each setting that is varied.
        best: The number of the complete trial with the lowest validation figure; None before one is complete.
        trials: All trials.
    """

    study: str
    unit: Unit
    size: int
    settings: dict[str, dict[str, Any]]
    space: dict[str, list[float]]
    best: int | None
    trials: Sequence[Trial]

    def best_trial(self) -> Trial | None:
        """The complete trial with the lowest validation figure."""
        for trial in self.trials:
            if trial.number == self.best:
                return trial
        return None

    def points_done(self) -> int:
        """How many points of the grid need no more training."""
        points = set()
        for trial in self.trials:
            if trial.state in DONE:
                points.add(str(trial.point))
        return len(points)


def write_sweep(folder: Path, record: SweepRecord) -> None:
    """Writes the records of a sweep into its folder."""
    content = asdict(record) | {"unit": record.unit.in_print}
    write_json_atomically(SweepFolder(folder).trials, content)


def read_sweep(folder: Path) -> SweepRecord:
    """Reads the records of a sweep.

    Raises:
        RecordError: The folder holds no sweep, or its file is damaged.
    """
    path = SweepFolder(folder).trials
    if not path.is_file():
        raise RecordError(f"{folder} holds no sweep: it has no {path.name}")
    content = read_json(path)
    try:
        trials = [Trial(**trial) for trial in content.pop("trials")]
        unit = Unit.from_print(content.pop("unit"))
        return SweepRecord(unit=unit, trials=trials, **content)
    except (AttributeError, KeyError, TypeError) as error:
        raise RecordError(f"cannot read {path}: it holds no sweep ({error})") from error
