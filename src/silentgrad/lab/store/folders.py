"""Folders of runs, exports and sweeps: the names of their files, which no other module knows."""

from dataclasses import dataclass
from pathlib import Path

REMEDIES = {
    "config.yaml": "put it back from a copy",
    "metrics.csv": "put it back from a copy, or go on with --resume true, which restores it from the last checkpoint",
    "summary.json": "remove it and go on with --resume true, which measures the run again",
    "environment.json": "remove it: it only tells what the run was made on",
    "pictures.safetensors": "remove it, or make it again by silentgrad reconstruct",
    "factors.json": "remove it: the page is then without the latents",
}


class File:
    """A file or folder of a fixed name: `folder.name` is its path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "Folder", kind: type | None = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class Folder:
    """A folder whose files have names that are known."""

    path: Path


class RunFolder(Folder):
    """The folder of a run.

    Example:
        >>> run = RunFolder(Path("runs/digits-001"))
        >>> run.config.as_posix(), run.kept(20).as_posix()
        ('runs/digits-001/config.yaml', 'runs/digits-001/epochs/20.safetensors')
    """

    environment = File("environment.json")  # versions and the machine, which a run leaves first
    config = File("config.yaml")  # the settings, which make a folder a run
    metrics = File("metrics.csv")  # a row of figures for each epoch
    checkpoint = File("last.ckpt")  # what training goes on from, with the weights of the best epoch
    weights = File("model.safetensors")  # the model at the best epoch
    pictures = File("pictures.safetensors")  # originals, reconstructions, samples and traversals, as numbers
    factors = File("factors.json")  # the latents of a table, for its page
    loadings = File("loadings.csv")  # the weight of every latent for every column of a table
    summary = File("summary.json")  # the final figures, which a run leaves last
    clock = File("clock.json")  # the processor time that a run of an experiment took so far
    failure = File("failure.json")  # why a run of an experiment ended without a summary
    end = File("end")  # a file by which whoever watches a trial ends it after its epoch
    report = File("report.html")  # the page about the run
    latents = File("latents.npy")  # the means of the latents of all rows, written on request
    variance = File("variance.csv")  # the gradient's variance, measured after training
    check_up = File("check_up.html")  # what a check-up said of the model
    bias = File("bias.csv")  # how far gradients are from the true one
    epochs = File("epochs")  # the folder of what was kept of chosen epochs
    export = File("export")  # the folder of an exported model

    @property
    def without_z(self) -> Path:
        """The folder of the run of the same model without latents, trained as long."""
        return self.path.with_name(f"{self.path.name}-without-z")

    def kept(self, epoch: int) -> Path:
        return self.epochs / f"{epoch}.safetensors"

    def kept_variance(self, epoch: int, scale: str) -> Path:
        """Return the gradient's variance at a chosen epoch, measured on one of an experiment's scales."""
        return self.epochs / f"{epoch}-variance-{scale}.json"

    def figure(self, name: str) -> Path:
        return self.path / f"{name}.png"


class ExportFolder(Folder):
    """The folder of an exported model."""

    weights = File("model.safetensors")  # with the settings and figures of their run
    columns = File("columns.json")  # names of a table's columns and, where it was standardized, means and deviations
    card = File("README.md")  # the model card

    def network(self, name: str) -> Path:
        return self.path / f"{name}.onnx"


class SweepFolder(Folder):
    """The folder of a sweep."""

    trials = File("trials.csv")  # the table of all trials
    best = File("best.yaml")  # the recipe of the best trial
    page = File("sweep.html")  # the page about the sweep
    study = File("study.db")  # the database of a sweep that shares it with no other machine

    def trial(self, number: int) -> Path:
        """Return the run of a trial, with which later trials of the same point go on."""
        return self.path / f"trial-{number:04}"

    def has_trials(self) -> bool:
        return any(self.path.glob("trial-*"))
