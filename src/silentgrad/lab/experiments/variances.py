"""The gradient-variance table: each method's own runs, measured at the epochs whose weights they kept."""

from pathlib import Path
from typing import Any

from rich.progress import track

from silentgrad.analysis import gradient_variance
from silentgrad.lab.data import Observations, load
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import KEPT_EPOCHS, Cell, Scale, reductions
from silentgrad.lab.experiments.tables import Content, Results
from silentgrad.lab.runs.records import read_json, write_json_atomically
from silentgrad.lab.training import load_weights
from silentgrad.lab.training.measuring import training_batches

BATCHES = {"smoke": 4, "cpu": 50, "paper": 50}
DRAWS = {"smoke": 8, "cpu": 200, "paper": 200}
FIGURES = ("batch", "est", "est_percent")


def variance_table(results: Results, scale: Scale, root: Path | None) -> dict[str, Any]:
    """Batch and estimator variance of the encoder's gradient for each method without a schedule, first seed."""
    epochs = KEPT_EPOCHS[scale]
    cells = [cell for cell in results.where(seed=0) if not cell.scheduled]
    name = cells[0].settings.data.name
    images = load(name, root)
    rows = []
    for cell in track(cells, "gradient variance"):
        found = [_measured(results.folder / cell.name, cell, epoch, images, scale) for epoch in epochs]
        rows.append([paper.BLOCKS[cell.latent], paper.METHODS[cell.method], *_row(cell, found)])
    heads = [f"{figure}, epoch {epoch}" for epoch in epochs for figure in ("Batch", "Est", "Est %")]
    theirs = [f"Est % (paper, epoch {epoch})" for epoch in KEPT_EPOCHS["paper"]]
    percents = [head for head in heads if head.startswith("Est %")] + theirs
    return {
        "name": "variance",
        "title": "Gradient variance of the encoder: mini-batch and estimator parts",
        "columns": ["", "method", *heads, *theirs],
        "digits": dict.fromkeys(percents, 2),
        "rows": rows,
        "best": [],
        "verdicts": [_verdict(row, len(epochs)) for row in rows],
        "notes": [
            f"{BATCHES[scale]} batches of {cells[0].settings.data.batch_size} images, {DRAWS[scale]} draws each; a "
            "fixed variance of 0.01 without a schedule.",
            *(f"Reduced: {sentence}." for sentence in reductions(cells, scale)),
        ],
        "curves": {},
    }


def _row(cell: Cell, found: list[dict[str, float]]) -> list[Content]:
    ours: list[Content] = [figures[name] for figures in found for name in FIGURES]
    return ours + [percent for _, _, percent in paper.VARIANCE[cell.latent, cell.method].values()]


def _verdict(row: list[Content], epochs: int) -> str:
    percents = row[4 : 2 + 3 * epochs : 3]
    ours = ", ".join(f"{percent:.1f}" for percent in percents if isinstance(percent, float))
    theirs = ", ".join(f"{percent:.1f}" for percent in row[-3:] if isinstance(percent, float))
    return f"{row[0]}, {row[1]}: the estimator's part is {ours} %; in the paper {theirs} %."


def _measured(folder: Path, cell: Cell, epoch: int, images: Observations, scale: Scale) -> dict[str, float]:
    """The decomposition at one epoch, kept in the run's folder."""
    path = folder / "epochs" / f"{epoch}-variance-{scale}.json"
    if not path.exists():
        vae = load_weights(folder, folder / "epochs" / f"{epoch}.safetensors", images)
        batches = training_batches(images, cell.settings.data.batch_size, BATCHES[scale], seed=0)
        (found,) = gradient_variance(vae, batches, DRAWS[scale], [vae.linear_estimator]).values()
        write_json_atomically(path, {name: getattr(found, name) for name in FIGURES})
    return read_json(path)
