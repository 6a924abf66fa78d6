"""The paper's tables and figures, declared: each figure of ours beside the paper's."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from silentgrad.analysis import Decomposition, gradient_variance
from silentgrad.guided import GuidedVAE
from silentgrad.lab.experiments import bias, paper
from silentgrad.lab.experiments.cells import FIXED, KEPT_EPOCHS, Cell, Scale, fixed_cells, learned_cells
from silentgrad.lab.experiments.experiment import (
    NO_CONVOLUTIONS,
    Declared,
    Experiment,
    Filled,
    Judgement,
    Request,
    RunGroup,
    best_of_blocks,
    gradient_noise,
    made,
    meaning,
    reduced,
)
from silentgrad.lab.experiments.ledger import RunRow
from silentgrad.lab.experiments.recipes import full_epochs
from silentgrad.lab.experiments.results import Difference, Results, compared, mean_of, spread
from silentgrad.lab.experiments.tuned import SIMPLE
from silentgrad.lab.experiments.tuning import Grid
from silentgrad.lab.runs.findings import Findings, Reconstructions
from silentgrad.lab.tables import Column, Content, Spread, shown
from silentgrad.latents.families import FAMILIES

DIGITS = {"bpd": 3, "kld": 2, "mse": 3}
WANTED = {"bpd": "lower", "mse": "lower", "kld": "higher"}
BATCHES = {"smoke": 4, "cpu": 50, "paper": 50}  # `conv` has no runs with fixed variance
DRAWS = {"smoke": 8, "cpu": 200, "paper": 200}
OUR_PARTS = [0.1, 0.25, 0.5]


def _fixed(request: Request) -> list[Cell]:
    return fixed_cells(request.scale, request.seeds)


def _learned(request: Request) -> list[Cell]:
    return learned_cells(request.scale, request.datasets, request.seeds)


def _notes(results: Results, request: Request) -> list[str]:
    return made(results, request) + reduced(results.cells, request)


def _grid(cell: Cell) -> Grid:
    """Return what the paper searches, and for our guide the part of the training that it takes."""
    grid: dict[str, list[Any]] = {"train.lr": paper.RATES}
    if cell.variant == FIXED:
        return grid | {"model.variance": paper.VARIANCES}
    full = full_epochs(cell.dataset, cell.method)
    if paper.alone(cell.method) == "none":
        within = [cutoff for cutoff in paper.CUTOFFS if cutoff <= full]
        scaled = [max(1, round(cutoff * cell.settings.train.epochs / full)) for cutoff in within]
        return grid | {"model.cutoff": list(dict.fromkeys(scaled))}
    if cell.method.endswith(paper.GUIDED):
        return grid | {"model.guided": [round(1 / (full * rate), 3) for rate in paper.ANNEALING]}
    if cell.method.endswith(paper.OURS):
        return grid | {"model.guided": OUR_PARTS}
    return grid


# A linear decoder with fixed variance.

FIXED_COLUMNS = [
    Column(""),
    Column("method"),
    Column("BPD", 4),
    Column("BPD (paper)", 3, judges=True),
    Column("MSE", 3),
    Column("MSE (paper)", 3, judges=True),
    Column(f"epochs to {paper.REACHED}", 0),
    Column("epochs (paper)", 0, judges=True),
    Column("CPU seconds", 0),
]


def _fixed_rows(results: Results, request: Request) -> list[RunGroup]:
    rows = []
    for latent, block in paper.BLOCKS.items():
        for family, method in paper.FIXED:
            if family == latent:
                rows.append(RunGroup([block, paper.METHODS[method]], {"latent": latent, "method": method}))
        rows.append(RunGroup([block, SIMPLE["independent"]], {"latent": latent}))
        if FAMILIES[latent].gaussian:
            rows.append(RunGroup([block, SIMPLE["limit"]], {"latent": latent}))
    return [*rows, RunGroup(["", SIMPLE["histogram"]], {})]


def _fixed_figures(results: Results, group: RunGroup, request: Request) -> list[Content]:
    rows = results.rows(**group.runs)
    if "method" not in group.runs:
        return [_simple(group.labels[1], rows), *[None] * 6]
    key = str(group.runs["latent"]), str(group.runs["method"])
    bpd, mse, seconds = [results.over_seeds(metric, **group.runs) for metric in ("test", "mse", "seconds")]
    theirs, after = paper.FIXED[key], paper.REACHED_AFTER.get(key)
    epochs = [row.reach(paper.REACHED, len(row.curve)) for row in rows]
    reached = spread(epochs) if None not in epochs else "not in all runs"
    return [bpd, theirs.bpd, mse, theirs.mse, reached if after else None, after and float(after), seconds]


def _simple(title: str, rows: Sequence[RunRow]) -> Content:
    """Return the figure of a model without latents, or of the limit."""
    field = next(field for field, own in SIMPLE.items() if own == title)
    return next((value for row in rows if (value := getattr(row, field)) is not None), None)


def _fixed_verdict(best: Filled, block: Sequence[Filled]) -> str:
    title, method = best.group.labels
    agreement = "as in the paper" if best.group.runs["method"] == "silent" else "unlike in the paper"
    return f"{title}: the lowest mean has {method}, {agreement}."


FIXED_VARIANCE = Declared(
    name="fixed",
    title="Linear decoder with fixed variance 0.01",
    cells=_fixed,
    grid=_grid,
    refused=NO_CONVOLUTIONS,
    columns=lambda scale: FIXED_COLUMNS,
    rows=_fixed_rows,
    figures=_fixed_figures,
    judge=lambda filled: best_of_blocks(filled, 0, _fixed_verdict),
    notes=_notes,
)


# The gradient's variance in these runs, at the epochs whose weights they kept.


def _variance_columns(scale: Scale) -> list[Column]:
    columns = [Column(""), Column("method")]
    for epoch in KEPT_EPOCHS[scale]:
        columns.append(Column(f"Batch, epoch {epoch}"))
        columns.append(Column(f"Est, epoch {epoch}"))
        columns.append(Column(f"Est %, epoch {epoch}", 2))
    for epoch in paper.VARIANCE_EPOCHS:
        columns.append(Column(f"Est % (paper, epoch {epoch})", 2, judges=True))
    return columns


def _variance_rows(results: Results, request: Request) -> list[RunGroup]:
    rows = []
    for latent, method in paper.FIXED:
        runs = {"latent": latent, "method": method, "seed": 0}
        rows.append(RunGroup([paper.BLOCKS[latent], paper.METHODS[method]], runs))
    return rows


def _variance_figures(results: Results, group: RunGroup, request: Request) -> list[Content]:
    (cell,) = results.where(**group.runs)
    figures: list[Content] = []
    for epoch in KEPT_EPOCHS[request.scale]:
        measure = partial(_decomposition, DRAWS[request.scale])
        noise = gradient_noise(results, cell, epoch, request, BATCHES[request.scale], measure)
        figures += [noise.batch, noise.est, noise.est_percent]
    return figures + list(paper.VARIANCE[cell.latent, cell.method])


def _decomposition(draws: int, model: GuidedVAE, batches: Iterator[Tensor]) -> Decomposition:
    (parts,) = gradient_variance(model, batches, draws, [model.tractable_estimator]).values()
    return parts


def _variance_verdicts(filled: list[Filled]) -> Judgement:
    sentences = []
    for group, figures in filled:
        ours, theirs = _percents(figures[2:-3:3]), _percents(figures[-3:])
        name = ", ".join(group.labels)
        sentences.append(f"{name}: the estimator's part is {ours} %; in the paper {theirs} %.")
    return Judgement([], sentences)


def _percents(parts: Sequence[Content]) -> str:
    return ", ".join(f"{mean_of(part):.1f}" for part in parts)


def _variance_notes(results: Results, request: Request) -> list[str]:
    cells = results.where(seed=0)
    how = (
        f"{cells[0].data}: {BATCHES[request.scale]} batches of {cells[0].settings.data.batch_size} images, "
        f"{DRAWS[request.scale]} draws each; a fixed variance of 0.01."
    )
    return [how, *meaning(request), *reduced(cells, request)]


VARIANCE = Declared(
    name="variance",
    of_folders=True,
    title="Gradient variance of the encoder: mini-batch and estimator parts",
    cells=_fixed,
    refused=NO_CONVOLUTIONS,
    columns=_variance_columns,
    rows=_variance_rows,
    figures=_variance_figures,
    judge=_variance_verdicts,
    notes=_variance_notes,
    curves=lambda results: [],
    measuring="gradient variance",
)


# Learned variance: what the paper's guide and ours do to each estimator, in three metrics.

SIDES = {"without SG": "", "with SG": paper.GUIDED, "our guide": paper.OURS}  # column -> ending of the method


def _learned_table(metric: str) -> Declared:
    name, digits = metric.upper(), DIGITS[metric]
    columns = [
        *[Column(head) for head in ("data", "latents", "method")],
        *[Column(f"{name} {side}", digits) for side in SIDES],
        *[Column(f"paper {side}", 2, judges=True) for side in list(SIDES)[:2]],
        *[Column(f"change {side}", 3, judges=True) for side in list(SIDES)[1:]],
        *[Column(f"CPU seconds {side}", 0) for side in SIDES],
    ]
    return Declared(
        name=metric,
        title=f"{name} with learned variance ({WANTED[metric]} is better)",
        cells=_learned,
        grid=_grid,
        columns=lambda scale: columns,
        rows=partial(_learned_rows, metric),
        figures=partial(_learned_figures, metric),
        judge=partial(_learned_verdicts, metric),
        notes=_notes,
    )


def _learned_rows(metric: str, results: Results, request: Request) -> list[RunGroup]:
    rows = []
    for dataset in request.datasets:
        data = results.data(dataset=dataset)
        for latent, method in paper.LEARNED["bpd"]:
            if method.endswith(paper.GUIDED):
                alone = paper.alone(method)
                runs = {"dataset": dataset, "latent": latent, "method": alone}
                rows.append(RunGroup([data, paper.BLOCKS[latent], paper.METHODS[alone]], runs))
        if metric == "bpd":
            simple = [SIMPLE["independent"], SIMPLE["histogram"]]
            rows += [RunGroup([data, "", title], {"dataset": dataset}) for title in simple]
    return rows


def _learned_figures(metric: str, results: Results, group: RunGroup, request: Request) -> list[Content]:
    if "method" not in group.runs:
        return [_simple(group.labels[2], results.rows(**group.runs)), *[None] * 9]
    dataset, latent, method = map(str, group.runs.values())
    sides = [{**group.runs, "method": method + ending} for ending in SIDES.values()]
    field = "test" if metric == "bpd" else metric
    theirs = [_in_paper(metric, dataset, latent, method + ending) for ending in ("", paper.GUIDED)]
    alone, *guided = [results.rows(**side) for side in sides]
    changes = [compared(rows, alone, field) if alone else None for rows in guided]
    figures = [_or_failed(results, field, side) for side in sides]
    return [*figures, *theirs, *changes, *(results.over_seeds("seconds", **side) for side in sides)]


def _or_failed(results: Results, field: str, side: Mapping[str, object]) -> Content:
    """Return a figure over seeds, marked where a run is no better than one without latents."""
    rows = results.rows(**side)
    failed = sum(row.failed for row in rows)
    figure = results.over_seeds(field, **side)
    return f"{shown(figure, 3)}, failed ({failed} of {len(rows)})" if failed and isinstance(figure, Spread) else figure


def _in_paper(metric: str, dataset: str, latent: str, method: str) -> Content:
    by_dataset = paper.LEARNED[metric].get((latent, method))
    if by_dataset is None:
        return None
    mean, deviation = by_dataset[list(paper.DATASETS).index(dataset)]
    return mean if deviation is None else Spread(mean, deviation, paper.SEEDS)


def _learned_verdicts(metric: str, filled: list[Filled]) -> Judgement:
    sentences = []
    for group, figures in filled:
        for side, change in zip(list(SIDES)[1:], figures[5:7], strict=True):
            if isinstance(change, Difference) and change.margin is not None:
                told = f"{', '.join(group.labels)}: {metric.upper()} {side}"
                sentences.append(f"{told} changes by {shown(change)}, {_sure(change)}.")
    return Judgement([], sentences)


def _sure(change: Difference) -> str:
    return "undecided" if change.verdict == "undecided" else "an interval on one side of zero"


# Reconstructions, one above the other.


class Pictures(Experiment):
    """The figures: fixed variance, then each dataset with learned variance."""

    def build(self, results: Results, request: Request) -> Findings:
        """Return a picture for each table, of the runs that have a folder."""
        fixed = results.where(seed=0, variant=FIXED)
        title = f"Fixed variance, {results.data(dataset='mnist')}"
        caption = "Test images and their reconstructed means."
        groups = [Reconstructions("figure-fixed", title, caption, results.labels(fixed))]
        for dataset in request.datasets:
            learned = results.where(dataset=dataset, seed=0, variant="")
            guided = [cell for cell in learned if cell.method.endswith(paper.GUIDED)]
            title = f"Learned variance, {results.data(dataset=dataset)}"
            caption = "Test images, reconstructed means, and learned standard deviations (normalized)."
            groups.append(Reconstructions(f"figure-{dataset}", title, caption, results.labels(guided)))
        return Findings("figures", "Reconstructions", groups)


OF_THE_PAPER: dict[str, Experiment] = {
    "fixed": FIXED_VARIANCE,
    "variance": VARIANCE,
    **{metric: _learned_table(metric) for metric in DIGITS},
    "bias": bias.EXPERIMENT,
    "figures": Pictures(
        cells=lambda request: _fixed(request) + _learned(request), of_folders=True, refused=NO_CONVOLUTIONS
    ),
}
