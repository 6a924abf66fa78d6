"""`silentgrad evaluate`, `reconstruct` and `sample`: what a finished run can do."""

from pathlib import Path

import torch

from silentgrad.guided import GuidedVAE
from silentgrad.lab.cli.console import beside_bound, bound, console, metrics, say
from silentgrad.lab.cli.options import require_output
from silentgrad.lab.reports import write_report
from silentgrad.lab.reports.figures import samples
from silentgrad.lab.runs.evaluation import evaluate_model
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import write_pictures
from silentgrad.lab.training import RunError, load_run, read_config
from silentgrad.lab.training.finishing import generated, pictures
from silentgrad.lab.training.loading import observations_of
from silentgrad.lab.training.ranges import COUNT, SEED, Range, require

MOST_SAMPLES = 10_000  # images on one picture


def evaluate(run: Path, data: str | None = None, root: Path | None = None, samples: int = 1) -> None:
    """Measures a finished run on the test split of its own dataset, or on another dataset's of the same shape.

    Args:
        run: Folder of the finished run.
        data: Name or path of another dataset of the same shape; the run's own data if absent.
        root: Folder that holds the datasets; that of the run if absent.
        samples: Number of samples of the importance-weighted bound, which is higher than the ELBO; 1 is the ELBO.
    """
    require("--samples", samples, COUNT)
    observations = observations_of(read_config(run), data, root)
    found = evaluate_model(load_run(run, observations), observations, "test", samples)
    unit = found.unit
    beside = bound(samples) + beside_bound(found.figure, found.sampled)
    console.print(
        f"test {unit.title} [bold]{found.figure:.4f}[/bold]{unit.of}{beside}   {metrics(found.metrics)}   "
        f"KLD {found.kld:.2f}   active latents {found.active}   {found.exactness}   examples {found.examples}",
        soft_wrap=True,
    )


def _dtype(vae: GuidedVAE) -> torch.dtype:
    return next(vae.parameters()).dtype


def reconstruct(run: Path, data: str | None = None, root: Path | None = None, output: Path | None = None) -> None:
    """Reconstructs test images and draws samples with a finished run; writes the pictures and renews its report.

    Args:
        run: Folder of the finished run.
        data: Name or path of another dataset of the same shape; the run's own data if absent.
        root: Folder that holds the datasets; that of the run if absent.
        output: A .safetensors file to write the pictures to; the one in the run's folder if absent.
    """
    settings = read_config(run)
    path = output or RunFolder(run).pictures
    require_output(path, ".safetensors")
    observations = observations_of(settings, data, root)
    write_pictures(path, pictures(load_run(run, observations), observations))
    if output is None:
        say(f"report: {write_report(run)}")
    else:
        say(f"pictures: {path}")


def sample(run: Path, count: int = 64, seed: int = 0, output: Path | None = None) -> None:
    """Draws images from a finished run's prior and decoder, as a picture.

    Args:
        run: Folder of the finished run.
        count: Number of images to draw.
        seed: Seed of the draws.
        output: A .png file to write the picture to; samples.png in the run's folder if absent.
    """
    require("--count", count, Range(1, MOST_SAMPLES))
    require("--seed", seed, SEED)
    settings = read_config(run)
    path = output or RunFolder(run).figure("samples")
    require_output(path, ".png")
    observations = observations_of(settings)
    if not observations.pictured:
        raise RunError(f"{observations.name} holds no images: there is nothing to make a picture of")
    vae = load_run(run, observations)
    torch.manual_seed(seed)
    with torch.no_grad():
        images = generated(vae, count)
    samples(images).savefig(path)
    say(f"samples: {path}")
