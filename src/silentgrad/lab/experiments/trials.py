"""From a study in its database to the records of the sweep in its folder."""

import dataclasses
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from silentgrad.lab.data import Unit
from silentgrad.lab.experiments.plan import Sweep
from silentgrad.lab.experiments.study import DIVERGED, SweepError, holds, sampler_of
from silentgrad.lab.runs.folder import SweepFolder
from silentgrad.lab.runs.records import write_atomically
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.runs.trials import SweepRecord, Trial, write_sweep

FIGURES = "figures"  # the name of a trial's summary in the database


def write_records(study: optuna.Study, sweep: Sweep, unit: Unit) -> SweepRecord:
    """Writes the records of a sweep, and the best trial's recipe once one is complete; returns the records.

    Args:
        study: The study in its database.
        sweep: The plan of the sweep.
        unit: The unit in which the trials are told.

    Raises:
        SweepError: The database holds a trial that is damaged.
    """
    trials = []
    for trial in study.get_trials(deepcopy=False):
        point = sampler_of(study).point(trial)
        if point is not None and holds(trial):  # another trial stands in the place of one that was interrupted
            trials.append(_record(trial, SweepFolder(sweep.folder).trial(point).name))
    complete = [trial for trial in trials if trial.state == "complete"]
    best = min(complete, key=lambda trial: trial.reached, default=None)
    record = SweepRecord(sweep.name, unit, sweep.size, sweep.common(), sweep.space, None, trials)
    if best is not None:
        record = dataclasses.replace(record, best=best.number)
    write_sweep(sweep.folder, record)
    if best is not None:
        recipe = _recipe(sweep, best, unit, len(complete))
        write_atomically(SweepFolder(sweep.folder).best, recipe.encode())
    return record


def _record(trial: FrozenTrial, folder: str) -> Trial:
    """A trial as the records show it."""
    record = Trial(
        number=trial.number,
        state=_state(trial),
        point=trial.params,
        valid=_best_value(trial),
        test=None,
        epochs=max(trial.intermediate_values, default=0),
        seconds=_seconds(trial),
        folder=folder,
        remark=trial.user_attrs.get(DIVERGED),
    )
    summary = _summary(trial)
    if summary is None:
        return record
    return dataclasses.replace(record, test=summary.figure, epochs=summary.epochs, seconds=summary.seconds)


def remember(trial: optuna.Trial, summary: Summary) -> None:
    """Puts what a trial came to into the database."""
    trial.set_user_attr(FIGURES, summary.as_json())


def _summary(trial: FrozenTrial) -> Summary | None:
    """What a trial came to; None if it is not complete."""
    content: Any = trial.user_attrs.get(FIGURES)
    if content is None and trial.state != TrialState.COMPLETE:
        return None
    try:
        return Summary.from_json(content)
    except (TypeError, ValueError) as error:  # a database may hold anything
        raise SweepError(f"trial {trial.number} in the database of --storage is damaged: {error}") from error


def _state(trial: FrozenTrial) -> str:
    if DIVERGED in trial.user_attrs:
        return DIVERGED
    return trial.state.name.lower()


def _best_value(trial: FrozenTrial) -> float | None:
    if trial.state == TrialState.COMPLETE:
        return trial.value
    return min(trial.intermediate_values.values(), default=None)


def _seconds(trial: FrozenTrial) -> float | None:
    """The time from a trial's start to its end; None if it is not over."""
    if trial.duration is None:
        return None
    return trial.duration.total_seconds()


def _recipe(sweep: Sweep, best: Trial, unit: Unit, complete: int) -> str:
    """The best trial's settings, in the form of the recipes."""
    settings = sweep.at(best.point)
    assert best.valid is not None  # as it is complete
    assert best.test is not None
    figures = f"test {unit.tell(best.test)}, validation {unit.tell(best.valid)}"
    header = {
        "what": f"{settings.data.name}, the best of {complete} trials of {sweep.name} over {', '.join(sweep.space)}",
        "command": f"silentgrad train --config {SweepFolder(sweep.folder).best}",
        "expects": f"{figures} (seed {settings.train.seed})",
        "time": f"{best.seconds:.0f} seconds",
    }
    recipe = ""
    for key, value in header.items():
        recipe += f"# {key}: {' '.join(value.splitlines())}\n"
    return recipe + settings.as_yaml()
