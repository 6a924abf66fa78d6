"""Sweeps over the paper's grids, as Optuna studies.

A study lives in a database. Every process that opens it takes the next point of the grid, so that one machine goes on
where it was stopped, and many share the work. A trial trains in a folder of its own; what the records need of it goes
to the database too, so that any process can write them.

- A trial that is worse than the median of the others at the same epoch is pruned.
- A trial that diverged is done: it would diverge again.
- A trial that was interrupted, or whose process has not been heard of for a while, is queued again. It goes on from its
  last finished epoch if its folder is at hand.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning
import optuna
import yaml  # type: ignore[import-untyped]
from optuna.exceptions import ExperimentalWarning, StorageInternalError, TrialPruned
from optuna.pruners import MedianPruner
from optuna.samplers import GridSampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from silentgrad.data import load
from silentgrad.errors import SilentgradError
from silentgrad.records import Run, write_atomically, write_json_atomically
from silentgrad.training import DivergedError, Settings, build_model, train_model

HEARTBEAT, PATIENCE = 30, 120  # seconds: how often a process says that it is alive, and for how long it is believed
TRIALS_BEFORE_PRUNING = 3
OF_THE_MACHINE = {"root", "accelerator", "devices"}  # settings in which the processes of one study may differ

Point = dict[str, Any]
Record = dict[str, Any]


class SweepError(SilentgradError):
    """A sweep cannot be done as asked."""


@dataclass
class Grid:
    """The values to try: the paper's, unless others are given.

    Args:
        lr: Learning rates.
        annealing_rate: By which w_lin falls every epoch.
        cutoff: Epochs at which the encoder is frozen.
    """

    lr: list[float] = field(default_factory=lambda: [1e-4, 5e-4, 1e-5, 5e-5])
    annealing_rate: list[float] = field(default_factory=lambda: [1e-2, 5e-2, 1e-3, 5e-3])
    cutoff: list[int] = field(default_factory=lambda: [50, 80, 100, 150, 200])


@dataclass(frozen=True)
class Sweep:
    """What is varied, around which settings, and where the trials go."""

    name: str
    around: Settings
    space: dict[str, list[Any]]
    folder: Path

    @property
    def size(self) -> int:
        """Number of points of the grid."""
        return math.prod(map(len, self.space.values()))

    def at(self, point: Point) -> Settings:
        """The settings of one point."""
        data, model, train = self.around
        rate = {name: value for name, value in point.items() if name == "lr"}
        rest = {name: value for name, value in point.items() if name != "lr"}
        return Settings(data, dataclasses.replace(model, **rest), dataclasses.replace(train, **rate))

    def common(self) -> Record:
        """What all trials have in common, as JSON holds it."""
        groups = yaml.safe_load(self.around.as_yaml()) | {"space": self.space}
        return {name: {k: v for k, v in group.items() if k not in OF_THE_MACHINE} for name, group in groups.items()}


def search_space(over: list[str], grid: Grid, around: Settings) -> dict[str, list[Any]]:
    """The grid over some of the settings.

    Raises:
        SweepError: One of them is unknown, or changes nothing in this configuration.
    """
    known = [entry.name for entry in dataclasses.fields(Grid)]
    if not over or set(over) - set(known) or len(set(over)) < len(over):
        raise SweepError(f"--over takes some of {', '.join(known)}, separated by commas; got {','.join(over)!r}")
    model, epochs = around.model, around.train.epochs
    guided = model.linear != "none" and model.nonlinear
    if "annealing_rate" in over and not (guided and model.estimator != "none"):
        raise SweepError(
            "an annealing rate needs a guide that gives way to another estimator: --model.linear other than none, "
            "--model.nonlinear true and --model.estimator other than none"
        )
    if "cutoff" in over and not guided:
        raise SweepError("a cut-off needs a guided VAE: --model.linear other than none and --model.nonlinear true")
    late = [epoch for epoch in grid.cutoff if epoch > epochs] if "cutoff" in over else []
    if late:
        raise SweepError(f"cut-offs {late} come after the last of {epochs} epochs: give others by --grid.cutoff")
    space = {name: list(dict.fromkeys(getattr(grid, name))) for name in over}
    if not all(space.values()):
        raise SweepError("there is nothing to try: a list of --grid is empty")
    return space


def run_sweep(sweep: Sweep, storage: str, trials: int | None = None, quiet: bool = False) -> Iterator[Record]:
    """Trains one point of the grid after the other until none is left, and gives the record of each when it is done.

    After each, `trials.json` and the best trial's recipe, `best.yaml`, are renewed in the sweep's folder.

    Args:
        sweep: What to do.
        storage: The database's URL.
        trials: How many to train here at most.
        quiet: No progress bars.

    Raises:
        SweepError: The database cannot be opened, or holds another sweep of that name.
    """
    if sweep.around.train.devices > 1:
        raise SweepError("a trial takes one device: leave --train.devices at 1 and start the command once per device")
    data, model, _ = sweep.around
    images = load(data.name, data.root)
    build_model(model, images.event_shape, images.levels)  # so that what cannot be trained leaves no study behind
    finished: list[int] = []
    with _study(sweep, storage) as study:
        write_records(study, sweep)
        while (trials is None or len(finished) < trials) and _points_left(study, sweep):
            study.optimize(
                lambda trial: _objective(study, trial, sweep, quiet),
                n_trials=1,
                catch=DivergedError,
                callbacks=[lambda _, trial: finished.append(trial.number)],
            )
            yield next(one for one in write_records(study, sweep)["trials"] if one["number"] == finished[-1])


@contextlib.contextmanager
def _study(sweep: Sweep, url: str) -> Iterator[optuna.Study]:
    """The study in its database, made if it is new, while Optuna is silent."""
    sweep.folder.mkdir(parents=True, exist_ok=True)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # of the heartbeat
        storage = _storage(url)
        try:
            study = optuna.create_study(
                storage=storage,
                study_name=sweep.name,
                sampler=GridSampler(sweep.space, seed=0),
                pruner=MedianPruner(TRIALS_BEFORE_PRUNING, n_warmup_steps=sweep.around.train.epochs // 3),
                load_if_exists=True,
            )
            _require_same_settings(study, sweep)
            yield study
        except (SQLAlchemyError, StorageInternalError) as error:
            raise SweepError(f"the database failed; once it works, the same command goes on: {error}") from error
        finally:
            storage.engine.dispose()
            optuna.logging.set_verbosity(verbosity)


def _storage(url: str) -> RDBStorage:
    try:
        return RDBStorage(
            url,
            heartbeat_interval=HEARTBEAT,
            grace_period=PATIENCE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )
    except (SQLAlchemyError, StorageInternalError, ImportError, ValueError) as error:
        raise SweepError(f"cannot open the database of --storage: {error}") from error


def _require_same_settings(study: optuna.Study, sweep: Sweep) -> None:
    now = sweep.common()
    before = study.user_attrs.get("settings")
    if before is None:
        if any(sweep.folder.glob("trial-*")):
            raise SweepError(f"{sweep.folder} holds trials of another study: choose another --folder")
        study.set_user_attr("settings", now)
        return
    groups = {name: before[name].keys() | now[name].keys() for name in now}
    changed = [f"{g}.{key}" for g, keys in groups.items() for key in keys if before[g].get(key) != now[g].get(key)]
    if changed:
        raise SweepError(
            f"the study {sweep.name} was started with other settings ({', '.join(sorted(changed))}): "
            "give those, or choose another --study"
        )


def _points_left(study: optuna.Study, sweep: Sweep) -> bool:
    """Whether there is a point that no process has taken, or one to take up again."""
    fail_stale_trials(study)
    trials = study.get_trials(deepcopy=False)
    taken = {tuple(sorted(trial.params.items())) for trial in trials if trial.params}
    return len(taken) < sweep.size or any(trial.state == TrialState.WAITING for trial in trials)


def _objective(study: optuna.Study, trial: optuna.Trial, sweep: Sweep, quiet: bool) -> float:
    """Trains one point; the best validation BPD."""
    point = {name: trial.suggest_categorical(name, values) for name, values in sweep.space.items()}
    again = "folder" in trial.user_attrs
    folder = sweep.folder / (trial.user_attrs["folder"] if again else f"trial-{trial.number:04}")
    trial.set_user_attr("folder", folder.name)
    resume = again and (folder / "config.yaml").exists()
    try:
        figures = train_model(*sweep.at(point), folder, resume, quiet, [_Pruning(trial)])
    except DivergedError as error:
        trial.set_user_attr("diverged", str(error))
        raise
    except TrialPruned:
        raise
    except BaseException as error:
        RetryHeartbeatStaleTrialCallback()(study, study.get_trials(deepcopy=True)[trial.number])
        if isinstance(error, SystemExit):  # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from error
        raise
    metrics = Run.read(folder).metrics
    trial.set_user_attr("figures", figures | {"seconds": metrics["seconds"][-1]})
    return min(bpd for bpd in metrics["valid_bpd"] if bpd is not None)


class _Pruning(lightning.Callback):
    """Tells the study the validation BPD of each epoch, and ends the trial when the study says so."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        self.trial.report(trainer.callback_metrics["valid_bpd"].item(), epoch)
        if self.trial.should_prune():
            raise TrialPruned(f"after epoch {epoch}")


