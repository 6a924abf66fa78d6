"""Sweeps over any settings: Optuna says what to try (`ask`), the runner trains it, Optuna hears of it (`tell`).

A study lives in a database. Every process that opens it takes the next points, so that one machine goes on where it was
stopped, and many share the work. A trial trains in a folder of its own; what the records need of it goes to the
database too, so that any process can write them.

- A trial that is worse than the median of the others at the same epoch is pruned.
- A trial that diverged is done: it would diverge again.
- The point of a trial that was interrupted, or whose process has not been heard of for a while, is trained by the next
  one. That goes on from the last finished epoch if the folder is at hand.
"""

import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState

from silentgrad.lab.build import model_for
from silentgrad.lab.data import Unit, load
from silentgrad.lab.experiments import study as studies
from silentgrad.lab.experiments.runner import GivenUp, Job, Workers, run_jobs, train_run
from silentgrad.lab.experiments.space import Point, Sweep
from silentgrad.lab.store.files import read_json, read_metrics, write_atomically
from silentgrad.lab.store.folders import RunFolder, SweepFolder
from silentgrad.lab.store.records import read_summary
from silentgrad.lab.tables import Column, Content, Table, comma_separated
from silentgrad.lab.training import Settings
from silentgrad.lab.training.loop import Loop

DIVERGED, TEST, SECONDS = "diverged", "test", "seconds"  # of a trial in the database: why it did, and its figures


class Outcome(NamedTuple):
    """A sweep as far as it has come."""

    trials: Table  # all trials, the best first
    done: int  # number of those that need no more training
    folders: list[Path]  # the trials' folders, in this order
    best: str  # what is said of the best trial; empty before one is complete


def run_sweep(sweep: Sweep, storage: str, workers: Workers, quiet: bool = False) -> Outcome:
    """Train the trials that are left.

    After each, `trials.csv` and the best trial's recipe, `best.yaml`, are renewed in the sweep's folder.

    Raises:
        SweepError: The database cannot be opened, or holds another sweep of that name.
    """
    data, model, _ = sweep.at(next(sweep.corners()))
    observations = load(data.name, data.root, data.kind, data.selection)
    model_for(model, observations)  # so that what cannot be trained leaves no study behind
    unit = observations.unit
    sweep.folder.mkdir(parents=True, exist_ok=True)
    taken: list[_Taken] = []

    def jobs(study: optuna.Study) -> Iterator[Job | None]:
        while True:
            trial = None
            with studies.writing():
                if (trial := studies.take(study, sweep)) is not None:
                    taken.append(_Taken(study, trial, sweep, unit))
            yield None if trial is None else Job(taken[-1].work, taken[-1].watch, taken[-1].tell)

    with studies.opened(sweep, storage) as study:
        left = max(0, sweep.size - write_records(study, sweep, unit).done)
        try:
            run_jobs("trials", jobs(study), left, workers, quiet)
        finally:
            with studies.writing():
                for trial in taken:  # those that were interrupted
                    study.tell(trial.trial, state=TrialState.FAIL, skip_if_finished=True)
        return write_records(study, sweep, unit)


def train_trial(settings: Settings, folder: Path) -> None:
    """Train a trial, in a worker, until it is at its end or told to end."""

    def end_if_told(loop: Loop) -> None:
        if RunFolder(folder).end.exists():
            raise GivenUp

    train_run(settings, folder, [end_if_told])


