"""The paper's tables and figures, declared: each figure of ours beside the paper's."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.progress import track

from silentgrad.analysis import Decomposition, gradient_variance
from silentgrad.lab.build import plan_for
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import KEPT_EPOCHS, Cell, Request, Scale, fixed_cells, learned_cells
from silentgrad.lab.experiments.experiment import Experiment, FigureColumn, Grid, RowOfRuns, meaning
from silentgrad.lab.experiments.recipes import FIXED, GridCell, full_epochs
from silentgrad.lab.experiments.results import Results, spread
from silentgrad.lab.experiments.runner import loaded
from silentgrad.lab.experiments.tuned import CHOSEN, Comparison
from silentgrad.lab.kinds import BITS_PER_DIMENSION
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.tables import Column, Content, Findings, Reconstructions, Table
from silentgrad.lab.training import DataConfig, Settings, load_weights
from silentgrad.lab.training.measuring import kept_variances, training_batches

NO_CONVOLUTIONS: dict[Scale, str] = {"conv": "--scale conv is for the tables bpd, kld and mse"}
BATCHES = {"smoke": 4, "cpu": 50, "paper": 50}  # `conv` has no runs with fixed variance
DRAWS = {"smoke": 8, "cpu": 200, "paper": 200}
OUR_PARTS = [0.1, 0.25, 0.5]


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


@dataclass(frozen=True, kw_only=True)
class OfThePaper(Comparison):
    """A table whose figures stand beside the paper's."""

    def notes(self, results: Results, request: Request) -> list[str]:
        return super().notes(results, request) + reduced(results.cells, request)


@dataclass(frozen=True, kw_only=True)
class WithGuides(OfThePaper):
    """What guides do to each estimator."""

    def reference_of(self, method: str) -> str:
        return paper.alone(method)


def _printed(title: str, digits: int, of: Callable[[RowOfRuns], Content]) -> FigureColumn:
    unit = BITS_PER_DIMENSION.counted_in(title)
    return FigureColumn(Column(f"{title} (paper)", digits, unit, judges=True), lambda _, row: of(row))


def _key(row: RowOfRuns) -> tuple[str, str]:
    return row.runs["latent"], row.runs["method"]


def _reached(results: Results, row: RowOfRuns) -> Content:
    """Return the epochs until the figure that the paper counts to."""
    if _key(row) not in paper.REACHED_AFTER:
        return None
    epochs = results.epochs_to(paper.REACHED, **row.runs)
    return "not in all runs" if math.inf in epochs else spread(epochs)


def _learned_table(metric: str, digits: int, better: int) -> WithGuides:
    return WithGuides(
        name=metric,
        title=f"{metric.upper()} with learned variance ({'higher' if better > 0 else 'lower'} is better)",
        heads=["data", "latents", *CHOSEN],
        cells=learned_cells,
        grid=_grid,
        labels=lambda cell: [cell.data, paper.BLOCKS[cell.latent]],
        methods={"none": "no guide"} | {method: paper.in_print(method) for _, method in paper.COMPARED},
        reference="none",
        metric=FIELDS[metric],
        better=better,
        beside=[_printed(metric.upper(), digits, lambda row: paper.learned(metric, row.runs["dataset"], *_key(row)))],
        curved=True,
    )


FIELDS = {"bpd": "test", "kld": "kld", "mse": "mse"}  # metric -> field of a run's row


def reduced(cells: Sequence[Cell], request: Request) -> list[str]:
    """Return what differs from the paper's settings, by the settings themselves, a sentence for each set of runs.

    A run with our guide is compared with the paper's guided one.
    """
    if request.scale == "paper" or not request.comparable:
        return []
    concerned: dict[tuple[str, str], dict[str, None]] = {}  # data and variant, what differs -> methods
    for cell in cells:
        theirs = cell.method.replace(paper.OURS, paper.GUIDED)
        full = _described(GridCell(cell.dataset, cell.latent, theirs, "paper", cell.variant).settings)
        own = _described(cell.settings)
        changes = [f"{name} {own[name]} instead of {full[name]}" for name in own if own[name] != full[name]]
        if changes:
            kind = " ".join(filter(None, (paper.DATASETS[cell.dataset], cell.variant)))
            concerned.setdefault((kind, ", ".join(changes)), {})[f"{cell.latent} {cell.method}"] = None
    return [f"Other than in the paper: {kind} ({', '.join(of)}): {change}." for (kind, change), of in concerned.items()]


def _described(settings: Settings) -> dict[str, object]:
    """Return all that a run comes to by, with the annealing rate in place of the part of its epochs."""
    plan = plan_for(settings)
    described = {**asdict(plan.data), **asdict(plan.model), **asdict(plan.train)}
    described["annealing rate per epoch"] = round(1 / (plan.model.guided * plan.train.epochs), 5)
    if not plan.model.decoders.fading:
        described["annealing rate per epoch"] = None
    return {name: value for name, value in described.items() if name not in ("guided", "seed", "root", "keep")}


