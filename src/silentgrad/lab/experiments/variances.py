"""The gradient-variance table: each method's own runs, measured at the epochs whose weights they kept."""

from pathlib import Path
from typing import NamedTuple

from rich.progress import track

from silentgrad.analysis import gradient_variance
from silentgrad.lab.data import Observations, load
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import KEPT_EPOCHS, Cell, Scale
from silentgrad.lab.experiments.claims import Comparison, as_claimed, meaning
from silentgrad.lab.experiments.notes import reduced
from silentgrad.lab.experiments.paper import Variance
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import read_json, write_json_atomically
from silentgrad.lab.runs.tables import Column, Content, Table
from silentgrad.lab.training import load_weights
from silentgrad.lab.training.measuring import training_batches

BATCHES = {"smoke": 4, "cpu": 50, "paper": 50}  # `conv` has no runs with fixed variance
DRAWS = {"smoke": 8, "cpu": 200, "paper": 200}


class VarianceRow(NamedTuple):
    """A method's variances at the kept epochs, as measured and in the paper."""

    block: str
    method: str
    ours: list[Variance]
    paper: list[Variance]

    def cells(self) -> list[Content]:
        """The cells in the order of the columns."""
        cells: list[Content] = [self.block, self.method]
        for variance in self.ours:
            cells += variance
        for variance in self.paper:
            cells.append(variance.est_percent)
        return cells

    def verdict(self) -> str:
        """The row in a sentence."""
        ours, theirs = _percents(self.ours), _percents(self.paper)
        return f"{self.block}, {self.method}: the estimator's part is {ours} %; in the paper {theirs} %."


def _percents(variances: list[Variance]) -> str:
    return ", ".join(f"{variance.est_percent:.1f}" for variance in variances)


def variance_table(results: Results, scale: Scale, root: Path | None) -> Table:
    """Batch and estimator variance of the encoder's gradient for each method without a schedule, first seed."""
    cells = results.where(seed=0, scheduled=False)
    data = cells[0].settings.data
    images = load(data.name, root)
    rows: list[list[Content]] = []
    verdicts: list[str] = []
    for cell in track(cells, "gradient variance"):
        row = _row(results, cell, images, scale)
        rows.append(row.cells())
        verdicts.append(row.verdict())
    made = (
        f"{cells[0].data}: {BATCHES[scale]} batches of {data.batch_size} images, {DRAWS[scale]} draws each; a fixed "
        "variance of 0.01 without a schedule."
    )
    table = Table(
        name="variance",
        title="Gradient variance of the encoder: mini-batch and estimator parts",
        columns=_columns(scale),
        rows=rows,
        verdicts=verdicts,
        notes=[made, *meaning(scale), *reduced(cells, scale)],
    )
    return as_claimed(table, scale)


def _columns(scale: Scale) -> list[Column]:
    columns = [Column(""), Column("method")]
    for epoch in KEPT_EPOCHS[scale]:
        columns.append(Column(f"Batch, epoch {epoch}"))
        columns.append(Column(f"Est, epoch {epoch}"))
        columns.append(Column(f"Est %, epoch {epoch}", 2))
    for epoch in KEPT_EPOCHS["paper"]:
        columns.append(Comparison(f"Est % (paper, epoch {epoch})", 2))
    return columns


def _row(results: Results, cell: Cell, images: Observations, scale: Scale) -> VarianceRow:
    ours = []
    for epoch in KEPT_EPOCHS[scale]:
        ours.append(_measured(results.run(cell), cell, epoch, images, scale))
    theirs = list(paper.VARIANCE[cell.latent, cell.method].values())
    return VarianceRow(paper.BLOCKS[cell.latent], paper.METHODS[cell.method], ours, theirs)


def _measured(run: RunFolder, cell: Cell, epoch: int, images: Observations, scale: Scale) -> Variance:
    """The decomposition at one epoch, kept in the run's folder."""
    path = run.kept_variance(epoch, scale)
    if not path.exists():
        vae = load_weights(run.path, run.kept(epoch), images)
        batches = training_batches(images, cell.settings.data.batch_size, BATCHES[scale], seed=0)
        (parts,) = gradient_variance(vae, batches, DRAWS[scale], [vae.tractable_estimator]).values()
        variance = Variance(parts.batch, parts.est, parts.est_percent)
        write_json_atomically(path, variance._asdict())
    return Variance(**read_json(path))
