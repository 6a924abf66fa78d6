"""The commands as functions."""

import os
from dataclasses import asdict
from pathlib import Path

import torch
from rich.table import Table

from silentgrad.guided import GuidedVAE
from silentgrad.lab.cli.console import console, say, verbatim
from silentgrad.lab.cli.options import require_folder, require_output
from silentgrad.lab.data import NAMES, load
from silentgrad.lab.data.catalogue import check, describe
from silentgrad.lab.reports import write_report
from silentgrad.lab.reports.figures import samples
from silentgrad.lab.runs.evaluation import evaluate_model
from silentgrad.lab.runs.records import write_tensors_atomically
from silentgrad.lab.training import (
    DataConfig,
    ModelConfig,
    RunError,
    Settings,
    TrainConfig,
    load_run,
    read_config,
    train_model,
)
from silentgrad.lab.training.config import GROUPS
from silentgrad.lab.training.folder import first_process, is_finished
from silentgrad.lab.training.ranges import COUNT, SEED, Range, require
from silentgrad.lab.training.run import observations_of, pictures

MOST_SAMPLES = 10_000  # images on one picture
FOLDER_OF_FIRST = "SILENTGRAD_RUN_FOLDER"


def train(
    data: DataConfig = DataConfig(),  # noqa: B008
    model: ModelConfig = ModelConfig(),  # noqa: B008
    train: TrainConfig = TrainConfig(),  # noqa: B008
    folder: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Trains a VAE and leaves a run's folder with figures, weights, pictures and a report.

    With no options: a Silent-guided VAE on the embedded 8x8 digits, about a minute on two cores.

    Args:
        data: Which data.
        model: Which model, and how its gradient is estimated.
        train: How to train.
        folder: Where the run goes; runs/NAME-NUMBER if absent.
        resume: Go on from the last finished epoch of the run in --folder, with the settings it was started with.
        quiet: No progress bar.
    """
    if resume:
        if folder is None:
            raise RunError("--resume needs --folder: which run to go on with")
        data, model, train = _resumed(folder, Settings(data, model, train))
    folder = folder or next_folder(data.name)
    require_folder(folder)
    finished = resume and is_finished(folder)
    summary = train_model(data, model, train, folder, resume, quiet)
    if not first_process():
        return
    if finished:
        console.print(f"{folder} is finished: nothing was trained", soft_wrap=True, highlight=False)
    page = folder / "report.html"
    if not finished or not page.exists():
        write_report(folder)
    metric = "bpd" if "bpd" in summary else "nll"
    limit = f" (pPCA limit {summary[f'limit_{metric}']:.4f})" if f"limit_{metric}" in summary else ""
    title, *of = summary["unit"].split(" ", maxsplit=1)
    console.print(
        f"test {' '.join([title, f'[bold]{summary[metric]:.4f}[/bold]', *of])}{_bound(train.iwae_samples)}{limit}   "
        f"MSE {summary['mse']:.3f}   KLD {summary['kld']:.2f}   active latents {summary['active']}   "
        f"{summary['seconds']:.0f} s",
        soft_wrap=True,
    )
    say(f"report: {page}")


def _resumed(folder: Path, given: Settings) -> Settings:
    """The settings that a run was started with; others than those may not be given."""
    before = read_config(folder)
    for group, standard in GROUPS.items():
        for name, value in asdict(getattr(given, group)).items():
            if value not in (getattr(standard(), name), getattr(getattr(before, group), name)):
                raise RunError(f"--resume goes on with the settings of {folder}: leave out --{group}.{name} {value}")
    return before


def evaluate(run: Path, data: str | None = None, root: Path | None = None, samples: int = 1) -> None:
    """Measures a finished run on the test split of its own dataset, or on another dataset's of the same shape.

    Args:
        run: The run's folder.
        data: Another dataset's name or path.
        root: Folder that holds the datasets.
        samples: Of the importance-weighted bound, which is higher than the ELBO; 1 is the ELBO.
    """
    require("--samples", samples, COUNT)
    observations = observations_of(read_config(run), data, root)
    found = evaluate_model(load_run(run, observations), observations, "test", samples)
    unit = found.unit
    console.print(
        f"test {unit.title} [bold]{found.figure:.4f}[/bold]{unit.of}{_bound(samples)}   MSE {found.mse:.3f}   "
        f"KLD {found.kld:.2f}   active latents {found.active}   examples {found.examples}",
        soft_wrap=True,
    )


def _bound(samples: int) -> str:
    """What a figure was computed from, where that is not the ELBO."""
    return "" if samples == 1 else f" (importance-weighted bound, {samples} samples)"


def _dtype(vae: GuidedVAE) -> torch.dtype:
    return next(vae.parameters()).dtype


def reconstruct(run: Path, data: str | None = None, root: Path | None = None, output: Path | None = None) -> None:
    """Reconstructs test images and draws samples with a finished run; writes the pictures and renews its report.

    Args:
        run: The run's folder.
        data: Another dataset's name or path, of the same shape.
        root: Folder that holds the datasets.
        output: A .safetensors file for the pictures; the run's own if absent.
    """
    settings = read_config(run)
    path = output or run / "pictures.safetensors"
    require_output(path, ".safetensors")
    observations = observations_of(settings, data, root)
    write_tensors_atomically(path, pictures(load_run(run, observations), observations))
    if output is None:
        say(f"report: {write_report(run)}")
    else:
        say(f"pictures: {path}")


def sample(run: Path, count: int = 64, seed: int = 0, output: Path | None = None) -> None:
    """Draws images from a finished run's prior and decoder, as a picture.

    Args:
        run: The run's folder.
        count: How many images.
        seed: Of the draws.
        output: A .png file; samples.png in the run's folder if absent.
    """
    require("--count", count, Range(1, MOST_SAMPLES))
    require("--seed", seed, SEED)
    settings = read_config(run)
    path = output or run / "samples.png"
    require_output(path, ".png")
    observations = observations_of(settings)
    if not observations.pictured:
        raise RunError(f"{observations.name} holds no images: there is nothing to make a picture of")
    vae = load_run(run, observations)
    torch.manual_seed(seed)
    model = settings.model
    shape = (count, model.latent_dim)
    z = torch.randn(shape) if model.latent == "gaussian" else torch.bernoulli(torch.full(shape, 0.5))
    with torch.no_grad():
        images = vae.decoder(z.to(_dtype(vae))).mean
    samples({"samples": images}).savefig(path)
    say(f"samples: {path}")


def data_list(root: Path | None = None) -> None:
    """Lists the datasets and where they were found.

    Args:
        root: Folder that holds the datasets.
    """
    table = Table("name", "shape", "levels", "files", "found")
    for row in describe(root):
        table.add_row(*(verbatim(cell) for cell in row))
    console.print(table)


def data_get(name: str, root: Path | None = None) -> None:
    """Downloads a dataset, or says which files to put where.

    Args:
        name: One of the names that data list shows.
        root: Folder that holds the datasets.
    """
    found = load(name, root)
    say(f"{name}: {len(found.train)} + {len(found.valid)} + {len(found.test)} images are there")


def data_check(name: str, root: Path | None = None) -> None:
    """Verifies a dataset's files.

    Args:
        name: One of the names that data list shows.
        root: Folder that holds the datasets.
    """
    say(check(name, root))


def next_folder(name: str) -> Path:
    """The first of runs/NAME-001, runs/NAME-002, ... that does not exist; a process started by another takes its."""
    if not first_process():
        return Path(os.environ[FOLDER_OF_FIRST])
    stem = name if name in NAMES else Path(name).stem
    numbers = (Path("runs") / f"{stem}-{number:03}" for number in range(1, 1000))
    folder = next(folder for folder in numbers if not folder.exists())
    os.environ[FOLDER_OF_FIRST] = str(folder)
    return folder
