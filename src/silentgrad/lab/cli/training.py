"""`silentgrad train`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from silentgrad.lab.cli.shared import console, going_on, next_folder, require_folder, told
from silentgrad.lab.settings import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.settings.documents import with_options
from silentgrad.lab.store.folders import RunFolder

FEW = 100  # training examples, below which a run is warned of

if TYPE_CHECKING:
    from silentgrad.lab.store.records import Summary


def train(
    data: DataConfig = DataConfig(),  # noqa: B008
    model: ModelConfig = ModelConfig(),  # noqa: B008
    train: TrainConfig = TrainConfig(),  # noqa: B008
    folder: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    compare: Literal["without-z"] | None = None,
) -> None:
    """Train a VAE and leave a run's folder with figures, weights, pictures and a report.

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
    train_and_report(Settings(data, model, train), folder, resume, quiet, compare is not None)


def train_and_report(
    settings: Settings, folder: Path | None, resume: bool, quiet: bool, compare: bool = False
) -> "Summary":
    """Train a run, in a new folder if none is given, or go on with the run in the folder; write its report.

    To compare it, the same model without z is trained as long.
    """
    # Here, so that --help does not wait for Lightning and matplotlib.
    from silentgrad.lab.build import plan_for
    from silentgrad.lab.reports import write_report
    from silentgrad.lab.training.loading import read_config
    from silentgrad.lab.training.run import RunError, first_process, train_model

    if resume:
        if folder is None:
            raise RunError("--resume needs --folder: which run to go on with")
        settings, given = read_config(folder), settings
        standard, before = Settings().options(), settings.options()
        for name, value in given.options().items():
            if value not in (standard[name], before[name]):
                raise RunError(f"--resume goes on with the settings of {folder}: leave out --{name} {value}")
    if folder is None:
        if not first_process():
            raise RunError("processes that are started one by one need --folder, the same for all of them")
        folder = next_folder(settings.data.name)
        if settings.train.devices > 1:  # told to the processes that Lightning starts with the words of this one
            sys.argv += ["--folder", str(folder)]
    require_folder(folder)
    finished = resume and RunFolder(folder).summary.exists()
    plan = plan_for(settings)
    left = plan.weight_left
    if left > 0 and not finished and first_process():
        print(f"the guide's weight never reaches 0: {left:.2f} of it is left at the end (--model.guided above 1)")
    with going_on(folder):
        summary = train_model(*plan, folder, resume, quiet, finished=write_report)
    if not first_process():
        return summary
    other = RunFolder(RunFolder(folder).without_z)
    if compare:
        again = resume and other.config.exists()
        without_z = plan_for(with_options(settings, {"model.without_z": True}))
        blind = train_model(*without_z, other.path, again, quiet, finished=write_report)
        write_report(folder)
        told = f"the same without z: {blind.unit.tell(blind.elbo)} ({blind.chosen})"
        print(f"{told}; z is worth {blind.elbo - summary.elbo:.4f} ({summary.chosen})")
    elif not plan.model.without_z and not other.summary.exists():
        print("the same model without z was not trained: --compare without-z says what the latents are worth")
    if finished:
        console.print(f"{folder} is finished: nothing was trained", soft_wrap=True, highlight=False)
    if summary.training_examples < FEW:
        print(f"{summary.training_examples} training examples are few: figures of so small a test say little")
    page = RunFolder(folder).report
    if finished and not page.exists():
        write_report(folder)
    console.print("   ".join(_figures(summary, plan.train.iwae_samples)), soft_wrap=True)
    print(f"report: {page}")
    return summary


def _figures(summary: "Summary", samples: int) -> Iterator[str]:
    yield from told(summary, samples, summary.limit)
    if summary.other_closed_form is not None:
        yield f"trained with a closed form, {summary.other_closed_form}"
    yield f"{summary.seconds:.0f} s"
