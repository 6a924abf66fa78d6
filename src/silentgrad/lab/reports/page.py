"""The page of one run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from silentgrad.lab.reports import figures, html
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import Metrics, Run, write_atomically

LAST_EPOCHS = 5
Section = Callable[[Run], str]  # a part of a run's page in HTML, as `html.section` makes it


class Plate(NamedTuple):
    """A figure as the page shows it; its name is the PNG's and the heading's."""

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
    pictures = []
    for plate in _plates(run):
        png = html.png(plate.figure)
        write_atomically(RunFolder(folder).figure(plate.name), png)
        pictures.append(_section(plate, png))
    page = RunFolder(folder).report
    write_atomically(page, _page(run, [*pictures, *(section(run) for section in more)]).encode())
    return page


def _plates(run: Run) -> list[Plate]:
    plates = []
    if {"originals", "means"} <= run.pictures.keys():
        rows = "Originals on top and their reconstructed means below"
        if "stds" in run.pictures:
            rows += "; the last row is the learned standard deviation, scaled to [0, 1] over all images shown"
        plates.append(Plate("reconstructions", figures.reconstructions(run.pictures), f"{rows}."))
    if "samples" in run.pictures:
        plates.append(
            Plate("samples", figures.samples(run.pictures), "Images decoded from latents drawn from the prior.")
        )
    metric = figures.metric_of(run.metrics)
    limit = html.finite(run.summary.get(f"limit_{metric}"))
    told = "Bits per dimension" if metric == "bpd" else run.summary.get("unit", "NLL")
    caption = f"{told} over epochs and over seconds, then KL divergence and squared error over epochs."
    if limit is not None:
        caption += " The dashed line is the probabilistic PCA limit of linear decoders."
    plates.append(Plate("curves", figures.curves(run.metrics, limit), caption))
    return plates


def _section(plate: Plate, png: bytes) -> str:
    title = plate.name.capitalize()
    return html.section(
        title, html.picture(png, plate.caption, alt=f"{title}: {plate.caption}", small=plate.name == "samples")
    )


def _page(run: Run, shown: list[str]) -> str:
    name = run.folder.resolve().name
    listings = {"Final figures": run.summary, "Configuration": run.config, "Environment": run.environment}
    sections = [
        html.header(name, _headline(run)),
        *shown,
        html.section("Epochs", _epochs(run.metrics)),
        *(html.details(title, html.listing(values)) for title, values in listings.items() if values),
    ]
    return html.document(name, "\n".join(sections))


def _headline(run: Run) -> str:
    if not run.summary:
        return html.paragraph("The run has left no summary: it has not finished.")
    metric = figures.metric_of(run.metrics)
    title = f"test {metric.upper()}"
    names = {
        metric: title,
        "mse": "MSE",
        "kld": "KLD",
        "active": "active latents",
        "exactness": "bound",
        "closed_form": "closed form",
    }
    tiles = {title: (run.summary[key], "") for key, title in names.items() if key in run.summary}
    if (seconds := html.finite(run.summary.get("seconds"))) is not None:
        tiles["time"] = (html.duration(seconds), "")
    if "epochs" in run.summary:
        tiles["epochs"] = (run.summary["epochs"], "")
    limit = html.finite(run.summary.get(f"limit_{metric}"))
    if metric == "nll" and title in tiles:
        tiles[title] = (run.summary[metric], str(run.summary.get("unit", "")).removeprefix("NLL "))
    if limit is not None and title in tiles:
        tiles[title] = (run.summary[metric], f"pPCA limit {html.number(limit)}")
    return html.tiles(tiles)


def _epochs(metrics: Metrics) -> str:
    columns = {name: cells for name, cells in metrics.items() if any(cell is not None for cell in cells)}
    count = len(metrics["epoch"])
    if count == 0:
        return html.paragraph("No epoch has been recorded.")
    rows = list(zip(*columns.values(), strict=True))
    last = html.table(list(columns), rows[-LAST_EPOCHS:], "Metrics of the last epochs")
    if count <= LAST_EPOCHS:
        return last
    return last + html.details(f"All {count} epochs", html.table(list(columns), rows, "Metrics by epoch"))
