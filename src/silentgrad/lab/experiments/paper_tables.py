"""The paper's tables and figures, declared: each figure of ours beside the paper's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from silentgrad.analysis import Decomposition, gradient_variance
from silentgrad.lab.data import Observations, load
from silentgrad.lab.experiments import bias, paper
from silentgrad.lab.experiments.cells import FIXED, KEPT_EPOCHS, Cell, fixed_cells, learned_cells
from silentgrad.lab.experiments.experiment import (
    MODELS,
    NO_CONVOLUTIONS,
    Experiment,
    FigureColumn,
    FilledRow,
    Grid,
    Judgement,
    Request,
    RowOfRuns,
    TableOfRuns,
    best_of_blocks,
    meaning,
    over_seeds,
    reduced,
)
from silentgrad.lab.experiments.recipes import full_epochs
from silentgrad.lab.experiments.results import Difference, Results, compared, mean_of, spread
from silentgrad.lab.runs.findings import Findings, Reconstructions
from silentgrad.lab.tables import Column, Content, Spread, shown
from silentgrad.lab.training import load_weights
from silentgrad.lab.training.measuring import kept_variances, training_batches
from silentgrad.latents.families import FAMILIES

BATCHES = {"smoke": 4, "cpu": 50, "paper": 50}  # `conv` has no runs with fixed variance
DRAWS = {"smoke": 8, "cpu": 200, "paper": 200}
OUR_PARTS = [0.1, 0.25, 0.5]


def _fixed(request: Request) -> list[Cell]:
    return fixed_cells(request.scale, request.seeds)


def _learned(request: Request) -> list[Cell]:
    return learned_cells(request.scale, request.datasets, request.seeds)


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


def _key(row: RowOfRuns) -> tuple[str, str]:
    return row.runs["latent"], row.runs["method"]


class FixedVariance(TableOfRuns):
    """A linear decoder with fixed variance."""

    def rows(self, results: Results, request: Request) -> list[RowOfRuns]:
        rows = []
        for latent, block in paper.BLOCKS.items():
            for family, method in paper.FIXED:
                if family == latent:
                    rows.append(RowOfRuns([block, paper.METHODS[method]], {"latent": latent, "method": method}))
            for model in ("independent", "limit") if FAMILIES[latent].gaussian else ("independent",):
                rows.append(RowOfRuns([block, MODELS[model]], {"latent": latent}, model))
        return [*rows, RowOfRuns(["", MODELS["histogram"]], {}, "histogram")]

    def figures(self, request: Request) -> list[FigureColumn]:
        after = Column("epochs (paper)", 0, judges=True)
        return [
            FigureColumn(Column("BPD", 4), lambda results, row: results.judged("test", **row.runs)),
            FigureColumn(Column("BPD (paper)", 3, judges=True), lambda _, row: paper.FIXED[_key(row)].bpd),
            over_seeds("MSE", "mse", 3),
            FigureColumn(Column("MSE (paper)", 3, judges=True), lambda _, row: paper.FIXED[_key(row)].mse),
            FigureColumn(Column(f"epochs to {paper.REACHED}", 0), self._reached),
            FigureColumn(after, lambda _, row: paper.REACHED_AFTER.get(_key(row))),
            over_seeds("CPU seconds", "seconds", 0),
        ]

    def _reached(self, results: Results, row: RowOfRuns) -> Content:
        if _key(row) not in paper.REACHED_AFTER:
            return None
        epochs = [own.reach(paper.REACHED, len(own.curve)) for own in results.rows(**row.runs)]
        return "not in all runs" if None in epochs else spread(epochs)

    def judge(self, filled: list[FilledRow]) -> Judgement:
        return best_of_blocks(filled, "BPD", self._verdict)

    def _verdict(self, best: FilledRow, block: list[FilledRow]) -> str:
        title, method = best.row.labels
        agreement = "as in the paper" if best.row.runs["method"] == "silent" else "unlike in the paper"
        return f"{title}: the lowest mean has {method}, {agreement}."


class VarianceOfGradients(TableOfRuns):
    """The gradient's variance in these runs, at the epochs whose weights they kept."""

    def rows(self, results: Results, request: Request) -> list[RowOfRuns]:
        rows = []
        for latent, method in paper.FIXED:
            runs = {"latent": latent, "method": method, "seed": 0}
            rows.append(RowOfRuns([paper.BLOCKS[latent], paper.METHODS[method]], runs))
        return rows

    def figures(self, request: Request) -> list[FigureColumn]:
        columns = []
        for epoch in KEPT_EPOCHS[request.scale]:
            for title, part, digits in (("Batch", "batch", None), ("Est", "est", None), ("Est %", "est_percent", 2)):
                measured = partial(self._part, request, epoch, part)
                columns.append(FigureColumn(Column(f"{title}, epoch {epoch}", digits), measured))
        for place, epoch in enumerate(paper.VARIANCE_EPOCHS):
            head = Column(f"Est % (paper, epoch {epoch})", 2, judges=True)
            columns.append(FigureColumn(head, partial(self._paper, place)))
        return columns

    def _paper(self, place: int, results: Results, row: RowOfRuns) -> float:
        return paper.VARIANCE[_key(row)][place]

    def _part(self, request: Request, epoch: int, part: str, results: Results, row: RowOfRuns) -> float:
        """Return a part of the noise of a run's gradient, which is measured once."""
        (cell,) = results.where(**row.runs)
        run, data = results.run(cell), cell.settings.data

        def measured(names: Sequence[str]) -> dict[str, Decomposition]:
            observations = _observations(data.name, request.root)
            batches = training_batches(observations, data.batch_size, BATCHES[request.scale], seed=0)
            model = load_weights(run.path, run.kept(epoch), observations)
            (noise,) = gradient_variance(model, batches, DRAWS[request.scale], [model.tractable_estimator]).values()
            return dict.fromkeys(names, noise)

        return getattr(kept_variances(run.kept_variance(epoch, request.scale), ["own"], measured)["own"], part)

    def judge(self, filled: list[FilledRow]) -> Judgement:
        sentences = []
        for row, figures in filled:
            percents = [f"{mean_of(part):.1f}" for name, part in figures.items() if name.startswith("Est %")]
            ours, theirs = percents[:-3], percents[-3:]
            told = f"the estimator's part is {', '.join(ours)} %; in the paper {', '.join(theirs)} %."
            sentences.append(f"{', '.join(row.labels)}: {told}")
        return Judgement([], sentences)

    def notes(self, results: Results, request: Request) -> list[str]:
        cells = results.where(seed=0)
        how = (
            f"{cells[0].data}: {BATCHES[request.scale]} batches of {cells[0].settings.data.batch_size} images, "
            f"{DRAWS[request.scale]} draws each; a fixed variance of 0.01."
        )
        return [how, *meaning(request), *reduced(cells, request)]


