"""`silentgrad demo`: three runs on the embedded digits, for as many epochs, and what each has to beat.

A nonlinear network, and the silent circuit with and without its latents. The circuit has the settings of MNIST's
recipe, with the same encoder as the network; nothing was tuned on the digits.
"""

from dataclasses import replace
from pathlib import Path

from silentgrad.lab.cli.shared import next_folder, require_folder, show_table
from silentgrad.lab.experiments.recipes import read_recipe
from silentgrad.lab.settings import ConfigError, DataConfig, ModelConfig, Seed, Settings, TrainConfig
from silentgrad.lab.tables import Column, Content, Table

EPOCHS = 60
COLUMNS = [Column("run"), Column("what it is"), Column("test BPD", 4), Column("sampled ELBO", 4), Column("seconds", 1)]


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

    folder = folder or next_folder("demo")
    require_folder(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--folder {folder} is not empty: choose another")
    runs = demo_runs(seed)
    rows: list[list[Content]] = []
    for number, (name, (what, settings)) in enumerate(runs.items(), start=1):
        print(f"{number} of {len(runs)}: {what}")
        summary = train_and_report(settings, folder / name, resume=False, quiet=False)
        if not rows:  # first, models that need no training
            rows += [["", f"no latents: {simple}", figure, None, None] for simple, figure in summary.baselines.items()]
        rows.append([str(folder / name), what, summary.figure, summary.elbo, summary.seconds])
    show_table(Table(f"embedded 8x8 digits, {EPOCHS} epochs, seed {seed}", COLUMNS, rows))
    print("one seed is no verdict; a run that the histogram beats is no good density")
    page = folder / "compare.html"
    write_comparison([folder / name for name in runs], page)
    print(f"page: {page}")


def demo_runs(seed: int) -> dict[str, tuple[str, Settings]]:
    """Return the network, the circuit without latents, and the silent circuit: what each is, and its settings."""
    digits, train = DataConfig(), TrainConfig(epochs=EPOCHS, seed=seed)
    _, circuit, circuit_train = read_recipe("mnist-circuit-cpu")
    circuit_train = replace(circuit_train, epochs=EPOCHS, seed=seed)
    without = replace(circuit, without_z=True)
    return {
        "network": ("network, by samples", Settings(digits, ModelConfig(tractable="none"), train)),
        "without": ("the circuit without latents", Settings(digits, without, circuit_train)),
        "circuit": ("silent circuit, no samples", Settings(digits, circuit, circuit_train)),
    }
