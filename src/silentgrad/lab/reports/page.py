"""The page of one run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from silentgrad.lab.kinds import OF_COUNTS
from silentgrad.lab.reports import figures, html
from silentgrad.lab.reports.factors import loadings_section, scatter
from silentgrad.lab.reports.sentences import opening
from silentgrad.lab.reports.units import counted, legend, unit_of
from silentgrad.lab.runs.factors import Factors
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.pictures import RunPictures
from silentgrad.lab.runs.records import Run, write_atomically
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training.commands import train_command
from silentgrad.lab.training.config import Settings
from silentgrad.lab.training.documents import read_settings
from silentgrad.lab.training.ranges import ConfigError

LAST_EPOCHS = 5
Section = Callable[[Run], str]  # a part of a run's page in HTML, as `html.section` makes it


class Plate(NamedTuple):
    """A figure as the page shows it.

    Args:
        name: Name of the PNG file, and the heading.
        figure: The figure.
        caption: What the figure shows, in sentences.
        narrow: The figure for the screen of a telephone, if it is another.
    """

    name: str
    figure: Figure
    caption: str
    narrow: Figure | None = None


def write_report(folder: Path, more: Sequence[Section] = ()) -> Path:
    """Writes a run's figures as PNG and its `report.html`, and returns the page's path.

    Args:
        folder: The run's folder.
        more: Sections of your own, which follow the page's figures.

    Raises:
        RecordError: The folder is no run, or one of its files is damaged.
    """
    run = Run.read(folder)
    sections = []
    for plate in _plates(run):
        png = html.png(plate.figure)
        write_atomically(RunFolder(folder).figure(plate.name), png)
        sections.append(_section(plate, png))
    if run.factors is not None and run.factors.loadings:
        file = RunFolder(folder).loadings.name
        sections.append(loadings_section(run.factors.loadings, _unit_of_weights(run), file))
    for section in more:
        sections.append(section(run))
    page = RunFolder(folder).report
    write_atomically(page, _page(run, sections).encode())
    return page


def _plates(run: Run) -> list[Plate]:
    plates = []
    if run.pictures is not None:
        plates.append(_reconstructions(run.pictures))
        caption = "Images decoded from latents drawn from the prior."
        plates.append(Plate("samples", figures.samples(run.pictures.samples), caption))
    if run.factors is not None:
        plates.append(_latents(run, run.factors))
    plates.append(_curves(run))
    return plates


def _latents(run: Run, factors: Factors) -> Plate:
    label = str(_data(run).get("label"))
    what = "their latents' means"
    if factors.loadings:
        what = "what their latents' means add to all columns"
    caption = f"{len(factors.points):,} rows in the plane of the first two principal components of {what}"
    if factors.labels is not None:
        caption += f", coloured by {label}"
    return Plate("latents", scatter(factors, label), f"{caption}.", scatter(factors, label, narrow=True))


def _data(run: Run) -> dict[str, Any]:
    data = run.config.get("data")
    if isinstance(data, dict):
        return data
    return {}


def _unit_of_weights(run: Run) -> str:
    """What the weights of a linear decoder are measured in: counts have the logarithm of their mean."""
    model = run.config.get("model")
    if isinstance(model, dict) and model.get("likelihood") in OF_COUNTS:
        return "the logarithm of the mean count"
    return "standard deviations of the column"


def _reconstructions(pictures: RunPictures) -> Plate:
    rows = "Originals on top and their reconstructed means below"
    if pictures.stds is not None:
        rows += "; the last row is the learned standard deviation, scaled to [0, 1] over all images shown"
    wide, narrow = figures.reconstructions(pictures), figures.reconstructions(pictures, narrow=True)
    return Plate("reconstructions", wide, f"{rows}.", narrow)


def _curves(run: Run) -> Plate:
    unit = unit_of(run)
    caption = f"{unit.in_words} over epochs and over seconds, then KL divergence and squared error over epochs."
    limit = None
    if run.summary is not None:
        limit = run.summary.limit
    if limit is not None:
        caption += " The dashed line is the probabilistic PCA limit of linear decoders."
    wide, narrow = (figures.curves(run.metrics, limit, unit, narrow) for narrow in (False, True))
    return Plate("curves", wide, caption, narrow)


def _section(plate: Plate, png: bytes) -> str:
    title = plate.name.capitalize()
    alt = f"{title}: {plate.caption}"
    narrow = None
    if plate.narrow is not None:
        narrow = html.png(plate.narrow)
    return html.section(title, html.picture(png, plate.caption, alt, plate.name == "samples", narrow))


def _page(run: Run, sections: list[str]) -> str:
    name = run.folder.resolve().name
    settings = _settings(run)
    parts = [html.header(name, _headline(run, settings)), *sections, html.section("Epochs", _epochs(run))]
    if settings is not None:
        parts.append(html.section("The same run again", html.command(train_command(settings))))
    if run.summary is not None:
        parts.append(html.details("Final figures", html.listing(run.summary.as_json())))
    parts.append(html.details("Configuration", html.listing(run.config)))
    if run.environment:
        parts.append(html.details("Environment", html.listing(run.environment)))
    return html.document(name, "\n".join(parts))


def _settings(run: Run) -> Settings | None:
    """The run's settings; None if this version does not know all of them."""
    try:
        return read_settings(RunFolder(run.folder).config)
    except ConfigError:
        return None


def _headline(run: Run, settings: Settings | None) -> str:
    if run.summary is None:
        return html.paragraph("The run has left no summary: it has not finished.")
    return html.paragraph(opening(run, run.summary, settings)) + html.tiles(_tiles(run.summary))


def _tiles(summary: Summary) -> list[html.Tile]:
    unit = summary.unit
    tiles = [html.Tile(f"test {unit.title}", summary.figure, unit.words)]
    if summary.sampled is not None:
        gap = f"{unit.words}; gap of the bound {summary.figure - summary.sampled:+.4f}"
        tiles.append(html.Tile("by the sampled ELBO", summary.sampled, gap))
    if summary.baseline is not None:
        tiles.append(html.Tile("without latents", summary.baseline.figure, unit.words))
    if summary.limit is not None:
        tiles.append(html.Tile("pPCA limit", summary.limit, unit.words))
    for name, value in summary.metrics.items():
        tiles.append(html.Tile(name.upper(), value, counted(name, unit)))
    tiles.append(html.Tile("KLD", summary.kld, counted("kld", unit)))
    tiles.append(html.Tile("active latents", summary.active))
    tiles.append(html.Tile("bound", summary.exactness))
    if summary.closed_form is not None:
        tiles.append(html.Tile("closed form", summary.closed_form))
    tiles.append(html.Tile("time", html.duration(summary.seconds)))
    tiles.append(html.Tile("epochs", summary.epochs))
    return tiles


def _epochs(run: Run) -> str:
    metrics = run.metrics
    columns: dict[str, Sequence[object]] = {}
    for name, cells in metrics.items():
        if any(cell is not None for cell in cells):
            columns[name] = cells
    count = len(metrics["epoch"])
    if count == 0:
        return html.paragraph("No epoch has been recorded.")
    rows = list(zip(*columns.values(), strict=True))
    last = html.table(list(columns), rows[-LAST_EPOCHS:], "Metrics of the last epochs")
    last += html.caption(legend(columns, unit_of(run)))
    if count <= LAST_EPOCHS:
        return last
    return last + html.details(f"All {count} epochs", html.table(list(columns), rows, "Metrics by epoch"))
