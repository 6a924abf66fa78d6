"""From finished runs to the paper's tables, each figure beside the paper's.

A table is written as JSON, from which the pages and files are made. A cell is text, a number, nothing, or a figure over
seeds: `{"mean": ..., "std": ..., "seeds": ...}`.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale, reductions
from silentgrad.lab.experiments.runner import FAILURE
from silentgrad.lab.runs.records import read_json, write_json_atomically

Content = str | float | None | dict[str, float]
DIGITS = {"bpd": 3, "mse": 3, "kld": 2}
BETTER: dict[str, Callable[[float, float], bool]] = {
    "bpd": lambda with_sg, without: with_sg < without,
    "mse": lambda with_sg, without: with_sg < without,
    "kld": lambda with_sg, without: with_sg > without,
}
WANTED = {"bpd": "lower", "mse": "lower", "kld": "higher"}


class Results(NamedTuple):
    """What the runs of one table say.

    Args:
        folder: Where the runs are.
        cells: The runs.
    """

    folder: Path
    cells: Sequence[Cell]

    def over_seeds(self, metric: str, **wanted: object) -> Content:
        """A figure over the seeds of the runs that fit; text if one of them diverged."""
        folders = [self.folder / cell.name for cell in self.where(**wanted)]
        failed = sum((folder / FAILURE).exists() for folder in folders)
        if failed:
            return f"diverged ({failed} of {len(folders)})"
        values = [read_json(folder / "summary.json").get(metric) for folder in folders]
        return spread([value for value in values if value is not None])

    def where(self, **wanted: object) -> list[Cell]:
        """The runs whose fields have these values."""
        return [cell for cell in self.cells if all(getattr(cell, name) == value for name, value in wanted.items())]

    def first_seeds(self) -> dict[str, str]:
        """For curves: the first seed's run of each row, by the name of its folder."""
        return {_label(cell): cell.name for cell in self.cells if cell.seed == 0 and self._finished(cell)}

    def _finished(self, cell: Cell) -> bool:
        return (self.folder / cell.name / "summary.json").exists()


def spread(values: Sequence[float]) -> Content:
    """Mean and standard deviation (n - 1) of the figures of several seeds."""
    if not values:
        return None
    deviation = {"std": statistics.stdev(values)} if len(values) > 1 else {}
    return {"mean": statistics.fmean(values), **deviation, "seeds": len(values)}


def fixed_table(results: Results, scale: Scale) -> dict[str, Any]:
    """The fixed-variance table, each method with and without the schedule, and the limit."""
    rows = [_fixed_row(results, latent, method, scheduled) for latent, method in paper.FIXED for scheduled in (0, 1)]
    limit = _limit(results)
    rows.insert(4, ["Continuous", "limit: probabilistic PCA", "", limit, None, None, None, None])
    blocks = {block: [row for row in rows if row[0] == block and row[1] in METHOD_NAMES] for block in BLOCK_NAMES}
    best = [min(rows_of, key=lambda row: _mean(row[3])) for rows_of in blocks.values()]
    return {
        "name": "fixed",
        "title": "Linear decoder with fixed variance 0.01",
        "columns": ["", "method", "variance schedule", "BPD", "BPD (paper)", "MSE", "MSE (paper)", "seconds"],
        "digits": {"BPD": 4, "BPD (paper)": 3, "MSE": 3, "MSE (paper)": 3, "seconds": 0},
        "rows": rows,
        "best": [rows.index(row) for row in best],
        "verdicts": [_fixed_verdict(block, row) for block, row in zip(blocks, best, strict=True)],
        "notes": _notes(results, scale),
        "curves": results.first_seeds(),
    }


METHOD_NAMES = set(paper.METHODS.values())
BLOCK_NAMES = tuple(paper.BLOCKS.values())


def _fixed_row(results: Results, latent: str, method: str, scheduled: int) -> list[Content]:
    figures = [
        results.over_seeds(metric, latent=latent, method=method, scheduled=bool(scheduled))
        for metric in ("bpd", "mse", "seconds")
    ]
    bpd, mse = paper.FIXED[latent, method] if not scheduled else (None, None)
    name = paper.METHODS[method]
    return [paper.BLOCKS[latent], name, "yes" if scheduled else "no", figures[0], bpd, figures[1], mse, figures[2]]


def _limit(results: Results) -> Content:
    """Of any finished run that has one."""
    paths = [results.folder / cell.name / "summary.json" for cell in results.where(latent="gaussian")]
    found = (read_json(path).get("limit_bpd") for path in paths if path.exists())
    return next((limit for limit in found if limit is not None), None)


def _fixed_verdict(block: str, best: list[Content]) -> str:
    schedule = "with" if best[2] == "yes" else "without"
    told = "as in the paper" if best[1] == paper.METHODS["silent"] else "unlike in the paper, Silent Gradients"
    return f"{block}: the best is {best[1]}, {schedule} the variance schedule; {told}."


