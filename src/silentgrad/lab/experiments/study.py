"""The study of a sweep in its database, which many processes open at once, each to train the next points.

Points wait in Optuna's queue, from which `ask` takes each for one process only. A trial holds its point while it waits,
is in training or is done. One that failed holds nothing, and its point is queued again, by whoever comes next. Two
processes may do so at once; then the trial with the lower number counts and the other one is given up. So a process may
be killed at any time, and nobody has to tidy up behind it.

A process says every so often that it is alive. By this, the clocks of machines that share a study have to agree to
within a minute.
"""

import contextlib
import random
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import MedianPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from silentgrad.lab.experiments.space import Point, Sweep, SweepError
from silentgrad.lab.store.folders import SweepFolder

HEARTBEAT, PATIENCE = 30, 120  # seconds: how often a process says that it is alive, and for how long it is believed
LOCKED = 60  # seconds for which SQLite waits until another process has written
ATTEMPTS, PAUSE = 20, 0.3  # at what other processes do at the same time, and the longest pause between two, in seconds
TRIALS_BEFORE_PRUNING = 3
POINT, ALIVE = "point", "alive"  # what a trial is, and the time at which its process was last heard of


@contextlib.contextmanager
def opened(sweep: Sweep, url: str) -> Iterator[optuna.Study]:
    """Yield the study of a sweep, made if it is new, while Optuna is silent.

    Raises:
        SweepError: The database cannot be opened or read, or fails later, or holds another sweep of that name.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = _storage(url)
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=sweep.name,
            pruner=MedianPruner(TRIALS_BEFORE_PRUNING, n_warmup_steps=sweep.around.train.epochs // 3),
            load_if_exists=True,
        )
        try:
            study.sampler = _sampler(sweep, study)
            _require_same_settings(study, sweep)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:  # it may hold anything
            raise SweepError(f"the study {sweep.name} in the database of --storage is damaged: {error!r}") from error
        yield study
    except (SQLAlchemyError, StorageInternalError) as error:
        raise SweepError(f"the database failed; once it works, the same command goes on: {_line(error)}") from error
    finally:
        storage.engine.dispose()
        optuna.logging.set_verbosity(verbosity)


def _storage(url: str) -> RDBStorage:
    """Return the storage. Where several processes make Optuna's tables at once, all but one fail and look again."""
    options: dict[str, Any] = {"pool_pre_ping": True}  # a trial takes longer than many servers keep a connection
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": LOCKED}
    require_connection(url)
    for attempt in range(ATTEMPTS):
        try:
            storage = RDBStorage(url, options)
            break
        except (SQLAlchemyError, StorageInternalError, ValueError) as error:
            if attempt == ATTEMPTS - 1:
                raise SweepError(f"cannot open the database of --storage: {_line(error)}") from error
            time.sleep(random.uniform(0, PAUSE))
    if url.startswith("sqlite"):
        _lock_while_reading(storage.engine)
    return storage


def _lock_while_reading(engine: sqlalchemy.Engine) -> None:
    """Lock SQLite's database from the first read of a transaction on.

    Optuna gives a queued trial to one process by SELECT FOR UPDATE, which SQLite does not know.
    """
    sqlalchemy.event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    sqlalchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    engine.dispose()  # connections from before


def require_connection(url: str) -> None:
    """Raise SweepError unless the database can be reached."""
    try:
        engine = sqlalchemy.create_engine(url)
        engine.connect().close()
        engine.dispose()
    except ImportError as error:
        advice = "for PostgreSQL, pip install 'psycopg[binary]'"
        raise SweepError(f"the driver for the database of --storage is missing ({error}): {advice}") from error
    except (SQLAlchemyError, ValueError) as error:
        raise SweepError(f"cannot open the database of --storage: {_line(error)}") from error