class VarianceOfGradients(Experiment):
    """The gradient's variance in these runs, at the epochs whose weights they kept."""

    def build(self, results: Results, request: Request) -> Findings:
        columns, rows = [Column("latents"), Column("method")], []
        for epoch in KEPT_EPOCHS[request.scale]:
            columns += [Column(f"{part}, epoch {epoch}") for part in ("Batch", "Est")]
            columns.append(Column(f"Est %, epoch {epoch}", 2))
        columns += [Column(f"Est % (paper, epoch {epoch})", 2, judges=True) for epoch in paper.VARIANCE_EPOCHS]
        cells = results.where(seed=0)
        for cell in track(cells, "gradient variance"):
            row: list[Content] = [paper.BLOCKS[cell.latent], paper.METHODS[cell.method]]
            for epoch in KEPT_EPOCHS[request.scale]:
                noise = self._noise(results.run(cell), cell.settings.data, epoch, request)
                row += [noise.batch, noise.est, noise.est_percent]
            rows.append([*row, *paper.VARIANCE[cell.latent, cell.method]])
        title = "Gradient variance of the encoder: mini-batch and estimator parts"
        table = Table(title, columns, rows, name="variance")
        how = (
            f"{cells[0].data}: {BATCHES[request.scale]} batches of {cells[0].settings.data.batch_size} images, "
            f"{DRAWS[request.scale]} draws each; a fixed variance of 0.01."
        )
        notes = [how, *meaning(request), *reduced(cells, request)]
        return Findings("variance", title, [table.only(lambda own, _: request.comparable or not own.judges)], [], notes)

    def _noise(self, run: RunFolder, data: DataConfig, epoch: int, request: Request) -> Decomposition:
        """Return the noise of a run's gradient, which is measured once."""

        def measured(names: Sequence[str]) -> dict[str, Decomposition]:
            observations = loaded(data.name, request.root)
            batches = training_batches(observations, data.batch_size, BATCHES[request.scale], seed=0)
            model = load_weights(run.path, run.kept(epoch), observations)
            (noise,) = gradient_variance(model, batches, DRAWS[request.scale], [model.tractable_estimator]).values()
            return dict.fromkeys(names, noise)

        return kept_variances(run.kept_variance(epoch, request.scale), ["own"], measured)["own"]


class Pictures(Experiment):
    """Reconstructions, one above the other: fixed variance, then each dataset with learned variance."""

    def build(self, results: Results, request: Request) -> Findings:
        fixed = results.where(seed=0, variant=FIXED)
        title = f"Fixed variance, {fixed[0].data}"
        caption = "Test images and their reconstructed means."
        groups = [Reconstructions("figure-fixed", title, caption, results.labels(fixed))]
        for dataset in request.datasets:
            learned = results.where(dataset=dataset, seed=0, variant="")
            guided = [cell for cell in learned if cell.method.endswith(paper.GUIDED)]
            title = f"Learned variance, {learned[0].data}"
            caption = "Test images, reconstructed means, and learned standard deviations (normalized)."
            groups.append(Reconstructions(f"figure-{dataset}", title, caption, results.labels(guided)))
        return Findings("figures", "Reconstructions", groups)


OF_THE_PAPER: dict[str, Experiment] = {
    "fixed": OfThePaper(
        name="fixed",
        title="Linear decoder with fixed variance 0.01",
        heads=["latents", *CHOSEN],
        cells=fixed_cells,
        grid=_grid,
        refused=NO_CONVOLUTIONS,
        labels=lambda cell: [paper.BLOCKS[cell.latent]],
        methods=paper.METHODS,
        reference="silent",
        beside=[
            _printed("BPD", 3, lambda row: paper.FIXED[_key(row)].bpd),
            _printed("MSE", 3, lambda row: paper.FIXED[_key(row)].mse),
            FigureColumn(Column(f"epochs to {paper.REACHED}", 0), _reached),
            _printed("epochs", 0, lambda row: paper.REACHED_AFTER.get(_key(row))),
        ],
        curved=True,
    ),
    "variance": VarianceOfGradients(cells=fixed_cells, of_folders=True, refused=NO_CONVOLUTIONS),
    "bpd": _learned_table("bpd", 2, -1),
    "kld": _learned_table("kld", 2, 1),
    "mse": _learned_table("mse", 2, -1),
    "figures": Pictures(
        cells=lambda request: fixed_cells(request) + learned_cells(request), of_folders=True, refused=NO_CONVOLUTIONS
    ),
}
