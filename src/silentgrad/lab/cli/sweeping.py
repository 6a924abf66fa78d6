"""What `silentgrad sweep` does."""

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL, create_engine
from sqlalchemy.exc import SQLAlchemyError

from silentgrad.lab.cli.console import say
from silentgrad.lab.cli.interrupts import going_on
from silentgrad.lab.cli.options import require_folder, stem_of
from silentgrad.lab.data import Unit, kind_of
from silentgrad.lab.experiments.grid import Grid
from silentgrad.lab.experiments.plan import Sweep
from silentgrad.lab.experiments.space import search_space
from silentgrad.lab.experiments.study import PATIENCE, SweepError
from silentgrad.lab.experiments.sweep import run_sweep
from silentgrad.lab.reports.html import duration
from silentgrad.lab.reports.sweep import setting, write_sweep_page
from silentgrad.lab.runs.folder import SweepFolder
from silentgrad.lab.runs.trials import SweepRecord, Trial, read_sweep
from silentgrad.lab.training.config import Settings
from silentgrad.lab.training.machine import require_machine
from silentgrad.lab.training.ranges import COUNT, ConfigError, require


def sweep_and_report(
    around: Settings,
    over: list[str],
    grid: Grid,
    study: str | None,
    storage: str | None,
    trials: int | None,
    folder: Path | None,
    quiet: bool,
) -> None:
    """Trains the points of a grid that are left, tells of each, and writes the sweep's page.

    Args:
        around: Settings that all trials have in common.
        over: Names of the settings to vary.
        grid: Values to try.
        study: Name of the sweep; made of the data's name and of what is varied if absent.
        storage: URL of the study's database; a file in the sweep's folder if absent.
        trials: Number of points to train here at most.
        folder: Folder of the trials and the page; sweeps/STUDY if absent.
        quiet: Whether to show no progress bars.
    """
    around = around.resolved(kind_of(around.data.name, around.data.kind).likelihoods)
    around.validate()
    require_machine(around.train)
    require("--trials", trials, COUNT)
    plan = _planned(around, over, grid, study, folder)
    _require_points(plan)
    require_folder(plan.folder)
    if storage is not None:
        _require_storage(storage)
    say(f"sweep {plan.name}: {plan.size} points over {', '.join(plan.space)}, in {plan.folder}")
    with going_on():
        for trial in run_sweep(plan, storage or _own_storage(plan.folder), trials, quiet):
            say(line(trial, read_sweep(plan.folder).unit))
            write_sweep_page(plan.folder)
    for text in closing(read_sweep(plan.folder), plan.folder):
        say(text)
    say(f"page: {write_sweep_page(plan.folder)}")


def _planned(around: Settings, over: list[str], grid: Grid, study: str | None, folder: Path | None) -> Sweep:
    """The sweep that the options ask for; arguments are those of `sweep_and_report`."""
    space = search_space(over, grid, around)
    if study is None:
        study = "-".join([stem_of(around.data.name), *over])
    if not study or study != Path(study).name:
        raise ConfigError(f"--study has to be a plain name, not empty and without folders; got {study!r}")
    return Sweep(study, around, space, folder or Path("sweeps") / study)


def _own_storage(folder: Path) -> str:
    """The URL of the sweep's own database, in which the folder's name is quoted."""
    return URL.create("sqlite", database=str(SweepFolder(folder).study)).render_as_string(hide_password=False)


def _require_storage(url: str) -> None:
    """Refuses a database that cannot be reached."""
    try:
        engine = create_engine(url)
        engine.connect().close()
        engine.dispose()
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise SweepError(f"cannot open the database of --storage: {error}") from error


def _require_points(plan: Sweep) -> None:
    """Refuses a value of the grid that no run can be made with."""
    for name, values in plan.space.items():
        for value in values:
            try:
                plan.at({name: value}).validate()
            except ConfigError as error:
                raise ConfigError(f"--grid.{name} {value}: {error}") from None


def line(trial: Trial, unit: Unit) -> str:
    """A trial in one line, its figure told in a unit."""
    point = ", ".join(f"{name} {setting(value)}" for name, value in trial.point.items())
    parts = []
    if trial.valid is not None:
        parts.append(f"validation {unit.tell(trial.valid)}")
    parts.append(f"{trial.epochs} epochs")
    if trial.seconds is not None:
        parts.append(duration(trial.seconds))
    return f"trial {trial.number} {trial.state}: {point}: {', '.join(parts)}"


def closing(record: SweepRecord, folder: Path) -> Iterator[str]:
    """What the sweep came to, in lines."""
    yield f"{record.points_done()} of {record.size} points done"
    if any(trial.state == "running" for trial in record.trials):
        yield (
            "others are in training by other processes; if one of those was killed, the same command takes its trial "
            f"up again {PATIENCE // 60} minutes later"
        )
    best = record.best_trial()
    if best is not None:
        assert best.test is not None  # as it is complete
        yield f"best, {line(best, record.unit)}, test {record.unit.tell(best.test)}"
        yield f"its recipe: {SweepFolder(folder).best}"
