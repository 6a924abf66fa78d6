"""From a study in its database to the records of the sweep in its folder."""

import dataclasses

import optuna
from optuna.trial import FrozenTrial, TrialState

from silentgrad.lab.experiments.plan import Sweep
from silentgrad.lab.experiments.study import DIVERGED, holds, sampler_of
from silentgrad.lab.runs.folder import SweepFolder
from silentgrad.lab.runs.records import write_atomically
from silentgrad.lab.runs.trials import SweepRecord, Trial, write_sweep


def write_records(study: optuna.Study, sweep: Sweep) -> SweepRecord:
    """Writes the records of a sweep, and the best trial's recipe once one is complete; returns the records."""
    trials = []
    for trial in study.get_trials(deepcopy=False):
        point = sampler_of(study).point(trial)
        if point is not None and holds(trial):  # another trial stands in the place of one that was interrupted
            trials.append(_record(trial, SweepFolder(sweep.folder).trial(point).name))
    complete = [trial for trial in trials if trial.state == "complete"]
    best = min(complete, key=lambda trial: trial.reached, default=None)
    record = SweepRecord(sweep.name, sweep.size, sweep.common(), None, trials)
    if best is not None:
        record = dataclasses.replace(record, best=best.number)
    write_sweep(sweep.folder, record)
    if best is not None:
        recipe = _recipe(sweep, best, len(complete))
        write_atomically(SweepFolder(sweep.folder).best, recipe.encode())
    return record


def _record(trial: FrozenTrial, folder: str) -> Trial:
    """A trial as the records show it."""
    by_epoch = trial.intermediate_values
    summary = trial.user_attrs.get("figures", {})
    return Trial(
        number=trial.number,
        state=_state(trial),
        point=trial.params,
        valid_bpd=_best_value(trial),
        test_bpd=summary.get("bpd"),
        epochs=summary.get("epochs", max(by_epoch, default=0)),
        seconds=summary.get("seconds", _seconds(trial)),
        folder=folder,
        remark=trial.user_attrs.get(DIVERGED),
    )


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


def _recipe(sweep: Sweep, best: Trial, complete: int) -> str:
    """The best trial's settings, in the form of the recipes."""
    settings = sweep.at(best.point)
    bpd = f"test BPD {best.test_bpd:.3f}, validation BPD {best.valid_bpd:.3f}"
    header = {
        "what": f"{settings.data.name}, the best of {complete} trials of {sweep.name} over {', '.join(sweep.space)}",
        "command": f"silentgrad train --config {SweepFolder(sweep.folder).best}",
        "expects": f"{bpd} (seed {settings.train.seed})",
        "time": f"{best.seconds:.0f} seconds",
    }
    recipe = ""
    for key, value in header.items():
        recipe += f"# {key}: {' '.join(value.splitlines())}\n"
    return recipe + settings.as_yaml()
