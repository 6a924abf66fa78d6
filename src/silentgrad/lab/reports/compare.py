"""Several runs on one page: the settings in which they differ, where they ended, and how fast they got there.

Only runs of the same data are beside each other, since figures of different data say nothing about the runs.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from silentgrad.lab.kinds import Unit
from silentgrad.lab.printing import duration, finite, number
from silentgrad.lab.reports.curves import caption, comparison_curves
from silentgrad.lab.reports.page import Block, Page, Picture, Section
from silentgrad.lab.store.files import RecordError
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import Run, Summary
from silentgrad.lab.tables import Column, Content, Table

Flat = dict[str, str]  # setting -> value, groups joined by a point


def write_comparison(folders: Sequence[Path], page: Path, told: str = "") -> dict[str, Table]:
    """Write a page that compares runs, and return its tables by the data of the runs.

    One run is enough if it is told why the runs were made and what came of it, which then stands above all else.
    """
    if len(folders) < 2 and not told:
        raise RecordError("there is nothing to compare: give the folders of two runs or more")
    groups = by_data(dict(zip(run_names(folders), map(Run.read, folders), strict=True)))
    compared = {data: comparison(runs) for data, runs in groups.items()}
    several = [f"Of {len(groups)} data sets: {', '.join(groups)}."] * (len(groups) > 1)
    sections = []
    for data, runs in groups.items():
        sections.append(Section(data if several else "", _results(runs, compared[data])))
        sections.append(curve_section(runs, f"Curves, {data}" if several else "Curves"))
    page.parent.mkdir(parents=True, exist_ok=True)
    Page(f"{len(folders)} runs", [*filter(None, [told]), *several], sections).write(page)
    return compared


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return the folders' own names, or as much of their paths as tells them apart."""
    paths = [folder.resolve() for folder in folders]
    for depth in range(1, 1 + max(len(path.parts) for path in paths)):
        names = [str(Path(*path.parts[-depth:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise RecordError("the same run was given twice")


def by_data(runs: Mapping[str, Run]) -> dict[str, dict[str, Run]]:
    """Return the runs by the name of their data, in the order in which they were given."""
    groups: dict[str, dict[str, Run]] = {}
    for name, run in runs.items():
        match run.config:
            case {"data": {"name": str(data)}}:
                groups.setdefault(data, {})[name] = run
            case _:
                config = RunFolder(run.folder).config.name
                raise RecordError(f"{run.folder} cannot be compared: its {config} names no data")
    return groups


def common_unit(runs: Mapping[str, Run]) -> Unit:
    """Return the unit of all runs, or raise RecordError if two are told in different ones."""
    first, *others = runs
    common = runs[first].unit
    for name in others:
        unit = runs[name].unit
        if unit.metric != common.metric or (unit.of != common.of and unit.of and common.of):
            raise RecordError(
                f"runs in different units cannot be compared: {first} is told in {common.in_print}, {name} in "
                f"{unit.in_print}; compare those of one unit at a time"
            )
        if unit.of and not common.of:
            first, common = name, unit
    return common


def comparison(runs: Mapping[str, Run]) -> Table:
    """Return the final figures of runs, and the settings in which they differ."""
    unit = common_unit(runs)
    test, limit = f"test {unit.title}" + (f",{unit.of}" if unit.of else ""), f"limit {unit.title}"
    finished = {name: run.summary for name, run in runs.items() if run.summary is not None}
    figures: dict[str, dict[str, Content]] = {name: {} for name in runs}  # by the heads of their columns
    for name, summary in finished.items():
        figures[name] = {test: summary.figure, limit: summary.limit}
        figures[name] |= {unit.title_of(metric): value for metric, value in summary.metrics.items()}
        figures[name] |= {"KLD": summary.kld, "active": summary.active}
    heads = dict.fromkeys(head for own in figures.values() for head, value in own.items() if value is not None)
    settings = differences({name: run.config for name, run in runs.items()})
    rows: list[list[Content]] = []
    for name, run in runs.items():
        rows.append([name, *map(figures[name].get, heads), *_spent(run), *settings[name].values()])
    columns = [Column(head, unit=unit.counted_in(head)) for head in ("run", *heads, "epochs", "time")]
    columns += map(Column, next(iter(settings.values())))
    best = [list(runs).index(min(finished, key=lambda name: finished[name].figure))] if finished else []
    return Table("The runs, their settings and figures", columns, rows, best, notes=_beside(finished))


def _beside(summaries: Mapping[str, Summary]) -> list[str]:
    """Return what has to be beaten, and the runs that are no better than a model without latents."""
    notes = []
    first, *others = [summary.baselines for summary in summaries.values()] or [{}]
    if first and all(own == first for own in others):
        told = ", ".join(f"{name} {number(figure)}" for name, figure in sorted(first.items(), key=itemgetter(1)))
        notes.append(f"Without latents: {told}.")
    failed = [name for name, summary in summaries.items() if summary.failed]
    if failed:
        notes.append(f"Failed, no better than a model without latents of the same likelihood: {', '.join(failed)}.")
    return notes


def _spent(run: Run) -> tuple[Content, str]:
    """Return epochs and time, by the summary or, of a run under way, by its last epoch."""
    if run.summary is not None:
        return run.summary.epochs, duration(run.summary.seconds)
    seconds = finite((run.metrics.get("seconds") or [None])[-1])
    return len(run.metrics["epoch"]), "" if seconds is None else duration(seconds)


def differences(configs: Mapping[str, dict[str, Any]]) -> dict[str, Flat]:
    """Return run -> setting -> value, for the settings that are not the same in all runs; '' where a run has none."""
    flat = {run: _flattened(config) for run, config in configs.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    differing = [key for key in keys if len({settings.get(key, "") for settings in flat.values()}) > 1]
    last = [key.rpartition(".")[2] for key in differing]
    names = {key: name if last.count(name) == 1 else key for key, name in zip(differing, last, strict=True)}
    return {run: {name: settings.get(key, "") for key, name in names.items()} for run, settings in flat.items()}


def _flattened(config: Mapping[str, Any], prefix: str = "") -> Flat:
    flat: Flat = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _results(runs: Mapping[str, Run], table: Table) -> list[Block]:
    """Return what the figures are, which way is better, which run is best, and the table."""
    unit = common_unit(runs)
    told = f"Figures of the test in {unit.words or unit.title}; lower is better."
    for place in table.best:
        name, figure, *_ = table.rows[place]
        told += f" The best is {name} with {number(figure)}."
    return [told, table]


def curve_section(runs: Mapping[str, Run], title: str) -> Section:
    """Return the curves of runs under a title."""
    unit = common_unit(runs)
    limits = {run.summary.limit for run in runs.values() if run.summary is not None} - {None}
    limit = limits.pop() if len(limits) == 1 else None  # the pPCA limit, if it is the same for all that have one
    return Section(title, [Picture(comparison_curves(runs, unit, limit), caption(unit, limit))])