def _line(error: Exception) -> str:
    """Return the first line of what SQLAlchemy says; addresses of its documentation follow."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _sampler(sweep: Sweep, study: optuna.Study) -> BaseSampler:
    if sweep.grid:
        return RandomSampler(0)  # never asked but in a race for the last point, which is lost then
    return TPESampler(seed=sweep.around.train.seed + len(study.get_trials(deepcopy=False)))


def _require_same_settings(study: optuna.Study, sweep: Sweep) -> None:
    trained_before = SweepFolder(sweep.folder).has_trials()  # first: another process says its settings before it trains
    before, now = study.user_attrs.get("settings"), sweep.common()
    if before is None:
        if trained_before:
            raise SweepError(f"{sweep.folder} holds trials of another study: choose another --folder")
        study.set_user_attr("settings", now)
        return
    changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if changed:
        raise SweepError(
            f"the study {sweep.name} was started with other settings ({', '.join(changed)}): "
            "give those, or choose another --study"
        )


def take(study: optuna.Study, sweep: Sweep) -> optuna.Trial | None:
    """Return a trial of a point that nobody else trains; None if there is none, at the moment or at all."""
    _require_same_settings(study, sweep)
    _give_up_silent(study)
    _queue_missing(study, sweep)
    suggestions = 0
    while suggestions < ATTEMPTS:
        trials = study.get_trials(deepcopy=False)
        waiting = any(trial.state == TrialState.WAITING for trial in trials)
        if not waiting and (sweep.grid or len(_holding(trials)) >= sweep.size):
            return None
        with warnings.catch_warnings(action="ignore"):  # of a queued value outside of the space
            try:
                trial = study.ask({option: varied.distribution for option, varied in sweep.space.items()})
            except ValueError as error:
                raise SweepError(f"the study {sweep.name} holds a trial that is none of this sweep: {error}") from error
        queued = POINT in trial.user_attrs
        suggestions += not queued
        with contextlib.suppress(UpdateFinishedTrialError):  # held to be dead before it was begun
            trial.set_user_attr(ALIVE, time.time())
            if _accepted(study, sweep, trial, queued):
                return trial
    return None


def _give_up_silent(study: optuna.Study) -> None:
    """Fail the trials of processes that have not been heard of for a while."""
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.RUNNING and trial.datetime_start is not None:
            heard = trial.user_attrs.get(ALIVE)
            if not isinstance(heard, float):
                heard = trial.datetime_start.timestamp()
            if time.time() - heard > PATIENCE:
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _queue_missing(study: optuna.Study, sweep: Sweep) -> None:
    """Queue the points that no trial holds, those of failed trials among them."""
    trials = trials_of(study, sweep)
    held = [trial.user_attrs[POINT] for trial in _holding(trials)]
    begun = [trial.user_attrs[POINT] for trial in trials]
    for point in [*begun, *(sweep.points() if sweep.grid else ())]:
        if point not in held:
            study.enqueue_trial(point, user_attrs={POINT: point})
            held.append(point)


def _holding(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that keep others from training their points."""
    return [trial for trial in trials if trial.state != TrialState.FAIL]


def _accepted(study: optuna.Study, sweep: Sweep, trial: optuna.Trial, queued: bool) -> bool:
    """Return whether a trial is to be trained; if not, it is told so."""
    earlier = _holding([other for other in study.get_trials(deepcopy=False) if other.number < trial.number])
    twin = next((other for other in earlier if other.user_attrs.get(POINT) == trial.params), None)
    if not queued and (sweep.grid or len(earlier) >= sweep.size):  # others were faster
        study.tell(trial, state=TrialState.FAIL)
    elif twin is None:
        trial.set_user_attr(POINT, trial.params)
        return True
    elif queued or not twin.state.is_finished():
        study.tell(trial, state=TrialState.FAIL)
    else:  # the sampler asks again for what is known
        study.tell(trial, twin.value if twin.state == TrialState.COMPLETE else None, twin.state)
    return False


def trials_of(study: optuna.Study, sweep: Sweep) -> list[FrozenTrial]:
    """Return the trials that were, are or will be in training; what else a database may hold is left out."""

    def known(point: object) -> bool:
        return isinstance(point, dict) and point.keys() == sweep.space.keys()

    return [trial for trial in study.get_trials(deepcopy=False) if known(trial.user_attrs.get(POINT))]


def first_of_point(trials: Sequence[FrozenTrial], point: Point) -> int:
    """Return the number of the first trial of a point, whose folder later ones go on with."""
    return next(trial.number for trial in trials if trial.user_attrs[POINT] == point)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C wait: in the middle of a commit it would leave SQLite's database locked for this process."""
    waiting: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def unless_given_up() -> Iterator[None]:
    """Do no more for a trial that another process holds to be dead, since this one was silent, asleep perhaps."""
    with uninterrupted(), contextlib.suppress(UpdateFinishedTrialError):
        yield