@lru_cache(maxsize=1)  # rows of one dataset follow each other
def _observations(name: str, root: Path | None) -> Observations:
    return load(name, root)


SIDES = {"without SG": "", "with SG": paper.GUIDED, "our guide": paper.OURS}  # column -> ending of the method
FIELDS = {"bpd": "test", "kld": "kld", "mse": "mse"}  # metric -> field of a run's row


@dataclass(frozen=True, kw_only=True)
class LearnedVariance(TableOfRuns):
    """Learned variance: what the paper's guide and ours do to each estimator, in one of three metrics."""

    digits: int  # of the metric

    def rows(self, results: Results, request: Request) -> list[RowOfRuns]:
        rows = []
        for dataset in request.datasets:
            data = results.data(dataset=dataset)
            for latent, method in paper.LEARNED["bpd"]:
                alone = paper.alone(method)
                if method.endswith(paper.GUIDED):
                    runs = {"dataset": dataset, "latent": latent, "method": alone}
                    rows.append(RowOfRuns([data, paper.BLOCKS[latent], paper.METHODS[alone]], runs))
            for model in ("independent", "histogram") if self.name == "bpd" else ():
                rows.append(RowOfRuns([data, "", MODELS[model]], {"dataset": dataset}, model))
        return rows

    def figures(self, request: Request) -> list[FigureColumn]:
        name, field, digits = self.name.upper(), FIELDS[self.name], self.digits

        def of_sides(title: str, digits: int, of: Callable[..., Content], sides: Sequence[str]) -> list[FigureColumn]:
            judges = not title.startswith((name, "CPU"))
            return [FigureColumn(Column(f"{title} {side}", digits, judges=judges), partial(of, side)) for side in sides]

        without, guided, ours = SIDES
        return [
            *of_sides(name, digits, partial(self._own, field), [without, guided, ours]),
            *of_sides("paper", 2, self._paper, [without, guided]),
            *of_sides("change", 3, self._change, [guided, ours]),
            *of_sides("CPU seconds", 0, partial(self._own, "seconds"), [without, guided, ours]),
        ]

    def _own(self, field: str, side: str, results: Results, row: RowOfRuns) -> Content:
        figure = results.over_seeds if field == "seconds" else results.judged
        return figure(field, **_on(side, row))

    def _change(self, side: str, results: Results, row: RowOfRuns) -> Difference | None:
        alone = results.rows(**row.runs)
        return compared(results.rows(**_on(side, row)), alone, FIELDS[self.name]) if alone else None

    def _paper(self, side: str, results: Results, row: RowOfRuns) -> Content:
        dataset, latent, method = _on(side, row).values()
        by_dataset = paper.LEARNED[self.name].get((latent, method))
        if by_dataset is None:
            return None
        mean, deviation = by_dataset[list(paper.DATASETS).index(dataset)]
        return mean if deviation is None else Spread(mean, deviation, paper.SEEDS)

    def judge(self, filled: list[FilledRow]) -> Judgement:
        sentences = []
        for row, figures in filled:
            for side in list(SIDES)[1:]:
                change = figures[f"change {side}"]
                if isinstance(change, Difference) and change.margin is not None:
                    sure = "undecided" if change.verdict == "undecided" else "an interval on one side of zero"
                    told = f"{self.name.upper()} {side} changes by {shown(change)}, {sure}."
                    sentences.append(f"{', '.join(row.labels)}: {told}")
        return Judgement([], sentences)


