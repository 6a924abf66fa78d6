"""`silentgrad demo`: three runs on the embedded digits, for as many epochs, and what each has to beat.

A nonlinear network, and the silent circuit with and without its latents. The circuit has the settings of MNIST's
recipe, with the same encoder as the network; nothing was tuned on the digits.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from silentgrad.lab.cli.shared import next_folder, require_folder, show_table
from silentgrad.lab.experiments.recipes import read_recipe
from silentgrad.lab.settings import ConfigError, DataConfig, ModelConfig, Seed, Settings, TrainConfig
from silentgrad.lab.store.folders import DemoFolder
from silentgrad.lab.store.records import Summary
from silentgrad.lab.tables import Column, Content, Table

EPOCHS = 60
NO_LATENTS = 1e3
CIRCUIT_RECIPE = "mnist-circuit-cpu"
COLUMNS = [Column("run"), Column("what it is"), Column("test BPD", 4), Column("sampled ELBO", 4), Column("seconds", 1)]


class DemoRun(NamedTuple):
    """One of the runs: its folder's name, and what it is in words."""

    name: str
    what: str
    settings: Settings


def demo(seed: Seed = 0, folder: Path | None = None) -> None:
    """Train a network, and the silent circuit with and without latents, and show them beside a histogram.

    All see the embedded 8x8 digits for 60 epochs; about a minute of processor time.

    Args:
        seed: Seed of all three runs.
        folder: Folder of the runs and of the page that compares them, which is made; runs/demo-NUMBER if absent.
    """
    # Here, so that --help does not wait for Lightning and matplotlib.
    from silentgrad.lab.cli.training import train_and_report
    from silentgrad.lab.reports.compare import write_comparison

    place = DemoFolder(folder or next_folder("demo"))
    require_folder(place.path)
    if place.path.exists() and any(place.path.iterdir()):
        raise ConfigError(f"--folder {place.path} is not empty: choose another")
    runs = demo_runs(seed)
    summaries = []
    for number, run in enumerate(runs, start=1):
        print(f"{number} of {len(runs)}: {run.what}")
        summaries.append(train_and_report(run.settings, place.run(run.name), resume=False, quiet=False))
    _show(runs, summaries, place)
    write_comparison([place.run(run.name) for run in runs], place.page)
    print(f"page: {place.page}")


def demo_runs(seed: int) -> list[DemoRun]:
    """Return the network, the circuit without latents, and the silent circuit."""
    digits, train = DataConfig(), TrainConfig(epochs=EPOCHS, seed=seed)
    _, circuit, circuit_train = read_recipe(CIRCUIT_RECIPE)
    circuit_train = replace(circuit_train, epochs=EPOCHS, seed=seed)
    # A weight without bound on the KL divergence leaves q at the prior: the circuit learns without z.
    without = replace(circuit, kl_weight=NO_LATENTS)
    return [
        DemoRun("network", "network, by samples", Settings(digits, ModelConfig(tractable="none"), train)),
        DemoRun("without", "the circuit without latents", Settings(digits, without, circuit_train)),
        DemoRun("circuit", "silent circuit, no samples", Settings(digits, circuit, circuit_train)),
    ]


def _show(runs: list[DemoRun], summaries: list[Summary], place: DemoFolder) -> None:
    """Print the runs one below the other, after the models that need no training."""
    rows: list[list[Content]] = []
    for name, figure in summaries[0].baselines.items():
        rows.append(["", f"no latents: {name}", figure, None, None])
    for run, summary in zip(runs, summaries, strict=True):
        rows.append([str(place.run(run.name)), run.what, summary.figure, summary.elbo, summary.seconds])
    train = runs[0].settings.train
    show_table(Table(f"embedded 8x8 digits, {train.epochs} epochs, seed {train.seed}", COLUMNS, rows))
    print("one seed is no verdict; a run that the histogram beats is no good density")
