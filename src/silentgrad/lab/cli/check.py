"""The command `check`: a check-up of a finished run."""

from pathlib import Path

from silentgrad.checkup import check_up
from silentgrad.lab.cli.console import console
from silentgrad.lab.cli.options import require_output
from silentgrad.lab.data import Levels
from silentgrad.lab.runs.evaluation import seen
from silentgrad.lab.settings import Range, require
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training import load_run, read_config
from silentgrad.lab.training.loading import observations_of

MOST = 10_000  # training examples that baselines are fitted to


def check(run: Path, root: Path | None = None, examples: int = 500, output: Path | None = None) -> None:
    """Says what is wrong with a finished run, each with a number, and what would help; writes a page with figures.

    Args:
        run: Folder of the finished run.
        root: Folder that holds the datasets; that of the run if absent.
        examples: Number of test examples that it is judged on.
        output: A .html file to write; check_up.html in the run's folder if absent.
    """
    require("--examples", examples, Range(16))
    settings = read_config(run)
    path = output or RunFolder(run).check_up
    require_output(path, ".html")
    observations = observations_of(settings, root=root)
    model = load_run(run, observations)
    like = next(model.parameters())
    train, _ = seen(observations, observations.rows("train").between(0, MOST), like)
    test, _ = seen(observations, observations.rows("test").between(0, examples), like, seed=1)
    levels = observations.levels if isinstance(observations, Levels) else None
    found = check_up(model, train, test=test, levels=levels, estimator=model.estimator, examples=examples)
    console.print(str(found), markup=False, highlight=False)
    console.print(f"page: {found.to_html(path)}", soft_wrap=True)
