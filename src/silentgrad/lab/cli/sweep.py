"""The options of `silentgrad sweep`."""

from pathlib import Path

from silentgrad.lab.experiments.grid import Grid
from silentgrad.lab.training.config import DataConfig, ModelConfig, Settings, TrainConfig


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
        data: Which data.
        model: Which model, and how its gradient is estimated.
        train: How to train.
        over: What to vary, separated by commas: lr, guided, cutoff.
        grid: The values to try.
        study: The sweep's name; made of the data's and of what is varied if absent.
        storage: The study's database as a URL, such as postgresql+psycopg://user@host/name; an SQLite file in the
            sweep's folder if absent.
        trials: Number of points to train here at most; all that are left if absent.
        folder: Where the trials and the page go; sweeps/STUDY if absent.
        quiet: No progress bars.
    """
    # Here, so that --help does not wait for Lightning, Optuna and matplotlib.
    from silentgrad.lab.cli.sweeping import sweep_and_report

    sweep_and_report(Settings(data, model, train), over, grid, study, storage, trials, folder, quiet)
