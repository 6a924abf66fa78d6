"""The options of `silentgrad sweep`."""

from pathlib import Path

from silentgrad.lab.experiments.grid import Grid
from silentgrad.lab.training.config import DataConfig, ModelConfig, Settings, TrainConfig


def sweep(
    data: DataConfig = DataConfig(),  # noqa: B008
    model: ModelConfig = ModelConfig(),  # noqa: B008
    train: TrainConfig = TrainConfig(),  # noqa: B008
    over: list[str] = ["lr"],  # noqa: B006
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
        data: The data.
        model: The model, and how its gradient is estimated.
        train: The training.
        over: Settings to vary, separated by commas: lr, guided, cutoff.
        grid: The values to try of each setting.
        study: Name of the sweep; made of the data's name and of what is varied if absent.
        storage: Database of the sweep as a URL, such as postgresql+psycopg://user@host/name; an SQLite file in the
            sweep's folder if absent.
        trials: Number of points of the grid to train at most; all that are left if absent.
        folder: Folder of the trials and their page; sweeps/STUDY if absent.
        quiet: Whether to show no progress bars.
    """
    # Here, so that --help does not wait for Lightning, Optuna and matplotlib.
    from silentgrad.lab.cli.sweeping import sweep_and_report

    sweep_and_report(Settings(data, model, train), over, grid, study, storage, trials, folder, quiet)
