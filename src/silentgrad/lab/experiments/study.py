"""The study of a sweep in its database, which many processes open at once, each to train the next points.

Points wait in Optuna's queue, from which `ask` takes each for one process only. A trial holds its point while it waits,
is in training or is done. One that failed holds nothing, and its point is queued again, by whoever comes next. Two
processes may do so at once; then the trial with the lower number counts and the other one is given up. So a process may
be killed at any time, and nobody has to tidy up behind it.

A process says every so often that it is alive. By this, the clocks of machines that share a study have to agree to
within a minute. Optuna's own heartbeat is for `optimize`: it never gives up a trial that was killed before its first.
"""

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import MedianPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from silentgrad.lab.experiments.space import Point, Sweep, SweepError
from silentgrad.lab.store.folders import SweepFolder

HEARTBEAT, PATIENCE = 30, 120  # seconds: how often a process says that it is alive, and for how long it is believed
LOCKED = 60  # seconds for which SQLite waits until another process has written
ATTEMPTS, PAUSE = 20, 0.3  # at what other processes do at the same time, and the longest pause between two, in seconds
TRIALS_BEFORE_PRUNING = 3
ALIVE = "alive"  # the time at which a trial's process was last heard of


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
        pruner = MedianPruner(TRIALS_BEFORE_PRUNING, n_warmup_steps=sweep.around.train.epochs // 3)
        study = optuna.create_study(storage=storage, study_name=sweep.name, pruner=pruner, load_if_exists=True)
        try:
            seed = sweep.around.train.seed + len(study.get_trials(deepcopy=False))
            study.sampler = RandomSampler(0) if sweep.grid else TPESampler(seed=seed)  # of a grid, points are queued
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
        sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool).connect().close()
    except ImportError as error:
        advice = "for PostgreSQL, pip install 'psycopg[binary]'"
        raise SweepError(f"the driver for the database of --storage is missing ({error}): {advice}") from error
    except (SQLAlchemyError, ValueError) as error:
        raise SweepError(f"cannot open the database of --storage: {_line(error)}") from error


def _line(error: Exception) -> str:
    """Return the first line of what SQLAlchemy says; addresses of its documentation follow."""
    return next(iter(str(error).splitlines()), type(error).__name__)


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
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        if time.time() - trial.user_attrs.get(ALIVE, begun) > PATIENCE:
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    try:
        _queue_missing(study, sweep)
        return _asked(study, sweep)
    except ValueError as error:
        raise SweepError(f"the study {sweep.name} holds a trial that is none of this sweep: {error}") from error


def _asked(study: optuna.Study, sweep: Sweep) -> optuna.Trial | None:
    """Return the next trial of the queue, or that of a point which is suggested."""
    suggestions = 0
    while suggestions < ATTEMPTS:
        held = _holding(study)
        if not any(trial.state == TrialState.WAITING for trial in held) and (sweep.grid or len(held) >= sweep.size):
            return None
        taken = study.ask(sweep.distributions)
        taken.set_user_attr(ALIVE, time.time())
        queued = any(trial.number == taken.number for trial in held)
        earlier = [trial for trial in _holding(study) if trial.number < taken.number]
        full = not queued and (sweep.grid or len(earlier) >= sweep.size)  # others were faster
        if not full and all(trial.params != taken.params for trial in earlier):
            return taken
        study.tell(taken, state=TrialState.FAIL)
        suggestions += not queued
    return None


def _queue_missing(study: optuna.Study, sweep: Sweep) -> None:
    """Queue the points that no trial holds, those of failed trials among them."""
    held = [trial.params for trial in standing(study, sweep)]
    for point in [*(trial.params for trial in trials_of(study, sweep)), *(sweep.points() if sweep.grid else ())]:
        if point not in held:
            waiting = optuna.create_trial(state=TrialState.WAITING, params=point, distributions=sweep.distributions)
            study.add_trial(waiting)
            held.append(point)


def _holding(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that keep others from training their points."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.FAIL]


def trials_of(study: optuna.Study, sweep: Sweep) -> list[FrozenTrial]:
    """Return the trials of a sweep; what else a database may hold is left out."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.distributions == sweep.distributions]


def standing(study: optuna.Study, sweep: Sweep) -> list[FrozenTrial]:
    """Return the trial of each point that was, is or will be in training."""
    first: dict[str, FrozenTrial] = {}
    for trial in trials_of(study, sweep):
        if trial.state != TrialState.FAIL:
            first.setdefault(str(sorted(trial.params.items())), trial)
    return list(first.values())


def first_of_point(study: optuna.Study, sweep: Sweep, point: Point) -> int:
    """Return the number of the first trial of a point, whose folder later ones go on with."""
    return next(trial.number for trial in trials_of(study, sweep) if trial.params == point)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Let Ctrl-C wait, and do no more for a trial that another process holds to be dead, this one having slept.

    In the middle of a commit, Ctrl-C would leave SQLite's database locked for this process.
    """
    waiting: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: waiting.append(number))
    try:
        with contextlib.suppress(UpdateFinishedTrialError):
            yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        signal.raise_signal(signal.SIGINT)
