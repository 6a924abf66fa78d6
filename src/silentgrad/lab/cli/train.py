"""The options of `silentgrad train`."""

from pathlib import Path
from typing import Literal

from silentgrad.lab.settings import DataConfig, ModelConfig, Settings, TrainConfig


def train(
    data: DataConfig = DataConfig(),  # noqa: B008
    model: ModelConfig = ModelConfig(),  # noqa: B008
    train: TrainConfig = TrainConfig(),  # noqa: B008
    folder: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    compare: Literal["without-z"] | None = None,
) -> None:
    """Trains a VAE and leaves a run's folder with figures, weights, pictures and a report.

    With no options: a Silent-guided VAE on the embedded 8x8 digits, about a minute on two cores.

    Args:
        data: The data.
        model: The model, and how its gradient is estimated.
        train: The training.
        folder: Folder of the run, which is made; runs/NAME-NUMBER, by the data's name, if absent.
        resume: Whether to go on from the last finished epoch of the run in --folder, with the settings it was started
            with.
        quiet: Whether to show no progress bar.
        compare: What else to train: without-z, the same model without latents, in FOLDER-without-z, for as long.
    """
    # Here, so that --help does not wait for Lightning and matplotlib.
    from silentgrad.lab.cli.training import train_and_report

    train_and_report(Settings(data, model, train), folder, resume, quiet, compare is not None)
