"""What `silentgrad demo` does."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from silentgrad.lab.cli.console import console, say, verbatim
from silentgrad.lab.cli.options import next_folder, require_folder
from silentgrad.lab.cli.training import train_and_report
from silentgrad.lab.experiments.demo import DemoRun, demo_runs
from silentgrad.lab.reports.compare import write_comparison
from silentgrad.lab.runs.folder import DemoFolder, RunFolder
from silentgrad.lab.runs.records import read_summary
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training.ranges import SEED, ConfigError, require


def demonstrate(seed: int, folder: Path | None) -> None:
    """Trains the three runs, prints their figures in one table, and writes the page that compares them.

    Args:
        seed: Seed of all three runs.
        folder: Folder of the runs and the page; a new one if absent.
    """
    require("--seed", seed, SEED)
    place = DemoFolder(folder or next_folder("demo"))
    _require_new(place.path)
    _train_and_compare(demo_runs(seed), place)


def _require_new(folder: Path) -> None:
    """Refuses a folder with anything in it, before the first run is trained rather than after."""
    require_folder(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--folder {folder} is not empty: choose another")


def _train_and_compare(runs: Sequence[DemoRun], place: DemoFolder) -> None:
    folders = {run.name: place.run(run.name) for run in runs}
    for number, run in enumerate(runs, start=1):
        say(f"{number} of {len(runs)}: {run.what}")
        train_and_report(run.settings, folders[run.name], resume=False, quiet=False)
    summaries = {}
    for name, path in folders.items():
        summaries[name] = read_summary(RunFolder(path).summary)
    console.print(_table(runs, folders, summaries))
    say(_best(runs, summaries))
    write_comparison(list(folders.values()), place.page)
    say(f"page: {place.page}")


def _table(runs: Sequence[DemoRun], folders: Mapping[str, Path], summaries: Mapping[str, Summary]) -> Table:
    """The runs one below the other: the folder of each, what it is, its test figures and its time."""
    train = runs[0].settings.train
    title = f"embedded 8x8 digits, {train.epochs} epochs, seed {train.seed}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    table.add_column("what it is")
    # Two lines, so that a terminal of 80 columns has room for a run on one.
    for head in ("test\nBPD", "sampled\nELBO", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    for run in runs:
        summary = summaries[run.name]
        figures = (f"{summary.figure:.4f}", f"{summary.elbo:.4f}", f"{summary.seconds:.1f}")
        table.add_row(verbatim(folders[run.name]), run.what, *figures)
    return table


def _best(runs: Sequence[DemoRun], summaries: Mapping[str, Summary]) -> str:
    """Which run has the lowest test figure, and how little that says."""
    best = min(runs, key=lambda run: summaries[run.name].figure)
    return f"best by test BPD on this one seed, which is no verdict: {best.what}"
