"""One self-contained HTML page for a run: no script, no request, readable years later from the file alone."""

import base64
import io
import math
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]
from matplotlib.figure import Figure

from silentgrad.records import Metrics, Run, write_atomically
from silentgrad.reports import figures

LAST_EPOCHS = 5
CSS = """
:root { color-scheme: light dark; --ink: #1d2125; --soft: #5b646d; --paper: #fff; --card: #f4f5f7; --line: #d9dde1 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #a3abb3; --paper: #15181b; --card: #1f2428; --line: #363d44 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { margin: 0 0 1rem; font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.1rem }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; margin: 0 }
dl div { padding: .6rem .8rem; background: var(--card); border-radius: 6px }
dt, small, figcaption { color: var(--soft); font-size: .85rem }
dd { margin: 0; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
small { display: block; font-weight: 400 }
figure { margin: 0 }
img { display: block; max-width: 100%; height: auto; padding: .4rem; background: #fff; border-radius: 6px }
img.samples { width: 30rem }
figcaption { margin-top: .4rem }
.box { max-width: 100%; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap }
th { background: var(--card); font-weight: 600 }
td { border-top: 1px solid var(--line) }
details { margin-top: 1rem }
summary { padding: .3rem 0; font-weight: 600; cursor: pointer }
pre { margin: .4rem 0 0; padding: .8rem; background: var(--card); font: .85rem/1.45 ui-monospace, monospace }
"""


class Plate(NamedTuple):
    """A figure as the page shows it; its name is the PNG's and the heading's."""

    name: str
    figure: Figure
    caption: str


def write_report(folder: Path) -> Path:
    """Writes a run's figures as PNG and its `report.html`, and returns the page's path.

    Raises:
        RecordError: The folder is no run, or one of its files is damaged.
    """
    run = Run.read(folder)
    images = []
    for plate in _plates(run):
        png = _png(plate.figure)
        write_atomically(folder / f"{plate.name}.png", png)
        images.append(_image(plate, png))
    page = folder / "report.html"
    write_atomically(page, _html(run, images).encode())
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
    limit = _finite(run.summary.get("limit_bpd"))
    caption = "Bits per dimension over epochs and over seconds, then KL divergence and squared error over epochs."
    if limit is not None:
        caption += " The dashed line is the probabilistic PCA limit of linear decoders."
    plates.append(Plate("curves", figures.curves(run.metrics, limit), caption))
    return plates


def _html(run: Run, images: list[str]) -> str:
    name = escape(run.folder.resolve().name)
    listings = {"Final figures": run.summary, "Configuration": run.config, "Environment": run.environment}
    sections = [
        f"<header><h1>{name}</h1>{_headline(run)}</header>",
        *images,
        f"<section><h2>Epochs</h2>{_epochs(run.metrics)}</section>",
        *(_details(title, _listing(values)) for title, values in listings.items() if values),
    ]
    body = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} · silentgrad</title>
<style>{CSS}</style>
</head>
<body><main>
{body}
</main></body>
</html>
"""


def _headline(run: Run) -> str:
    if not run.summary:
        return "<p>The run has left no summary: it has not finished.</p>"
    names = {"bpd": "test BPD", "mse": "MSE", "kld": "KLD", "active": "active latents"}
    tiles = {title: _number(run.summary[key]) for key, title in names.items() if key in run.summary}
    if (seconds := _finite(run.summary.get("seconds"))) is not None:
        tiles["time"] = _duration(seconds)
    if "epochs" in run.summary:
        tiles["epochs"] = _number(run.summary["epochs"])
    limit = _finite(run.summary.get("limit_bpd"))
    beside = {} if limit is None else {"test BPD": f"<small>pPCA limit {_number(limit)}</small>"}
    return f"<dl>{''.join(_tile(title, value, beside.get(title, '')) for title, value in tiles.items())}</dl>"


def _tile(title: str, value: str, beside: str) -> str:
    return f"<div><dt>{title}</dt><dd>{value}{beside}</dd></div>"


def _image(plate: Plate, png: bytes) -> str:
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    picture = f'<img src="{source}" alt="{plate.name.capitalize()}: {plate.caption}" class="{plate.name}">'
    caption = f"<figcaption>{plate.caption}</figcaption>"
    return f"<section><h2>{plate.name.capitalize()}</h2><figure>{picture}{caption}</figure></section>"


def _epochs(metrics: Metrics) -> str:
    columns = {name: cells for name, cells in metrics.items() if any(cell is not None for cell in cells)}
    count = len(metrics["epoch"])
    if count == 0:
        return "<p>No epoch has been recorded.</p>"
    last = _table({name: cells[-LAST_EPOCHS:] for name, cells in columns.items()})
    return last if count <= LAST_EPOCHS else last + _details(f"All {count} epochs", _table(columns))


def _table(columns: Metrics) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    rows = zip(*columns.values(), strict=True)
    body = "".join(f"<tr>{''.join(f'<td>{_number(cell)}</td>' for cell in row)}</tr>" for row in rows)
    # focusable, so that the keyboard can scroll it
    box = '<div class="box" tabindex="0" role="region" aria-label="Metrics by epoch">'
    return f"{box}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def _listing(values: dict[str, Any]) -> str:
    return f'<pre class="box" tabindex="0">{escape(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))}</pre>'


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _number(value: object) -> str:
    """Four significant digits, whole numbers in full; anything else as it stands."""
    if value is None:
        return ""
    if (number := _finite(value)) is None:
        return escape(str(value))
    return f"{number:,.0f}" if number.is_integer() or abs(number) >= 10_000 else f"{number:#.4g}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
