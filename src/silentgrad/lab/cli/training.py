"""What `silentgrad train` does."""

import sys
from dataclasses import asdict
from pathlib import Path

from silentgrad.lab.cli.console import beside_bound, bound, console, metrics, say
from silentgrad.lab.cli.interrupts import going_on
from silentgrad.lab.cli.options import next_folder, require_folder
from silentgrad.lab.data import kind_of
from silentgrad.lab.reports import write_report
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training import RunError, read_config, train_model
from silentgrad.lab.training.config import GROUPS, Settings
from silentgrad.lab.training.folder import first_process, is_finished


def train_and_report(settings: Settings, folder: Path | None, resume: bool, quiet: bool) -> None:
    """Trains a run, or goes on with one, and writes its report.

    Args:
        settings: All settings of the run.
        folder: The run's folder; a new one if absent.
        resume: Whether to go on with the run in the folder.
        quiet: Whether to leave out the progress bar.
    """
    if resume:
        if folder is None:
            raise RunError("--resume needs --folder: which run to go on with")
        settings = _resumed(folder, settings)
    if folder is None:
        folder = _new_folder(settings)
    require_folder(folder)
    finished = resume and is_finished(folder)
    settings = settings.resolved(kind_of(settings.data.name, settings.data.kind).likelihoods)
    settings.validate()  # before they are asked what they come to
    left = settings.model.weight_left
    if left > 0 and not finished and first_process():
        say(f"the guide's weight never reaches 0: {left:.2f} of it is left at the end (--model.guided above 1)")
    with going_on(folder):
        summary = train_model(*settings, folder, resume, quiet)
    if not first_process():
        return
    if finished:
        console.print(f"{folder} is finished: nothing was trained", soft_wrap=True, highlight=False)
    page = RunFolder(folder).report
    if not finished or not page.exists():
        write_report(folder)
    console.print(_figures(summary, settings.train.iwae_samples), soft_wrap=True)
    say(f"report: {page}")


def _new_folder(settings: Settings) -> Path:
    """A folder of the run's own, said to the processes that Lightning starts with the words of this one."""
    if not first_process():
        raise RunError("processes that are started one by one need --folder, so that all of them have the same")
    folder = next_folder(settings.data.name)
    if settings.train.devices > 1:
        sys.argv += ["--folder", str(folder)]
    return folder


def _resumed(folder: Path, given: Settings) -> Settings:
    """The settings that a run was started with; others than those may not be given."""
    before = read_config(folder)
    for group, standard in GROUPS.items():
        for name, value in asdict(getattr(given, group)).items():
            if value not in (getattr(standard(), name), getattr(getattr(before, group), name)):
                raise RunError(f"--resume goes on with the settings of {folder}: leave out --{group}.{name} {value}")
    return before


def _figures(summary: Summary, samples: int) -> str:
    parts = [_figure(summary, samples), metrics(summary.metrics), f"KLD {summary.kld:.2f}"]
    parts.append(f"active latents {summary.active}")
    if summary.closed_form is not None:
        parts.append(f"closed form {summary.closed_form}")
    parts.append(f"{summary.seconds:.0f} s")
    return "   ".join(parts)


def _figure(summary: Summary, samples: int) -> str:
    """The test figure in its unit, what it bounds, and the limit of linear decoders."""
    figure = f"test {summary.unit.title} [bold]{summary.figure:.4f}[/bold]{summary.unit.of}"
    figure += bound(samples)
    figure += beside_bound(summary.figure, summary.sampled)
    if summary.limit is not None:
        figure += f" (pPCA limit {summary.limit:.4f})"
    return figure
