"""The study of a sweep in its database, which many processes open at once, each to train the next point of the grid.

A trial holds its point while it is in training and after it is done. A trial that failed holds nothing: its point is
free again, for whoever comes next. So a process may be killed at any time, and nobody has to tidy up behind it.
"""

import contextlib
import random
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import GridSampler
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from silentgrad.errors import SilentgradError

HEARTBEAT, PATIENCE = 30, 120  # seconds: how often a process says that it is alive, and for how long it is believed
LOCKED = 60  # seconds for which SQLite waits until another process has written
ATTEMPTS, PAUSE = 20, 0.3  # at making the tables while others do, and the longest pause between two, in seconds
DIVERGED = "diverged"


class SweepError(SilentgradError):
    """A sweep cannot be done as asked."""


@contextlib.contextmanager
def opened(url: str, name: str, space: dict[str, list[Any]], pruner: BasePruner) -> Iterator[optuna.Study]:
    """A study, made if it is new, while Optuna is silent.

    Args:
        url: URL of the database.
        name: Name of the study.
        space: Values of each setting that is varied.
        pruner: Rule by which a trial is given up.

    Raises:
        SweepError: The database cannot be opened or read, or fails later.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # of the heartbeat
        storage = _storage(url)
        try:
            study = optuna.create_study(
                storage=storage, study_name=name, sampler=EachPointOnce(space), pruner=pruner, load_if_exists=True
            )
            _require_readable(study)
            yield study
        except (SQLAlchemyError, StorageInternalError) as error:
            raise SweepError(f"the database failed; once it works, the same command goes on: {_line(error)}") from error
        finally:
            storage.engine.dispose()
            optuna.logging.set_verbosity(verbosity)


def _storage(url: str) -> RDBStorage:
    try:
        _require_connection(url)
        return _with_tables(url)
    except ImportError as error:
        advice = "for PostgreSQL, pip install 'psycopg[binary]'"
        raise SweepError(f"the driver for the database of --storage is missing ({error}): {advice}") from error
    except (SQLAlchemyError, StorageInternalError, ValueError) as error:
        raise SweepError(f"cannot open the database of --storage: {_line(error)}") from error


def _line(error: Exception) -> str:
    """The first line of what SQLAlchemy says; addresses of its documentation follow."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _require_connection(url: str) -> None:
    """Fails at once where trying again would not help."""
    engine = sqlalchemy.create_engine(url)
    engine.connect().close()
    engine.dispose()


def _with_tables(url: str) -> RDBStorage:
    """The database with Optuna's tables; where several processes make them at once, all but one fail and look again."""
    options: dict[str, Any] = {"pool_pre_ping": True}  # a trial takes longer than many servers keep a connection
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": LOCKED}
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(SQLAlchemyError, StorageInternalError):
            return RDBStorage(url, options, heartbeat_interval=HEARTBEAT, grace_period=PATIENCE)
        time.sleep(random.uniform(0, PAUSE))
    return RDBStorage(url, options, heartbeat_interval=HEARTBEAT, grace_period=PATIENCE)


def _require_readable(study: optuna.Study) -> None:
    try:
        study.get_trials(deepcopy=False)
        study.user_attrs  # noqa: B018 (reads them)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise SweepError(f"the study {study.study_name} in the database of --storage is damaged: {error!r}") from error


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


class EachPointOnce(GridSampler):
    """Gives each point of a grid to one trial, whatever other processes do at the same time."""

    def __init__(self, space: dict[str, list[Any]]) -> None:
        super().__init__(space, seed=0)
        self.size = len(self._all_grids)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Takes a free point for the trial; none if there is none.

        Of two trials that take the same point, at least one sees the other's claim after it has written its own. A
        trial that sees another's claim withdraws, so that a point is never given twice.
        """
        storage = study._storage
        # Before it holds a point: a trial that was never heard of would hold it for good.
        storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]
        if self.point(trial) is not None:  # it was queued with its point
            return
        storage.set_trial_system_attr(trial._trial_id, "search_space", self._search_space)
        while free := self.free(study, trial):
            point = trial.number if trial.number in free else random.choice(free)
            storage.set_trial_system_attr(trial._trial_id, "grid_id", point)
            if point in self.free(study, trial):
                return
            storage.set_trial_system_attr(trial._trial_id, "grid_id", None)
            time.sleep(random.uniform(0, PAUSE))

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: object) -> None:
        """Does nothing: whether points are left is asked before each trial."""

    def free(self, study: optuna.Study, asking: FrozenTrial | None = None) -> list[int]:
        """The points that no trial but the asking one holds; only those that were begun, if there are any."""
        begun: set[int | None] = set()
        held: set[int | None] = set()
        for trial in study.get_trials(deepcopy=False):
            if asking is not None and trial.number == asking.number:
                continue
            point = self.point(trial)
            begun.add(point)
            if holds(trial):
                held.add(point)
        free = set(range(self.size)) - held
        return sorted(free & begun) or sorted(free)

    def point(self, trial: FrozenTrial) -> int | None:
        """The number of the trial's point; None if it has none."""
        number: Any = trial.system_attrs.get("grid_id")
        if number not in range(self.size):  # a database may hold anything
            return None
        return int(number)


def sampler_of(study: optuna.Study) -> EachPointOnce:
    """The sampler of a study that `opened` has given."""
    assert isinstance(study.sampler, EachPointOnce)
    return study.sampler


def holds(trial: FrozenTrial) -> bool:
    """Whether a trial keeps others from training its point: one that diverged would do so again."""
    return trial.state != TrialState.FAIL or DIVERGED in trial.user_attrs


def points_left(study: optuna.Study) -> bool:
    """Whether there is a point to train, including those of processes that have been silent for too long."""
    fail_stale_trials(study)
    queued = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return bool(queued or sampler_of(study).free(study))
