"""Sweeps over the paper's grids, as Optuna studies.

A study lives in a database. Every process that opens it takes the next point of the grid, so that one machine goes on
where it was stopped, and many share the work. A trial trains in a folder of its own; what the records need of it goes
to the database too, so that any process can write them.

- A trial that is worse than the median of the others at the same epoch is pruned.
- A trial that diverged is done: it would diverge again.
- The point of a trial that was interrupted, or whose process has not been heard of for a while, is trained by the next
  one. That goes on from the last finished epoch if the folder is at hand.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import lightning
import optuna
from optuna.exceptions import TrialPruned, UpdateFinishedTrialError
from optuna.pruners import MedianPruner
from optuna.trial import FrozenTrial

from silentgrad.lab.data import Unit, load
from silentgrad.lab.experiments.plan import Point, Sweep
from silentgrad.lab.experiments.runner import start_or_resume
from silentgrad.lab.experiments.study import (
    DIVERGED,
    SweepError,
    holds,
    opened,
    points_left,
    sampler_of,
    uninterrupted,
)
from silentgrad.lab.experiments.trials import remember, write_records
from silentgrad.lab.runs.folder import RunFolder, SweepFolder
from silentgrad.lab.runs.records import read_metrics
from silentgrad.lab.runs.trials import Trial
from silentgrad.lab.training import DivergedError
from silentgrad.lab.training.build import model_for

TRIALS_BEFORE_PRUNING = 3


class PointsTaken(Exception):  # noqa: N818 (nothing is wrong)
    """Other processes took the last points in the meantime."""


def run_sweep(sweep: Sweep, storage: str, trials: int | None = None, quiet: bool = False) -> Iterator[Trial]:
    """Trains one point of the grid after the other until none is left, and gives the record of each when it is done.

    After each, `trials.json` and the best trial's recipe, `best.yaml`, are renewed in the sweep's folder.

    Args:
        sweep: The sweep.
        storage: URL of the database.
        trials: Number of trials to train here at most; None for all that are left.
        quiet: Whether to show no progress bars.

    Raises:
        SweepError: The database cannot be opened, or holds another sweep of that name.
    """
    if sweep.around.train.devices > 1:
        raise SweepError("a trial takes one device: leave --train.devices at 1 and start the command once per device")
    data, model, _ = sweep.around
    observations = load(data.name, data.root, data.kind, data.selection)
    model_for(model, observations)  # so that what cannot be trained leaves no study behind
    unit = observations.unit
    done = 0
    with _study(sweep, storage) as study:
        write_records(study, sweep, unit)
        while (trials is None or done < trials) and points_left(study):
            _require_same_settings(study, sweep)
            number = _train_next(study, sweep, unit, quiet)
            trials_so_far = write_records(study, sweep, unit).trials
            if number is not None:
                done += 1
                yield next(trial for trial in trials_so_far if trial.number == number)


@contextlib.contextmanager
def _study(sweep: Sweep, url: str) -> Iterator[optuna.Study]:
    sweep.folder.mkdir(parents=True, exist_ok=True)
    pruner = MedianPruner(TRIALS_BEFORE_PRUNING, n_warmup_steps=sweep.around.train.epochs // 3)
    with opened(url, sweep.name, sweep.space, pruner) as study:
        _require_same_settings(study, sweep)
        yield study


def _require_same_settings(study: optuna.Study, sweep: Sweep) -> None:
    trained_before = SweepFolder(sweep.folder).has_trials()  # first: another process says its settings before it trains
    before = study.user_attrs.get("settings")
    now = sweep.common() | {"space": sweep.space}
    if before is None:
        if trained_before:
            raise SweepError(f"{sweep.folder} holds trials of another study: choose another --folder")
        study.set_user_attr("settings", now)
        return
    changed = _changed(_flat(before), _flat(now))
    if changed:
        raise SweepError(
            f"the study {sweep.name} was started with other settings ({', '.join(changed)}): "
            "give those, or choose another --study"
        )


def _flat(settings: object) -> dict[str, Any]:
    """Settings in groups as one dictionary; what is not in this form, which a database may hold, is left out."""
    flat: dict[str, Any] = {}
    if not isinstance(settings, dict):
        return flat
    for group, entries in settings.items():
        if not isinstance(entries, dict):
            continue
        for name, value in entries.items():
            flat[f"{group}.{name}"] = value
    return flat


def _changed(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The names of the settings that differ."""
    names = sorted(then.keys() | now.keys())
    return [name for name in names if then.get(name) != now.get(name)]


def _train_next(study: optuna.Study, sweep: Sweep, unit: Unit, quiet: bool) -> int | None:
    """Trains a free point, and returns the trial's number; None if other processes took the point."""
    done: list[int] = []
    lost: list[int] = []

    def objective(trial: optuna.Trial) -> float:
        try:
            return _objective(study, trial, sweep, unit, quiet)
        except UpdateFinishedTrialError:
            lost.append(trial.number)
            raise

    def keep(_: optuna.Study, trial: FrozenTrial) -> None:
        if holds(trial):
            done.append(trial.number)

    try:
        study.optimize(objective, n_trials=1, catch=(DivergedError, PointsTaken), callbacks=[keep])
    except ValueError:
        if not lost:
            raise
        # This process was silent for so long, asleep perhaps, that another one trains its point.
    return next(iter(done), None)


def _objective(study: optuna.Study, trial: optuna.Trial, sweep: Sweep, unit: Unit, quiet: bool) -> float:
    """Trains one point, and returns the best validation figure, in the unit of the observations."""
    number = sampler_of(study).point(study.get_trials(deepcopy=False)[trial.number])
    if number is None:
        raise PointsTaken
    point: Point = {}
    for name, values in sweep.space.items():
        point[name] = trial.suggest_categorical(name, values)
    folder = SweepFolder(sweep.folder).trial(number)
    try:
        summary = start_or_resume(sweep.at(point), folder, quiet, [_Pruning(trial, _column(unit))])
    except DivergedError as error:
        trial.set_user_attr(DIVERGED, str(error))
        raise
    except SystemExit as stop:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from stop
    remember(trial, summary)
    figures = read_metrics(RunFolder(folder).metrics)[_column(unit)]
    return min(figure for figure in figures if figure is not None)


def _column(unit: Unit) -> str:
    """The name of the validation figure among an epoch's metrics."""
    return f"valid_{unit.metric}"


class _Pruning(lightning.Callback):
    """Tells the study the validation figure of each epoch, and ends the trial when the study says so.

    Args:
        trial: The trial in the study.
        column: The name of the validation figure among an epoch's metrics.
    """

    def __init__(self, trial: optuna.Trial, column: str) -> None:
        self.trial, self.column = trial, column

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        figure = trainer.callback_metrics[self.column].item()
        with uninterrupted():
            self.trial.report(figure, epoch)
            prune = self.trial.should_prune()
        if prune:
            raise TrialPruned(f"after epoch {epoch}")
