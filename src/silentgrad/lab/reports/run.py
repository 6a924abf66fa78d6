"""The page of one run."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from silentgrad.lab.kinds import OF_COUNTS
from silentgrad.lab.printing import duration, in_a_line, number, render, with_error
from silentgrad.lab.reports import curves, figures
from silentgrad.lab.reports.page import Block, CommandLine, Details, Listing, Page, Picture, Section, Tile, Tiles
from silentgrad.lab.settings import ConfigError
from silentgrad.lab.settings.documents import read_settings, train_command
from silentgrad.lab.store.files import write_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import TRAVERSED, Loading, Run, Summary, Weighted, content_of, read_summary
from silentgrad.lab.tables import Column, Content, Table

LAST_EPOCHS = 5
LATENTS_SHOWN = 32  # in the table of loadings
LOG_RATES = "the logarithm of the mean count"


def write_report(run: Run | Path, more: Sequence[Callable[[Run], Section]] = ()) -> Path:
    """Write a run's figures as PNG and its `report.html`, and return the page's path.

    Args:
        run: The run, or its folder.
        more: Functions that make sections of your own from the run; they follow the page's figures.
    """
    if isinstance(run, Path):
        run = Run.read(run)
    place = RunFolder(run.folder)
    sections = []
    for name, picture in _pictures(run).items():
        write_atomically(place.figure(name), picture.png)
        sections.append(Section(name.capitalize(), [picture]))
    if run.factors is not None and run.factors.loadings:
        of_counts = _config(run, "model").get("likelihood") in OF_COUNTS
        unit = LOG_RATES if of_counts else "standard deviations of the column"
        sections.append(Section("Loadings", [loadings_table(run.factors.loadings, unit)]))
    sections += [*[section(run) for section in more], Section("Epochs", _epochs(run))]
    settings = None
    with contextlib.suppress(ConfigError):  # this version may not know all of them
        settings = read_settings(place.config)
        sections.append(Section("The same run again", [CommandLine(train_command(settings))]))
    head: list[Block] = ["The run has left no summary: it has not finished."]
    if run.summary is not None:
        data = Path(settings.data.name).name if settings else ""
        opening = render("opening.txt.j2", run=run, summary=run.summary, config=settings and settings.model, data=data)
        head = [in_a_line(opening), Tiles(_tiles(run, run.summary) + _without_z(run))]
    listed = {"Final figures": content_of(run.summary) if run.summary else {}, "Configuration": run.config}
    listed["Environment"] = run.environment
    details = [Details(title, [Listing(values)]) for title, values in listed.items() if values]
    return Page(run.folder.resolve().name, head, [*sections, Section("", details)]).write(place.report)


def _pictures(run: Run) -> dict[str, Picture]:
    """Return the figures of the page by the names of their files."""
    found, model = {}, _config(run, "model")
    if run.pictures is not None:
        name, rows = "", "Originals on top and their reconstructed means below"
        if model.get("context") is not None:
            name, rows = "one draw given z", "Originals on top and one draw given z of each below: there is no mean"
        if run.pictures.stds is not None:
            rows += "; the last row is the learned standard deviation, scaled to [0, 1] over all images shown"
        found["reconstructions"] = Picture(figures.reconstructions({name: run.pictures}), f"{rows}.")
        told = "Images decoded from latents drawn from the prior."
        found["samples"] = Picture(figures.samples(run.pictures.samples), told, small=True)
        if run.pictures.traversals is not None and not model.get("without_z"):
            told = "Every row moves one latent from its lowest mean to its highest; the others have their average."
            found["traversals"] = Picture(figures.samples(run.pictures.traversals, TRAVERSED), told, small=True)
    if run.factors is not None and not model.get("without_z"):
        label = str(_config(run, "data").get("label") or "class")
        what = "what their latents' means add to all columns" if run.factors.loadings else "their latents' means"
        told = f"{len(run.factors.points):,} rows in the plane of the first two principal components of {what}"
        if run.factors.labels is not None:
            told += f", colored by {label}"
        found["latents"] = Picture(figures.scatter(run.factors, label), f"{told}.")
    limit = run.summary.limit if run.summary else None
    found["curves"] = Picture(curves.run_curves(run.metrics, run.unit, limit), curves.caption(run.unit, limit))
    return found


def _config(run: Run, group: str) -> dict[str, object]:
    found = run.config.get(group)
    return found if isinstance(found, dict) else {}


def loadings_table(loadings: Sequence[Loading], unit: str) -> Table:
    """Return the latents that move the rows most, each with the columns that weigh most."""
    columns = [Column("latent"), Column("spread")]
    columns += [Column(f"columns that {move}", wrapped=True) for move in ("rise", "fall")]
    shown = loadings[:LATENTS_SHOWN]
    rows: list[list[Content]] = [[own.latent, own.spread, _listed(own.up), _listed(own.down)] for own in shown]
    told = (
        f"What a latent adds to each column per unit, in {unit}; the latents that move the rows most come first. "
        f"All weights are in {RunFolder(Path()).loadings}."
    )
    return Table("Loadings", columns, rows, notes=[told])


def _listed(weighted: Sequence[Weighted]) -> str:
    return ", ".join(f"{name}\N{NO-BREAK SPACE}{weight:+.2f}" for name, weight in weighted)


def _tiles(run: Run, summary: Summary) -> list[Tile]:
    unit = summary.unit
    tiles = [Tile(f"test {unit.title}", summary.figure, unit.words)]
    if summary.sampled is not None and not _config(run, "model").get("without_z"):  # where the bound has no gap
        difference = f"gap of the bound {with_error(summary.figure - summary.sampled, summary.sampled_error)}"
        if summary.importance_weighted:
            difference = f"gain of the importance-weighted bound {number(summary.sampled - summary.figure)}"
        tiles.append(Tile("by the sampled ELBO", summary.sampled, f"{unit.words}; {difference}"))
    if summary.baseline is not None and summary.baseline.figure not in summary.baselines.values():
        tiles.append(Tile("the same likelihood, no latents", summary.baseline.figure, unit.words))
    tiles += [Tile(f"{name}, no latents", figure, unit.words) for name, figure in summary.baselines.items()]
    if summary.limit is not None:
        tiles.append(Tile("pPCA limit", summary.limit, unit.words))
    metrics = {**summary.metrics, "kld": summary.kld}
    tiles += [Tile(unit.title_of(name), value, unit.counted(name)) for name, value in metrics.items()]
    bound = "importance-weighted" if summary.importance_weighted else summary.exactness
    tiles += [Tile("active latents", summary.active), Tile("kind of ELBO", bound)]
    if summary.other_closed_form is not None:
        tiles.append(Tile("closed form in training", summary.other_closed_form))
    return [*tiles, Tile("time", duration(summary.seconds)), Tile("epochs", summary.epochs)]


def _without_z(run: Run) -> list[Tile]:
    """Return what the same model without latents comes to, or that it was not trained."""
    model = _config(run, "model")
    if model.get("without_z") or run.summary is None:
        return []
    path = RunFolder(RunFolder(run.folder).without_z).summary
    if not path.exists():
        return [Tile("the same without z", "not trained", "--compare without-z trains it")]
    found = read_summary(path)
    told = f"{run.unit.words}; {found.chosen}; latents worth {number(found.elbo - run.summary.elbo)}"
    return [Tile("the same without z", found.elbo, told)]


def _epochs(run: Run) -> list[Block]:
    """Return the metrics of the last epochs, and of all of them to unfold."""
    kept = {name: cells for name, cells in run.metrics.items() if any(cell is not None for cell in cells)}
    columns = [Column(name, unit=run.unit.counted_in(name)) for name in kept]
    rows = list(zip(*kept.values(), strict=True))
    if not rows:
        return ["No epoch has been recorded."]
    last = Table("Metrics of the last epochs", columns, rows[-LAST_EPOCHS:])
    if len(rows) <= LAST_EPOCHS:
        return [last]
    return [last, Details(f"All {len(rows)} epochs", [Table("Metrics by epoch", list(map(Column, kept)), rows)])]
