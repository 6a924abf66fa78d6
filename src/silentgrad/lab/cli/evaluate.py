"""`silentgrad evaluate`, `reconstruct` and `sample`: what a finished run can do."""

from pathlib import Path

import torch

from silentgrad.guided import GuidedVAE
from silentgrad.guided import evaluate as evaluate_batch
from silentgrad.lab.cli.console import bound, console, say
from silentgrad.lab.cli.options import require_output
from silentgrad.lab.data import dequantise, load
from silentgrad.lab.reports import write_report
from silentgrad.lab.reports.figures import samples
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import write_tensors_atomically
from silentgrad.lab.training import load_run, read_config
from silentgrad.lab.training.ranges import COUNT, SEED, Range, require
from silentgrad.lab.training.run import bits_per_dimension, pictures

MOST_SAMPLES = 10_000  # images on one picture


def evaluate(run: Path, data: str | None = None, root: Path | None = None, samples: int = 1) -> None:
    """Measures a finished run on the test images of its own dataset, or of another of the same shape.

    Args:
        run: The run's folder.
        data: Another dataset's name or path.
        root: Folder that holds the datasets.
        samples: Number of samples of the importance-weighted bound, which is higher than the ELBO; 1 is the ELBO.
    """
    require("--samples", samples, COUNT)
    config, _, train_config = read_config(run)
    images = load(data or config.name, root or config.root)
    vae = load_run(run, images)
    torch.manual_seed(train_config.seed)
    totals = torch.zeros(3, dtype=torch.float64)
    for batch in images.test.split(500):
        x = dequantise(batch, images.levels).to(_dtype(vae))
        result = evaluate_batch(vae, x, samples)
        totals += torch.stack([result.elbo, result.squared_error, result.kld]).double()
    elbo, error, kld = (totals / len(images.test)).tolist()
    bpd = bits_per_dimension(elbo, images)
    figures = f"MSE {error:.3f}   KLD {kld:.2f}   images {len(images.test)}"
    console.print(f"test BPD [bold]{bpd:.4f}[/bold]{bound(samples)}   {figures}", soft_wrap=True)


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
    config, _, _ = read_config(run)
    path = output or RunFolder(run).pictures
    require_output(path, ".safetensors")
    images = load(data or config.name, root or config.root)
    write_tensors_atomically(path, pictures(load_run(run, images), images))
    if output is None:
        say(f"report: {write_report(run)}")
    else:
        say(f"pictures: {path}")


def sample(run: Path, count: int = 64, seed: int = 0, output: Path | None = None) -> None:
    """Draws images from a finished run's prior and decoder, as a picture.

    Args:
        run: The run's folder.
        count: Number of images.
        seed: Seed of the draws.
        output: A .png file; samples.png in the run's folder if absent.
    """
    require("--count", count, Range(1, MOST_SAMPLES))
    require("--seed", seed, SEED)
    config, _, _ = read_config(run)
    path = output or RunFolder(run).figure("samples")
    require_output(path, ".png")
    vae = load_run(run, load(config.name, config.root))
    torch.manual_seed(seed)
    with torch.no_grad():
        images = vae.generate(count).mean
    samples({"samples": images}).savefig(path)
    say(f"samples: {path}")