class _Taken:
    """A trial in training, seen from the process that has taken it."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial, sweep: Sweep, unit: Unit) -> None:
        self.study, self.trial, self.sweep, self.unit = study, trial, sweep, unit
        self.settings = sweep.at(trial.params)
        self.run = RunFolder(_folder(study, sweep, trial.params))
        self.work = partial(train_trial, self.settings, self.run.path)
        self.reported, self.heard = 0, time.monotonic()

    def watch(self) -> float:
        """Say that this process is alive, report the latest epochs, and end a trial that is not worth its time."""
        figures = self._figures()
        with studies.writing():
            if time.monotonic() - self.heard > studies.HEARTBEAT:
                self.heard = time.monotonic()
                self.trial.set_user_attr(studies.ALIVE, time.time())
            for figure in figures[self.reported :]:
                self.reported += 1
                self.trial.report(figure, self.reported)
                if self.trial.should_prune():
                    self.run.end.touch()
        return len(figures) / self.settings.train.epochs

    def tell(self) -> None:
        """Tell the study what the trial came to."""
        self.watch()
        reached: float | None
        with studies.writing():
            state, reached = TrialState.PRUNED, None
            if self.run.failure.exists():
                self.trial.set_user_attr(DIVERGED, str(read_json(self.run.failure)["message"]))
            elif self.run.summary.exists():
                summary = read_summary(self.run.summary)
                self.trial.set_user_attr(SECONDS, summary.seconds)
                self.trial.set_user_attr(TEST, summary.figure)
                state, reached = TrialState.COMPLETE, min(self._figures())
            self.study.tell(self.trial, reached, state, skip_if_finished=True)
            write_records(self.study, self.sweep, self.unit)

    def _figures(self) -> list[float]:
        """Return the validation figure of each finished epoch."""
        if not self.run.metrics.exists():
            return []
        column = read_metrics(self.run.metrics).get(f"valid_{self.unit.metric}", [])
        return [figure for figure in column if figure is not None]


def write_records(study: optuna.Study, sweep: Sweep, unit: Unit) -> Outcome:
    """Write the table of a sweep's trials, and the best one's recipe once one is complete."""
    trials, files = sorted(studies.standing(study, sweep), key=_rank), SweepFolder(sweep.folder)
    folders = [_folder(study, sweep, trial.params) for trial in trials]
    figures = [Column(f"{split} {unit.title}", 4, unit.words) for split in ("valid.", "test")]
    columns = [Column("trial"), Column("state"), *map(Column, sweep.space), *figures]
    rows = [[path.name, *_row(trial, sweep)] for path, trial in zip(folders, trials, strict=True)]
    complete = [trial for trial in trials if TEST in trial.user_attrs]
    table = Table("Trials, the best first", columns, rows, [0] if complete else [])
    write_atomically(files.trials, comma_separated(table).encode())
    best = ""
    if complete:
        first, *_ = complete
        best = f"test {unit.tell(first.user_attrs[TEST])}, validation {unit.tell(_reached(first))}"
        write_atomically(files.best, _recipe(sweep, first, best, len(complete)).encode())
        best = f"{folders[0].name}: {best}"
    return Outcome(table, sum(trial.state.is_finished() for trial in trials), folders, best)


def _folder(study: optuna.Study, sweep: Sweep, point: Point) -> Path:
    return SweepFolder(sweep.folder).trial(studies.first_of_point(study, sweep, point))


def _rank(trial: FrozenTrial) -> tuple[bool, float]:
    """Return the place of a trial: the complete ones first, by the best validation figure."""
    return TEST not in trial.user_attrs, _reached(trial)


def _reached(trial: FrozenTrial) -> float:
    """Return the best validation figure; infinite if no epoch is finished."""
    return min(trial.intermediate_values.values(), default=math.inf)


def _row(trial: FrozenTrial, sweep: Sweep) -> list[Content]:
    """Return the state of a trial, its point and its figures."""
    known, reached = trial.user_attrs, _reached(trial)
    state = f"diverged: {known[DIVERGED]}" if DIVERGED in known else trial.state.name.lower()
    point = [str(trial.params.get(option)) for option in sweep.space]
    return [state, *point, reached if math.isfinite(reached) else None, known.get(TEST)]


def _recipe(sweep: Sweep, best: FrozenTrial, told: str, complete: int) -> str:
    """Return the best trial's settings, in the form of the recipes."""
    settings = sweep.at(best.params)
    header = {
        "what": f"{settings.data.name}, the best of {complete} trials of {sweep.name} over {', '.join(sweep.space)}",
        "command": f"silentgrad train --config {SweepFolder(sweep.folder).best}",
        "expects": f"{told} (seed {settings.train.seed})",
        "time": f"{best.user_attrs[SECONDS]:.0f} seconds",
    }
    lines = [f"# {key}: {' '.join(value.splitlines())}\n" for key, value in header.items()]
    return "".join(lines) + settings.as_yaml()
