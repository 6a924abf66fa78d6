"""`silentgrad sweep`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine
from sqlalchemy.exc import SQLAlchemyError

from silentgrad.lab.cli.console import say
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.data import NAMES
from silentgrad.lab.experiments.study import PATIENCE, SweepError
from silentgrad.lab.experiments.sweep import Grid, Sweep, run_sweep, search_space
from silentgrad.lab.reports.html import duration
from silentgrad.lab.reports.sweep import best_trial, points_done, read_sweep, setting, write_sweep_page
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.training.machine import require_machine
from silentgrad.lab.training.ranges import COUNT, ConfigError, require


def sweep(
    data: DataConfig = DataConfig(),  # noqa: B008
    model: ModelConfig = ModelConfig(),  # noqa: B008
    train: TrainConfig = TrainConfig(),  # noqa: B008
    over: str = "lr",
    grid: Grid = Grid(),  # noqa: B008
    study: str | None = None,
    storage: str | None = None,
    trials: int | None = None,
    folder: Path | None = None,
    quiet: bool = False,
) -> None:
    """Trains every point of a grid, the paper's by default, and writes the best one's recipe.

    The same command goes on with a sweep that was interrupted. Started on several machines with one --storage, they
    share the work.

    Args:
        data: Which images.
        model: Which model, and how its gradient is estimated.
        train: How to train.
        over: What to vary, separated by commas: lr, annealing_rate, cutoff.
        grid: The values to try.
        study: The sweep's name; made of the data's and of what is varied if absent.
        storage: The study's database as a URL, such as postgresql+psycopg://user@host/name; an SQLite file in the
            sweep's folder if absent.
        trials: How many points to train here at most; all that are left if absent.
        folder: Where the trials and the page go; sweeps/STUDY if absent.
        quiet: No progress bars.
    """
    around = Settings(data, model, train)
    around.validate()
    require_machine(train)
    require("--trials", trials, COUNT)
    names = [name.strip() for name in over.split(",")]
    space = search_space(names, grid, around)
    stem = data.name if data.name in NAMES else Path(data.name).stem
    name = "-".join([stem, *names]) if study is None else study
    if not name or name != Path(name).name:
        raise ConfigError(f"--study has to be a plain name, not empty and without folders; got {name!r}")
    plan = Sweep(name, around, space, folder or Path("sweeps") / name)
    _require_points(plan)
    require_folder(plan.folder)
    if storage is not None:
        _require_storage(storage)
    say(f"sweep {name}: {plan.size} points over {', '.join(names)}, in {plan.folder}")
    try:
        for trial in run_sweep(plan, storage or _own_storage(plan.folder), trials, quiet):
            say(line(trial))
            write_sweep_page(plan.folder)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on")
        raise SystemExit(130) from None
    for text in closing(read_sweep(plan.folder), plan.folder):
        say(text)
    say(f"page: {write_sweep_page(plan.folder)}")


def _own_storage(folder: Path) -> str:
    """The URL of the sweep's own database, in which the folder's name is quoted."""
    return URL.create("sqlite", database=str(folder / "study.db")).render_as_string(hide_password=False)


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


def line(trial: dict[str, Any]) -> str:
    """A trial in one line."""
    point = ", ".join(f"{name} {setting(value)}" for name, value in trial["point"].items())
    bpd = "" if trial["valid_bpd"] is None else f"validation BPD {trial['valid_bpd']:.4f}, "
    spent = "" if trial["seconds"] is None else f", {duration(trial['seconds'])}"
    return f"trial {trial['number']} {trial['state']}: {point}: {bpd}{trial['epochs']} epochs{spent}"


def closing(records: dict[str, Any], folder: Path) -> Iterator[str]:
    """What the sweep came to."""
    yield f"{points_done(records)} of {records['size']} points done"
    if any(trial["state"] == "running" for trial in records["trials"]):
        yield (
            "others are in training by other processes; if one of those was killed, the same command takes its trial "
            f"up again {PATIENCE // 60} minutes later"
        )
    best = best_trial(records)
    if best is not None:
        yield f"best, {line(best)}, test BPD {best['figures']['bpd']:.4f}"
        yield f"its recipe: {folder / 'best.yaml'}"