def _on(side: str, row: RowOfRuns) -> dict[str, Any]:
    """Return the runs of a row on one side."""
    return {**row.runs, "method": row.runs["method"] + SIDES[side]}


class Pictures(Experiment):
    """Reconstructions, one above the other: fixed variance, then each dataset with learned variance."""

    def build(self, results: Results, request: Request) -> Findings:
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


def _learned_table(metric: str, digits: int, better: str) -> LearnedVariance:
    title, heads = f"{metric.upper()} with learned variance ({better} is better)", ["data", "latents", "method"]
    return LearnedVariance(name=metric, title=title, heads=heads, cells=_learned, grid=_grid, digits=digits)


OF_THE_PAPER: dict[str, Experiment] = {
    "fixed": FixedVariance(
        name="fixed",
        title="Linear decoder with fixed variance 0.01",
        heads=["", "method"],
        cells=_fixed,
        grid=_grid,
        refused=NO_CONVOLUTIONS,
    ),
    "variance": VarianceOfGradients(
        name="variance",
        title="Gradient variance of the encoder: mini-batch and estimator parts",
        heads=["", "method"],
        cells=_fixed,
        of_folders=True,
        refused=NO_CONVOLUTIONS,
        curved=False,
        measuring="gradient variance",
    ),
    "bpd": _learned_table("bpd", 3, "lower"),
    "kld": _learned_table("kld", 2, "higher"),
    "mse": _learned_table("mse", 3, "lower"),
    "bias": bias.EXPERIMENT,
    "figures": Pictures(
        cells=lambda request: _fixed(request) + _learned(request), of_folders=True, refused=NO_CONVOLUTIONS
    ),
}
