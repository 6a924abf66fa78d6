"""`silentgrad latents`."""

import io
from functools import partial
from pathlib import Path

import numpy as np

from silentgrad.lab.cli.console import say
from silentgrad.lab.cli.options import require_output
from silentgrad.lab.data.obsm import put_obsm
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import copy_atomically, write_atomically
from silentgrad.lab.training import load_run, read_config
from silentgrad.lab.training.latents import latents_in_order
from silentgrad.lab.training.loading import observations_of
from silentgrad.lab.training.ranges import ConfigError

NAME = "X_silentgrad"


def latents(run: Path, output: Path | None = None, overwrite: bool = False) -> None:
    """Writes the means of the latents of all rows, those of training too, in the order of the data's file.

    Args:
        run: Folder of the finished run.
        output: A .npy file to write, or an .h5ad file: a copy of the data's own with the latents in
            obsm["X_silentgrad"]; latents.npy in the run's folder if absent.
        overwrite: Whether to replace the file of --output if it is there; it may be the data's own.
    """
    settings = read_config(run)
    path = output or RunFolder(run).latents
    source = Path(settings.data.name)
    if path.suffix == ".h5ad":
        require_output(path, ".h5ad")
        _require_h5ad(path, source)
    else:
        require_output(path, ".npy")
    if output is not None and output.exists() and not overwrite:
        raise ConfigError(f"--output {output} exists: choose another, or replace it by --overwrite true")
    observations = observations_of(settings)
    found = latents_in_order(load_run(run, observations), observations).float()
    if path.suffix == ".h5ad":
        copy_atomically(source, path, partial(put_obsm, name=NAME, values=found))
    else:
        content = io.BytesIO()
        np.save(content, found.numpy())
        write_atomically(path, content.getbuffer())
    say(f"latents: {path}, {found.shape[1]} of each of {len(found)} rows")


def _require_h5ad(path: Path, source: Path) -> None:
    if source.suffix != ".h5ad":
        raise ConfigError(f"--output {path} is for data of an .h5ad file, which {source} is not: give a .npy file")