def write_records(study: optuna.Study, sweep: Sweep) -> Record:
    """Writes `trials.json`, and `best.yaml` once a trial is complete; returns what the first holds."""
    trials = [record for trial in study.get_trials(deepcopy=False) if (record := _record(trial)) is not None]
    complete = [trial for trial in trials if trial["state"] == "complete"]
    best = min(complete, key=lambda trial: trial["valid_bpd"], default=None)
    content = {
        "study": sweep.name,
        "size": sweep.size,
        "settings": sweep.common(),
        "best": None if best is None else best["number"],
        "trials": trials,
    }
    write_json_atomically(sweep.folder / "trials.json", content)
    if best is not None:
        write_atomically(sweep.folder / "best.yaml", _recipe(sweep, best, len(complete)).encode())
    return content


def _record(trial: FrozenTrial) -> Record | None:
    """A trial as the records show it; None for one that was interrupted, since another goes on in its place."""
    diverged = trial.user_attrs.get("diverged")
    if trial.state == TrialState.FAIL and diverged is None:
        return None
    seen = trial.intermediate_values
    figures = trial.user_attrs.get("figures", {})
    return {
        "number": trial.number,
        "state": "diverged" if diverged is not None else trial.state.name.lower(),
        "point": trial.params,
        "valid_bpd": trial.value if trial.state == TrialState.COMPLETE else min(seen.values(), default=None),
        "epochs": figures.get("epochs", max(seen, default=0)),
        "seconds": figures.get("seconds", trial.duration.total_seconds() if trial.duration else None),
        "figures": figures,
        "folder": trial.user_attrs.get("folder"),
        "remark": diverged,
    }


def _recipe(sweep: Sweep, best: Record, complete: int) -> str:
    """The best trial's settings, in the form of the recipes."""
    settings = sweep.at(best["point"])
    bpd = f"test BPD {best['figures']['bpd']:.3f}, validation BPD {best['valid_bpd']:.3f}"
    header = {
        "what": f"{settings.data.name}, the best of {complete} trials of {sweep.name} over {', '.join(sweep.space)}",
        "command": f"silentgrad train --config {sweep.folder / 'best.yaml'}",
        "expects": f"{bpd} (seed {settings.train.seed})",
        "time": f"{best['seconds']:.0f} seconds",
    }
    lines = [f"# {key}: {' '.join(value.splitlines())}\n" for key, value in header.items()]
    return "".join(lines) + settings.as_yaml()
