"""The work of `silentgrad train`."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from silentgrad.lab.build import plan_for
from silentgrad.lab.cli.console import console, told
from silentgrad.lab.cli.main import going_on
from silentgrad.lab.cli.options import next_folder, require_folder
from silentgrad.lab.reports import write_report
from silentgrad.lab.settings import GROUPS, Settings
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import Summary
from silentgrad.lab.training import RunError, read_config
from silentgrad.lab.training.fabric import first_process
from silentgrad.lab.training.run import train_plan


def train_and_report(
    settings: Settings, folder: Path | None, resume: bool, quiet: bool, compare: bool = False
) -> Summary:
    """Trains a run, in a new folder if none is given, or goes on with the run in the folder; writes its report.

    To compare it, the same model without z is trained as long.
    """
    if resume:
        if folder is None:
            raise RunError("--resume needs --folder: which run to go on with")
        settings = _resumed(folder, settings)
    if folder is None:
        folder = _new_folder(settings)
    require_folder(folder)
    finished = resume and RunFolder(folder).summary.exists()
    plan = plan_for(settings)
    left = plan.weight_left
    if left > 0 and not finished and first_process():
        print(f"the guide's weight never reaches 0: {left:.2f} of it is left at the end (--model.guided above 1)")
    with going_on(folder):
        summary = train_plan(plan, folder, resume, quiet, finished=write_report)
    if not first_process():
        return summary
    other = RunFolder(RunFolder(folder).without_z)
    if compare:
        again = resume and other.config.exists()
        blind = train_plan(plan_for(_without_z(settings)), other.path, again, quiet, finished=write_report)
        write_report(folder)
        print(f"the same without z: {blind.unit.tell(blind.elbo)}; z is worth {blind.elbo - summary.elbo:.4f}")
    elif not plan.model.without_z and not other.summary.exists():
        print("the same model without z was not trained: --compare without-z says what the latents are worth")
    if finished:
        console.print(f"{folder} is finished: nothing was trained", soft_wrap=True, highlight=False)
    page = RunFolder(folder).report
    if finished and not page.exists():
        write_report(folder)
    console.print("   ".join(_figures(summary, plan.train.iwae_samples)), soft_wrap=True)
    print(f"report: {page}")
    return summary


def _without_z(settings: Settings) -> Settings:
    return settings._replace(model=replace(settings.model, without_z=True))


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


def _figures(summary: Summary, samples: int) -> Iterator[str]:
    yield from told(summary, samples, summary.limit)
    if summary.other_closed_form is not None:
        yield f"trained with a closed form, {summary.other_closed_form}"
    yield f"{summary.seconds:.0f} s"
