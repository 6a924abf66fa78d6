"""The page of one run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from silentgrad.lab.kinds import OF_COUNTS
from silentgrad.lab.reports import figures, html
from silentgrad.lab.reports.factors import loadings_section, scatter
from silentgrad.lab.reports.units import unit_of
from silentgrad.lab.runs.factors import Factors
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.pictures import RunPictures
from silentgrad.lab.runs.records import Metrics, Run, write_atomically
from silentgrad.lab.runs.summary import Summary

LAST_EPOCHS = 5
Section = Callable[[Run], str]  # a part of a run's page in HTML, as `html.section` makes it


class Plate(NamedTuple):
    """A figure as the page shows it.

    Args:
        name: Name of the PNG file, and the heading.
        figure: The figure.
        caption: What the figure shows, in sentences.
    """

    name: str
    figure: Figure
    caption: str


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
    return Plate("latents", scatter(factors, label), f"{caption}.")


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
    return Plate("reconstructions", figures.reconstructions(pictures), f"{rows}.")


def _curves(run: Run) -> Plate:
    unit = unit_of(run)
    told = unit.in_print
    if unit.metric == "bpd":
        told = "Bits per dimension"
    caption = f"{told} over epochs and over seconds, then KL divergence and squared error over epochs."
    limit = None
    if run.summary is not None:
        limit = run.summary.limit
    if limit is not None:
        caption += " The dashed line is the probabilistic PCA limit of linear decoders."
    return Plate("curves", figures.curves(run.metrics, limit), caption)


def _section(plate: Plate, png: bytes) -> str:
    title = plate.name.capitalize()
    alt = f"{title}: {plate.caption}"
    return html.section(title, html.picture(png, plate.caption, alt, small=plate.name == "samples"))


def _page(run: Run, sections: list[str]) -> str:
    name = run.folder.resolve().name
    parts = [html.header(name, _headline(run.summary)), *sections, html.section("Epochs", _epochs(run.metrics))]
    if run.summary is not None:
        parts.append(html.details("Final figures", html.listing(run.summary.as_json())))
    parts.append(html.details("Configuration", html.listing(run.config)))
    if run.environment:
        parts.append(html.details("Environment", html.listing(run.environment)))
    return html.document(name, "\n".join(parts))


def _headline(summary: Summary | None) -> str:
    if summary is None:
        return html.paragraph("The run has left no summary: it has not finished.")
    tiles = [html.Tile(f"test {summary.unit.title}", summary.figure, _remark(summary))]
    if summary.sampled is not None:
        gap = f"gap of the bound {summary.figure - summary.sampled:+.4f}"
        tiles.append(html.Tile("by the sampled ELBO", summary.sampled, gap))
    for name, value in summary.metrics.items():
        tiles.append(html.Tile(name.upper(), value))
    tiles.append(html.Tile("KLD", summary.kld))
    tiles.append(html.Tile("active latents", summary.active))
    tiles.append(html.Tile("bound", summary.exactness))
    if summary.closed_form is not None:
        tiles.append(html.Tile("closed form", summary.closed_form))
    tiles.append(html.Tile("time", html.duration(summary.seconds)))
    tiles.append(html.Tile("epochs", summary.epochs))
    return html.tiles(tiles)


def _remark(summary: Summary) -> str:
    """The limit of linear decoders or, of a run without one, what its metric is counted in."""
    if summary.limit is None:
        return summary.unit.of.strip()
    return f"pPCA limit {html.number(summary.limit)}"


def _epochs(metrics: Metrics) -> str:
    columns: dict[str, Sequence[object]] = {}
    for name, cells in metrics.items():
        if any(cell is not None for cell in cells):
            columns[name] = cells
    count = len(metrics["epoch"])
    if count == 0:
        return html.paragraph("No epoch has been recorded.")
    rows = list(zip(*columns.values(), strict=True))
    last = html.table(list(columns), rows[-LAST_EPOCHS:], "Metrics of the last epochs")
    if count <= LAST_EPOCHS:
        return last
    return last + html.details(f"All {count} epochs", html.table(list(columns), rows, "Metrics by epoch"))
