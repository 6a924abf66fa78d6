"""Commands for finished runs: `evaluate`, `reconstruct`, `sample`, `latents`, `compare`, `export` and `check`."""

import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from silentgrad.checkup import check_up
from silentgrad.lab.cli.shared import console, require_folder, require_output, show_table, told
from silentgrad.lab.data import Levels
from silentgrad.lab.data.h5ad import put_obsm
from silentgrad.lab.reports import write_report
from silentgrad.lab.reports.compare import write_comparison
from silentgrad.lab.reports.figures import samples
from silentgrad.lab.runs.evaluation import evaluate_model, seen
from silentgrad.lab.settings import ConfigError, Count, Range, Seed
from silentgrad.lab.store.files import copy_atomically, write_atomically, write_rows_atomically
from silentgrad.lab.store.folders import ExportFolder, RunFolder
from silentgrad.lab.store.records import write_pictures
from silentgrad.lab.training import RunError, load_run, read_config
from silentgrad.lab.training.export import export_run
from silentgrad.lab.training.finishing import generated, latents_in_order, names_in_order, pictures, rows_of
from silentgrad.lab.training.loading import observations_of

MOST_SAMPLES = 10_000  # images on one picture
MOST_FITTED = 10_000  # training examples that a check-up's baselines are fitted to
OBSM = "X_silentgrad"  # where an .h5ad file has the latents


def evaluate(run: Path, data: str | None = None, root: Path | None = None, samples: Count = 1) -> None:
    """Measure a finished run on the test split of its own dataset, or on another dataset's of the same shape.

    Args:
        run: Folder of the finished run.
        data: Name or path of another dataset of the same shape; the run's own data if absent.
        root: Folder that holds the datasets; that of the run if absent.
        samples: Number of samples of the importance-weighted bound, which is higher than the ELBO; 1 is the ELBO.
    """
    observations = observations_of(read_config(run), data, root)
    found = evaluate_model(load_run(run, observations), observations, "test", samples)
    console.print("   ".join([*told(found, samples), f"examples {found.examples}"]), soft_wrap=True)


def reconstruct(run: Path, data: str | None = None, root: Path | None = None, output: Path | None = None) -> None:
    """Reconstruct test images and draw samples with a finished run; write the pictures and renew its report.

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
        print(f"report: {write_report(run)}")
    else:
        print(f"pictures: {path}")


def sample(
    run: Path,
    count: Annotated[int, Range(1, MOST_SAMPLES)] = 64,
    mean: bool = False,
    seed: Seed = 0,
    output: Path | None = None,
) -> None:
    """Draw images from a finished run's prior and decoder, as a picture.

    Args:
        run: Folder of the finished run.
        count: Number of images to draw.
        mean: Whether to show the means of p(x|z), where a circuit's images are drawn from it.
        seed: Seed of the draws.
        output: A .png file to write the picture to; samples.png in the run's folder if absent.
    """
    settings = read_config(run)
    path = output or RunFolder(run).figure("samples")
    require_output(path, ".png")
    observations = observations_of(settings)
    if not observations.pictured:
        raise RunError(f"{observations.name} holds no images: there is nothing to make a picture of")
    vae = load_run(run, observations)
    torch.manual_seed(seed)
    with torch.no_grad():
        samples(observations.brightness * generated(vae, count, mean)).savefig(path)
    print(f"samples: {path}")


def latents(run: Path, output: Path | None = None, overwrite: bool = False) -> None:
    """Write the means of the latents of all rows, those of training too, in the order of the data's file.

    Args:
        run: Folder of the finished run.
        output: A .npy file to write; a .csv file, with the rows' names; or an .h5ad file: a copy of the data's own with
            the latents in obsm["X_silentgrad"]. latents.npy in the run's folder if absent.
        overwrite: Whether to replace the file of --output if it is there; it may be the data's own.
    """
    settings = read_config(run)
    path = output or RunFolder(run).latents
    source = Path(settings.data.name)
    require_output(path, path.suffix if path.suffix in (".h5ad", ".csv") else ".npy")
    if path.suffix == ".h5ad" and source.suffix != ".h5ad":
        raise ConfigError(f"--output {path} is for data of an .h5ad file, not for {source}: give a .npy or .csv file")
    if output is not None and output.exists() and not overwrite:
        raise ConfigError(f"--output {output} exists: choose another, or replace it by --overwrite true")
    observations = observations_of(settings)
    found = latents_in_order(load_run(run, observations), observations).float()
    if path.suffix == ".h5ad":
        copy_atomically(source, path, partial(put_obsm, name=OBSM, values=found))
    elif path.suffix == ".csv":
        write_rows_atomically(path, rows_of(found, "row", names_in_order(observations, len(found))))
    else:
        content = io.BytesIO()
        np.save(content, found.numpy())
        write_atomically(path, content.getbuffer())
    print(f"latents: {path}, {found.shape[1]} of each of {len(found)} rows")


def compare(*runs: Path, output: Path = Path("compare.html")) -> None:
    """Compare runs: a table of what differs and where they ended, and a page that shows their curves too.

    Runs of different data have tables of their own.

    Args:
        *runs: Folders of the runs, one after the other.
        output: An .html file to write the page to.
    """
    require_output(output, ".html", folder_is_made=True)
    compared = write_comparison(runs, output)
    for data, table in compared.items():
        if len(compared) > 1:
            print(f"{data}:")
        show_table(table)
    print(f"page: {output}")


def export(run: Path, folder: Path | None = None) -> None:
    """Export a finished run: weights (safetensors), encoder and decoder (ONNX), each checked, and a model card.

    Args:
        run: Folder of the finished run.
        folder: Folder to write the files to; the folder export in the run's own if absent.
    """
    output = folder or RunFolder(run).export
    require_folder(output)
    differences = export_run(run, output)
    for name, difference in differences.items():
        print(f"{name}: ONNX Runtime differs from torch by at most {difference:.1e} of the largest value")
    files = ExportFolder(output)
    written = [files.weights, *map(files.network, differences), files.columns, files.card]
    print(f"files: {output}/{', '.join(path.name for path in written if path.exists())}")


def check(
    run: Path, root: Path | None = None, examples: Annotated[int, Range(16)] = 500, output: Path | None = None
) -> None:
    """Say what is wrong with a finished run, each with a number, and what would help; write a page with figures.

    Args:
        run: Folder of the finished run.
        root: Folder that holds the datasets; that of the run if absent.
        examples: Number of test examples that it is judged on.
        output: A .html file to write; check_up.html in the run's folder if absent.
    """
    settings = read_config(run)
    path = output or RunFolder(run).check_up
    require_output(path, ".html")
    observations = observations_of(settings, root=root)
    model = load_run(run, observations)
    like = next(model.parameters())
    train, _ = seen(observations, observations.rows("train").between(0, MOST_FITTED), like)
    test, _ = seen(observations, observations.rows("test").between(0, examples), like, seed=1)
    levels = observations.levels if isinstance(observations, Levels) else None
    estimator = model.estimator or model.tractable_estimator
    beside, without_z = {}, RunFolder(run).without_z
    if levels is not None and RunFolder(without_z).summary.exists():
        rows, blind = observations.rows("test").between(0, examples), load_run(without_z, observations)
        beside["the same without z"] = evaluate_model(blind, observations, draws=1, rows=rows).figure
    found = check_up(model, train, test=test, levels=levels, estimator=estimator, beside=beside, examples=examples)
    found = replace(found, model=run.resolve().name)
    console.print(str(found), markup=False, highlight=False)
    console.print(f"page: {found.to_html(path)}", soft_wrap=True)
