"""`silentgrad sweep`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from silentgrad.lab.cli.shared import going_on, require_folder, show_table
from silentgrad.lab.settings import ConfigError, Count, DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.store.folders import RunFolder, SweepFolder

if TYPE_CHECKING:
    from silentgrad.lab.experiments.sweep import Outcome

SUGGESTED = 20  # trials by tpe if nothing is said


def sweep(
    data: DataConfig = DataConfig(),  # noqa: B008
    model: ModelConfig = ModelConfig(),  # noqa: B008
    train: TrainConfig = TrainConfig(),  # noqa: B008
    over: tuple[str, ...] = ("train.lr",),
    sampler: Literal["grid", "tpe"] | None = None,
    trials: Count | None = None,
    study: str | None = None,
    storage: str | None = None,
    folder: Path | None = None,
    jobs: Count | None = None,
    cluster: str | None = None,
    quiet: bool = False,
) -> None:
    """Train with many values of any settings, compare the runs, and write the best one's recipe.

    The same command goes on with a sweep that was interrupted. Started on several machines with one --storage, they
    share the work.

    Args:
        data: The data.
        model: The model, and how its gradient is estimated.
        train: The training.
        over: A setting to vary and its values, as in model.latent_dim=16,32,64 or train.lr=1e-4..1e-2; may be given
            several times. Without values, train.lr, model.guided and model.cutoff have those of the paper.
        sampler: How the values are chosen: grid takes all combinations, tpe those that promise most by the trials so
            far. If absent, grid, or tpe where there is a range.
        trials: Number of trials that the sweep comes to; if absent, all of a grid, and 20 by tpe.
        study: Name of the sweep; made of the data's name and of what is varied if absent.
        storage: Database of the sweep as a URL, such as postgresql+psycopg://user@host/name; an SQLite file in the
            sweep's folder if absent.
        folder: Folder of the trials and their page; sweeps/STUDY if absent.
        jobs: Number of trials side by side; one per processor core, or one on an accelerator, if absent.
        cluster: Address of a Dask scheduler, tcp://HOST:8786, whose workers train (needs the extra cluster).
        quiet: Whether to show no progress bar.
    """
    # Here and below, so that --help does not wait for Lightning, Optuna and matplotlib.
    from sqlalchemy import URL

    from silentgrad.lab.cli.main import setting
    from silentgrad.lab.experiments.runner import workers_at
    from silentgrad.lab.experiments.space import Sweep, search_space
    from silentgrad.lab.experiments.study import require_connection
    from silentgrad.lab.experiments.sweep import run_sweep
    from silentgrad.lab.training.fabric import fabric_for

    space = search_space(over, setting)
    grid = sampler == "grid" or (sampler is None and all(varied.values for varied in space.values()))
    study = _name(study, data, space)
    files = SweepFolder(folder or Path("sweeps") / study)
    limit = trials if grid else trials or SUGGESTED
    plan = Sweep(study, Settings(data, model, train), space, files.path, grid, limit)
    fabric_for(train)
    require_folder(files.path)
    if storage is not None:
        require_connection(storage)
    database = storage or URL.create("sqlite", database=str(files.study)).render_as_string(hide_password=False)
    print(f"sweep {study}: {plan.size} trials over {', '.join(space)}, in {files.path}")
    with going_on(), workers_at(cluster, jobs, train.accelerator) as workers:
        outcome = run_sweep(plan, database, workers, quiet)
    _show(outcome, plan.size, files)


def _name(study: str | None, data: DataConfig, space: Iterable[str]) -> str:
    """Return the name of the sweep: the one that was given, or one of the data's name and of what is varied."""
    if study is None:
        study = "-".join([Path(data.name).stem, *(option.rpartition(".")[2] for option in space)])
    if not study or study != Path(study).name:
        raise ConfigError(f"--study has to be a plain name, not empty and without folders; got {study!r}")
    return study


def _show(outcome: "Outcome", size: int, files: SweepFolder) -> None:
    """Print the trials and the best one, and write the page that compares them."""
    from silentgrad.lab.experiments.study import PATIENCE
    from silentgrad.lab.reports.compare import write_comparison

    show_table(outcome.trials)
    told = f"{outcome.done} of {size} trials done"
    print(told)
    if "running" in outcome.trials.column(1):
        print(
            "others are in training by other processes; if one of those was killed, the same command takes its trial "
            f"up again {PATIENCE // 60} minutes later"
        )
    if outcome.best:
        print(f"best in validation, {outcome.best}")
        print(f"its recipe: {files.best}")
        told += f". The best in validation is {outcome.best}; its recipe is {files.best.name}"
    here = [path for path in outcome.folders if RunFolder(path).metrics.exists()]
    if here:
        write_comparison(here, files.page, f"{told}.")
        print(f"page: {files.page}")