def learned_table(metric: str, results: Results, datasets: Iterable[str], scale: Scale) -> dict[str, Any]:
    """One of the three learned-variance tables: what SG does to each estimator."""
    rows, verdicts = [], []
    for dataset in datasets:
        for latent, method in ((latent, name) for latent, name in paper.LEARNED[metric] if name.endswith("-sg")):
            row, verdict = _learned_row(metric, results, dataset, latent, method.removesuffix("-sg"))
            rows.append(row)
            verdicts += [verdict] if verdict else []
    shown = metric.upper()
    names = ["", "", "method", f"{shown} without SG", f"{shown} with SG", "paper without", "paper with", "SG helps"]
    return {
        "name": metric,
        "title": f"{shown} with learned variance ({WANTED[metric]} is better)",
        "columns": [*names, "seconds without", "seconds with"],
        "digits": {f"{shown} without SG": DIGITS[metric], f"{shown} with SG": DIGITS[metric], "paper without": 2,
                   "paper with": 2, "seconds without": 0, "seconds with": 0},
        "rows": rows,
        "best": [],
        "verdicts": verdicts,
        "notes": _notes(results, scale),
        "curves": results.first_seeds(),
    }  # fmt: skip


def _learned_row(
    metric: str, results: Results, dataset: str, latent: str, method: str
) -> tuple[list[Content], str | None]:
    place = list(paper.DATASETS).index(dataset)
    sides = (method, f"{method}-sg")
    known = [paper.LEARNED[metric].get((latent, side)) for side in sides]
    theirs = [None if known_side is None else _as_content(known_side[place]) for known_side in known]
    ours = [results.over_seeds(metric, dataset=dataset, latent=latent, method=side) for side in sides]
    seconds = [results.over_seeds("seconds", dataset=dataset, latent=latent, method=side) for side in sides]
    names = [paper.DATASETS[dataset], paper.BLOCKS[latent], paper.METHODS[method]]
    helps = _helps(metric, ours)
    agrees = {None: None, _helps(metric, theirs): "as in the paper"}.get(helps, "unlike in the paper")
    verdict = None if helps is None else f"{', '.join(names)}: SG {_did(metric, ours)}, {agrees}."
    return [*names, *ours, *theirs, helps, *seconds], verdict


def _as_content(figure: paper.Mean) -> Content:
    return figure.mean if figure.std is None else {"mean": figure.mean, "std": figure.std, "seeds": 3}


def _helps(metric: str, sides: Sequence[Content]) -> str | None:
    """Whether SG changed the mean for the better."""
    without, with_sg = (_mean(side) for side in sides)
    if not (math.isfinite(without) and math.isfinite(with_sg)):
        return None
    return "yes" if BETTER[metric](with_sg, without) else "no"


def _did(metric: str, sides: Sequence[Content]) -> str:
    without, with_sg = (_mean(side) for side in sides)
    change = "raises" if with_sg > without else "lowers"
    return f"{change} {metric.upper()} by {abs(with_sg - without):.{DIGITS[metric]}f}"


def _mean(content: Content) -> float:
    if isinstance(content, dict):
        return content["mean"]
    return content if isinstance(content, float) else math.inf


def _notes(results: Results, scale: Scale) -> list[str]:
    seeds = 1 + max(cell.seed for cell in results.cells)
    said = [
        f"Scale {scale}, {seeds} seed{'s' if seeds > 1 else ''}; test images; mean ± standard deviation over seeds."
    ]
    if scale == "smoke":
        said.append("This scale shows that everything works; its figures mean nothing.")
    return said + _images(results) + [f"Reduced: {sentence}." for sentence in reductions(results.cells, scale)]


def _images(results: Results) -> list[str]:
    """How many images each dataset was trained on: a folder may hold a part of a dataset only."""
    found = {}
    for cell in results.cells:
        path = results.folder / cell.name / "summary.json"
        if path.exists():
            found[paper.DATASETS[cell.dataset]] = read_json(path).get("train_images")
    return [f"{dataset}: {count:,} training images." for dataset, count in found.items() if count is not None]


def _label(cell: Cell) -> str:
    method = paper.METHODS[cell.method.removesuffix("-sg")] + (" + SG" if cell.method.endswith("-sg") else "")
    schedule = ", scheduled" if cell.scheduled else ""
    return f"{paper.DATASETS[cell.dataset]} {paper.BLOCKS[cell.latent].lower()} {method}{schedule}"


def write_table(folder: Path, table: dict[str, Any], command: str) -> Path:
    """Writes a table's JSON into the experiment's folder."""
    path = folder / f"{table['name']}.json"
    write_json_atomically(path, {**table, "command": command})
    return path
